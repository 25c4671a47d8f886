//! The messages of a session: one command with its streams.

use bytes::Bytes;

/// Starts a command.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Start {
    /// The number of its session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Program and arguments.
    #[prost(string, repeated, tag = "2")]
    pub command: Vec<String>,
    /// `NAME=value`, beside what the guest sets for the user.
    #[prost(string, repeated, tag = "3")]
    pub environment: Vec<String>,
    /// Working directory; empty for the user's home.
    #[prost(string, tag = "4")]
    pub directory: String,
    /// Whether it has standard input. Otherwise that is empty.
    #[prost(bool, tag = "5")]
    pub input: bool,
    /// It runs in a terminal of this size: standard output and error are one.
    #[prost(message, optional, tag = "6")]
    pub terminal: Option<Terminal>,
    /// Who runs it; root without.
    #[prost(message, optional, tag = "7")]
    pub user: Option<User>,
    /// Name under which the guest keeps the session when the connection ends, and after the command
    /// has ended until the host closes it (since version 2). Empty: the session ends with the
    /// connection.
    #[prost(string, tag = "8")]
    pub keep: String,
    /// What the command may not do (since version 2).
    #[prost(message, optional, tag = "9")]
    pub confinement: Option<Confinement>,
    /// What it sees of the guest's file system (since version 3).
    #[prost(message, optional, tag = "10")]
    pub view: Option<View>,
    /// Kernel parameters that are set before it starts, by their names with dots or slashes (since
    /// version 3).
    #[prost(message, repeated, tag = "11")]
    pub sysctls: Vec<Setting>,
    /// Files of cgroup v2 that limit a kept session, such as `memory.max` (since version 3).
    #[prost(message, repeated, tag = "12")]
    pub limits: Vec<Setting>,
    /// Its `oom_score_adj`, from -1000 to 1000 (since version 3).
    #[prost(sint32, tag = "13")]
    pub oom_score_adj: i32,
    /// Name of the kept session whose limits and end it shares (since version 3). Empty for none.
    #[prost(string, tag = "14")]
    pub within: String,
}

/// A value of a file below `/proc/sys` or of a cgroup.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Setting {
    /// Name of the file.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What is written.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What a command sees of the guest's file system, in a mount namespace of its own.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct View {
    /// Files and directories that it finds empty; one that does not exist needs no mask.
    #[prost(string, repeated, tag = "1")]
    pub masked: Vec<String>,
    /// Files and directories that it finds read-only.
    #[prost(string, repeated, tag = "2")]
    pub read_only: Vec<String>,
    /// Content of its `/etc/resolv.conf`; empty for that of the guest.
    #[prost(string, tag = "3")]
    pub resolver: String,
    /// Volumes of the pod that it finds, in the order in which they are mounted (since version 4).
    #[prost(message, repeated, tag = "4")]
    pub volumes: Vec<Volume>,
}

/// A file or directory of the share [`POD_SHARE`](crate::POD_SHARE) that a command finds at another
/// path.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Volume {
    /// Its name in the share.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where the command finds it: an absolute path, which is made when it is not there.
    #[prost(string, tag = "2")]
    pub path: String,
    /// It is a directory, not a file.
    #[prost(bool, tag = "3")]
    pub is_directory: bool,
    /// The command may write neither here nor in file systems that are mounted below. The host
    /// enforces every read-only volume by itself.
    #[prost(bool, tag = "4")]
    pub read_only: bool,
}

/// Limits of a command within the guest.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Confinement {
    /// Numbers of the capabilities that it and its descendants may have: the bounding set, and for
    /// root the permitted and the effective set.
    #[prost(uint32, repeated, tag = "1")]
    pub capabilities: Vec<u32>,
    /// Numbers of those among them that a user other than root has, too: the ambient set.
    #[prost(uint32, repeated, tag = "2")]
    pub ambient: Vec<u32>,
    /// No program that it executes gains privileges.
    #[prost(bool, tag = "3")]
    pub no_new_privileges: bool,
    /// It sees the root file system read-only.
    #[prost(bool, tag = "4")]
    pub read_only_root: bool,
    /// A seccomp filter: instructions of 8 bytes, as `struct sock_filter` in the guest's byte order.
    /// Empty for none.
    #[prost(bytes = "bytes", tag = "5")]
    pub seccomp: Bytes,
}

/// Continues a session that the guest kept (since version 2). The guest answers with [`Started`] or
/// [`Refused`]; then it sends the streams from the given offsets on, as much as a window holds, and
/// [`Exited`] when the command has ended.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Adopt {
    /// The number of the session in this connection.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The name that it was kept under.
    #[prost(string, tag = "2")]
    pub keep: String,
    /// Bytes of standard output that the host has received since the start.
    #[prost(uint64, tag = "3")]
    pub stdout: u64,
    /// Bytes of standard error that the host has received since the start.
    #[prost(uint64, tag = "4")]
    pub stderr: u64,
}

/// Who runs a command.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct User {
    /// Name of a user of the guest; empty when the number counts.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Number of a user.
    #[prost(uint32, tag = "2")]
    pub uid: u32,
    /// Number of the primary group; that of the user without.
    #[prost(uint32, optional, tag = "3")]
    pub gid: Option<u32>,
    /// Further groups, beside those that the guest's group file has for the user.
    #[prost(uint32, repeated, tag = "4")]
    pub groups: Vec<u32>,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Terminal {
    /// Lines.
    #[prost(uint32, tag = "1")]
    pub rows: u32,
    /// Characters per line.
    #[prost(uint32, tag = "2")]
    pub columns: u32,
}

/// The command runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Started {
    /// Its session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Its process in the guest.
    #[prost(int32, tag = "2")]
    pub pid: i32,
}

/// The command does not run, and its session has ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    /// Its session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Why.
    #[prost(enumeration = "Reason", tag = "2")]
    pub reason: i32,
    /// Why, for people.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// Why a command does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub enum Reason {
    /// See the message.
    Other = 0,
    /// There is no such program.
    NoCommand = 1,
    /// There is no such directory.
    NoDirectory = 2,
    /// The guest has as many sessions as it may.
    TooMany = 3,
    /// There is no such user.
    NoUser = 4,
    /// The guest keeps no session of this name, or has one already.
    NoSession = 5,
    /// The kernel of the guest refuses what the confinement requests.
    NoConfinement = 6,
}

/// Bytes of a stream: to the guest those of standard input.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Data {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The stream.
    #[prost(enumeration = "Stream", tag = "2")]
    pub stream: i32,
    /// At most [`CHUNK`](crate::CHUNK) bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub data: Bytes,
    /// Nothing follows.
    #[prost(bool, tag = "4")]
    pub end: bool,
}

/// A stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub enum Stream {
    /// Standard input.
    Stdin = 0,
    /// Standard output, and that of a terminal.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
}

/// As many bytes of a stream were consumed, and may be sent in addition.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Credit {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The stream.
    #[prost(enumeration = "Stream", tag = "2")]
    pub stream: i32,
    /// How many.
    #[prost(uint32, tag = "3")]
    pub bytes: u32,
}

/// A new size of the terminal.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resize {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The size.
    #[prost(message, optional, tag = "2")]
    pub terminal: Option<Terminal>,
}

/// A signal for the command and all that it started; in a kept session for its first process alone.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Signal {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Its number on Linux.
    #[prost(int32, tag = "2")]
    pub number: i32,
}

/// The host needs the session no more: what runs in it is killed, and the guest keeps nothing of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Close {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
}

/// The command has ended, and all of its output was sent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Exited {
    /// Its session, which has ended; one that is kept remains until the host closes it.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Its exit code, or 128 and the number of the signal that killed it.
    #[prost(int32, tag = "2")]
    pub code: i32,
    /// The kernel killed a process of a kept session because it reached its memory limit (since
    /// version 3).
    #[prost(bool, tag = "3")]
    pub out_of_memory: bool,
}

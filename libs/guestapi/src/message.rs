//! The messages, as Protocol Buffers: a side skips fields that it does not know.
//!
//! Invariant: tags are never used for something else; a new meaning gets a new field, and a new
//! version when an older side must not misunderstand it.
//! Failure: see [`frame`](crate::frame).

use bytes::Bytes;

/// The beginning of a connection. A guest that gets it ends all sessions that it has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HostHello {
    /// The oldest version that the host speaks.
    #[prost(uint32, tag = "1")]
    pub oldest: u32,
    /// The newest version that the host speaks.
    #[prost(uint32, tag = "2")]
    pub newest: u32,
    /// A random number, which distinguishes this connection from those before.
    #[prost(uint64, tag = "3")]
    pub connection: u64,
}

/// The answer; with `connection` 0 a guest reports that it has started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GuestHello {
    /// The version that both speak; 0 when there is none.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The host's number.
    #[prost(uint64, tag = "2")]
    pub connection: u64,
    /// Version of the program, for people.
    #[prost(string, tag = "3")]
    pub program: String,
}

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

/// A signal for the command and all that it started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Signal {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Its number on Linux.
    #[prost(int32, tag = "2")]
    pub number: i32,
}

/// The host needs the session no more: what runs in it is killed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Close {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
}

/// The command has ended, and all of its output was sent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Exited {
    /// Its session, which has ended.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Its exit code, or 128 and the number of the signal that killed it.
    #[prost(int32, tag = "2")]
    pub code: i32,
}

/// Requests one action that is no command. The host has one answer for each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The number of the request, which is that of no other one and of no session.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// What is requested; `None` is an action of a later version.
    #[prost(oneof = "request::Action", tags = "2, 3, 4, 5")]
    pub action: Option<request::Action>,
}

/// The actions of [`Request`].
pub mod request {
    /// One of the actions.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Action {
        /// Report [`Facts`](super::Facts).
        #[prost(message, tag = "2")]
        ReportFacts(super::ReportFacts),
        /// Set the clock.
        #[prost(message, tag = "3")]
        SetTime(super::SetTime),
        /// Write and stop all file systems.
        #[prost(message, tag = "4")]
        Freeze(super::Freeze),
        /// Let file systems go on.
        #[prost(message, tag = "5")]
        Thaw(super::Thaw),
    }
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReportFacts {}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetTime {
    /// Nanoseconds since the epoch.
    #[prost(int64, tag = "1")]
    pub nanoseconds: i64,
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Freeze {
    /// After so many seconds the guest thaws them by itself; at most
    /// [`LONGEST_FREEZE`](crate::LONGEST_FREEZE).
    #[prost(uint32, tag = "1")]
    pub seconds: u32,
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Thaw {}

/// The answer to a [`Request`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// The number of the request.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Why it was not done, for people; empty when it was done.
    #[prost(string, tag = "2")]
    pub error: String,
    /// What was requested by [`ReportFacts`].
    #[prost(message, optional, tag = "3")]
    pub facts: Option<Facts>,
    /// File systems that are frozen, or were thawed.
    #[prost(uint32, tag = "4")]
    pub file_systems: u32,
}

/// What a guest reports about itself. Numbers that it does not know are 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Facts {
    /// Host name.
    #[prost(string, tag = "1")]
    pub host_name: String,
    /// `ID` of the operating system, such as `debian`.
    #[prost(string, tag = "2")]
    pub os_id: String,
    /// Its name for people.
    #[prost(string, tag = "3")]
    pub os_name: String,
    /// Its version.
    #[prost(string, tag = "4")]
    pub os_version: String,
    /// Release of its kernel.
    #[prost(string, tag = "5")]
    pub kernel: String,
    /// Nanoseconds since its boot.
    #[prost(uint64, tag = "6")]
    pub uptime: u64,
    /// CPU time that its processors were busy, in nanoseconds.
    #[prost(uint64, tag = "7")]
    pub cpu: u64,
    /// Bytes of memory.
    #[prost(uint64, tag = "8")]
    pub memory: u64,
    /// Bytes of memory that programs can get without swapping.
    #[prost(uint64, tag = "9")]
    pub memory_available: u64,
    /// Bytes of swap space.
    #[prost(uint64, tag = "10")]
    pub swap: u64,
    /// Bytes of swap space that are free.
    #[prost(uint64, tag = "11")]
    pub swap_free: u64,
    /// File systems on disks, at most [`FILE_SYSTEMS`](crate::FILE_SYSTEMS).
    #[prost(message, repeated, tag = "12")]
    pub file_systems: Vec<FileSystem>,
    /// Network interfaces, at most [`INTERFACES`](crate::INTERFACES).
    #[prost(message, repeated, tag = "13")]
    pub interfaces: Vec<Interface>,
    /// The beginning of `/run/vmlet/guestinfo`, by which programs of the guest publish values; at
    /// most [`PUBLISHED`](crate::PUBLISHED) bytes.
    #[prost(bytes = "bytes", tag = "14")]
    pub published: Bytes,
}

/// A mounted file system.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileSystem {
    /// Where it is mounted.
    #[prost(string, tag = "1")]
    pub mount_point: String,
    /// Its device.
    #[prost(string, tag = "2")]
    pub device: String,
    /// Its type, such as `ext4`.
    #[prost(string, tag = "3")]
    pub kind: String,
    /// Bytes.
    #[prost(uint64, tag = "4")]
    pub size: u64,
    /// Bytes that are in use.
    #[prost(uint64, tag = "5")]
    pub used: u64,
    /// Inodes.
    #[prost(uint64, tag = "6")]
    pub inodes: u64,
    /// Inodes that are in use.
    #[prost(uint64, tag = "7")]
    pub inodes_used: u64,
}

/// A network interface.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Interface {
    /// Its name in the guest.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its hardware address, `52:54:00:12:34:56`.
    #[prost(string, tag = "2")]
    pub mac: String,
    /// Its addresses with the lengths of their prefixes, `10.1.0.5/24`.
    #[prost(string, repeated, tag = "3")]
    pub addresses: Vec<String>,
}

/// A message of one kind from its content.
macro_rules! into_kind {
    ($Name:ident in $module:ident: $( $Kind:ident ),+) => {
        $(
            impl From<$Kind> for $Name {
                fn from(content: $Kind) -> Self {
                    let kind = Some($module::Kind::$Kind(content));
                    Self { kind }
                }
            }
        )+
    };
}

/// A message of the host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToGuest {
    /// `None` is a kind of a later version.
    #[prost(oneof = "to_guest::Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub kind: Option<to_guest::Kind>,
}

/// The kinds of [`ToGuest`].
pub mod to_guest {
    /// One of the messages.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// See [`HostHello`](super::HostHello).
        #[prost(message, tag = "1")]
        HostHello(super::HostHello),
        /// See [`Start`](super::Start).
        #[prost(message, tag = "2")]
        Start(super::Start),
        /// See [`Data`](super::Data).
        #[prost(message, tag = "3")]
        Data(super::Data),
        /// See [`Credit`](super::Credit).
        #[prost(message, tag = "4")]
        Credit(super::Credit),
        /// See [`Resize`](super::Resize).
        #[prost(message, tag = "5")]
        Resize(super::Resize),
        /// See [`Signal`](super::Signal).
        #[prost(message, tag = "6")]
        Signal(super::Signal),
        /// See [`Close`](super::Close).
        #[prost(message, tag = "7")]
        Close(super::Close),
        /// See [`Request`](super::Request).
        #[prost(message, tag = "8")]
        Request(super::Request),
    }
}

into_kind!(ToGuest in to_guest: HostHello, Start, Data, Credit, Resize, Signal, Close, Request);

/// A message of the guest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromGuest {
    /// `None` is a kind of a later version.
    #[prost(oneof = "from_guest::Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub kind: Option<from_guest::Kind>,
}

/// The kinds of [`FromGuest`].
pub mod from_guest {
    /// One of the messages.
    #[allow(
        clippy::large_enum_variant,
        reason = "a message is read, handled and dropped: none is kept"
    )]
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// See [`GuestHello`](super::GuestHello).
        #[prost(message, tag = "1")]
        GuestHello(super::GuestHello),
        /// See [`Started`](super::Started).
        #[prost(message, tag = "2")]
        Started(super::Started),
        /// See [`Refused`](super::Refused).
        #[prost(message, tag = "3")]
        Refused(super::Refused),
        /// See [`Data`](super::Data).
        #[prost(message, tag = "4")]
        Data(super::Data),
        /// See [`Credit`](super::Credit).
        #[prost(message, tag = "5")]
        Credit(super::Credit),
        /// See [`Exited`](super::Exited).
        #[prost(message, tag = "6")]
        Exited(super::Exited),
        /// See [`Answer`](super::Answer).
        #[prost(message, tag = "7")]
        Answer(super::Answer),
    }
}

into_kind!(FromGuest in from_guest: GuestHello, Started, Refused, Data, Credit, Exited, Answer);

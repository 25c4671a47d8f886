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
    #[prost(oneof = "to_guest::Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
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
    }
}

into_kind!(ToGuest in to_guest: HostHello, Start, Data, Credit, Resize, Signal, Close);

/// A message of the guest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromGuest {
    /// `None` is a kind of a later version.
    #[prost(oneof = "from_guest::Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<from_guest::Kind>,
}

/// The kinds of [`FromGuest`].
pub mod from_guest {
    /// One of the messages.
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
    }
}

into_kind!(FromGuest in from_guest: GuestHello, Started, Refused, Data, Credit, Exited);

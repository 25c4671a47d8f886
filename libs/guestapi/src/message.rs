//! The messages, as Protocol Buffers: a side skips fields that it does not know.
//!
//! Invariant: tags are never used for something else; a new meaning gets a new field, and a new
//! version when an older side must not misunderstand it.
//! Failure: see [`frame`](crate::frame).

mod facts;
mod requests;
mod session;

pub use facts::{Facts, FileSystem, Interface};
pub use requests::{
    Answer, Freeze, ReportFacts, ReportUsage, Request, SetLimits, SetTime, Thaw, Usage, request,
};
pub use session::{
    Adopt, Close, Confinement, Credit, Data, Exited, Reason, Refused, Resize, Setting, Signal,
    Start, Started, Stream, Terminal, User, View, Volume,
};

/// The beginning of a connection. A guest that gets it ends all sessions that it has, except those
/// that it keeps.
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
    /// File systems that it froze are thawed also when it is killed. Programs without this are of before.
    #[prost(bool, tag = "4")]
    pub watches_freezes: bool,
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
    #[prost(oneof = "to_guest::Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub kind: Option<to_guest::Kind>,
}

/// The kinds of [`ToGuest`].
pub mod to_guest {
    /// One of the messages.
    #[allow(
        clippy::large_enum_variant,
        reason = "a message is encoded or handled and dropped: none is kept"
    )]
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
        /// See [`Adopt`](super::Adopt).
        #[prost(message, tag = "9")]
        Adopt(super::Adopt),
    }
}

into_kind!(
    ToGuest in to_guest: HostHello, Start, Data, Credit, Resize, Signal, Close, Request, Adopt
);

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

//! Frames of SPDY version 3, with decoded header blocks.
//!
//! Invariant: a value of these types can be encoded; stream ids have 31 bits.
//! Failure: none.

use bytes::Bytes;

/// Names and values of a header block, in the order of the block. Names are lower case.
pub type Headers = Vec<(String, String)>;

/// The status of a `RST_STREAM` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResetStatus(pub u32);

impl ResetStatus {
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// The stream is not accepted.
    pub const REFUSED_STREAM: Self = Self(3);
    /// The stream is no longer needed.
    pub const CANCEL: Self = Self(5);
}

/// The status of a `GOAWAY` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAwayStatus(pub u32);

impl GoAwayStatus {
    /// The session ends normally.
    pub const OK: Self = Self(0);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
}

/// One frame. The decoder splits a long data frame into several values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The new stream.
        stream: u32,
        /// Whether the sender sends no data on it.
        fin: bool,
        /// Its headers.
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        stream: u32,
        /// Whether the sender sends no data on it.
        fin: bool,
        /// The headers of the reply.
        headers: Headers,
    },
    /// Ends a stream in both directions.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        status: ResetStatus,
    },
    /// A request that the peer sends back.
    Ping(u32),
    /// The sender accepts no more streams.
    GoAway {
        /// The last stream that it accepted.
        last: u32,
        /// Why.
        status: GoAwayStatus,
    },
    /// Further headers of a stream.
    Headers {
        /// The stream.
        stream: u32,
        /// Whether the sender sends no more data on it.
        fin: bool,
        /// The headers.
        headers: Headers,
    },
    /// Content of a stream.
    Data {
        /// The stream.
        stream: u32,
        /// Whether this is the end of the sender's data.
        fin: bool,
        /// The content, which may be empty.
        content: Bytes,
    },
    /// A control frame without an effect here: `SETTINGS`, `WINDOW_UPDATE`, and types that the
    /// protocol does not define.
    Ignored(u16),
}

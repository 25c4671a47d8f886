//! Server sessions of SPDY/3.1, as the streaming clients of Kubernetes speak it. A session also
//! runs over other protocols with several streams, whose messages are translated to frames:
//! [`Session::over`].
//!
//! Invariant: memory of a session is bounded by [`Limits`]; bytes of a stream arrive in order,
//! once, or its reader gets an error. The protocol of these clients has no flow control: a stream
//! whose reader is slow stops the connection until its buffer has room, and for [`Limits::stall`]
//! at most; then that stream is reset.
//! Failure: [`Error`] ends the session; all its streams get an error then.
//!
//! # Example
//!
//! ```
//! use spdy::{Decoder, Encoder, Frame};
//! use tokio_util::codec::{Decoder as _, Encoder as _};
//!
//! let mut bytes = bytes::BytesMut::new();
//! Encoder::new()?.encode(Frame::Ping(1), &mut bytes)?;
//! assert_eq!(Decoder::default().decode(&mut bytes)?, Some(Frame::Ping(1)));
//! # Ok::<(), spdy::Error>(())
//! ```

mod codec;
mod frame;
mod headers;
mod session;

pub use codec::{Decoder, Encoder, MAX_CONTROL, MAX_PIECE};
pub use frame::{Frame, GoAwayStatus, Headers, ResetStatus};
pub use session::stream::{ReadHalf, Stream, WriteHalf};
pub use session::{Limits, Session};

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transport failed.
    #[error("transport of the SPDY session")]
    Io(#[from] std::io::Error),
    /// A part of a frame is not what the protocol defines.
    #[error("the peer sent a malformed {0}")]
    Malformed(&'static str),
    /// A part of a frame is larger than this server accepts.
    #[error("the peer sent too large a {0}")]
    TooLarge(&'static str),
    /// The compression of headers failed.
    #[error("the peer sent headers that cannot be decompressed")]
    Compression,
    /// The session carried nothing.
    #[error("the session was idle for {} s", .0.as_secs())]
    Idle(std::time::Duration),
    /// The connection ended within a frame.
    #[error("the connection ended within a frame")]
    Cut,
}

impl Error {
    /// Whether the peer broke the protocol, over a connection that works.
    const fn is_of_protocol(&self) -> bool {
        matches!(
            self,
            Self::Malformed(_) | Self::TooLarge(_) | Self::Compression
        )
    }
}

//! The errors of sockets and messages.
//!
//! Invariant: a variant names the step that failed; the kernel's error is its source.
//! Failure: none of its own.

use std::io;
use std::path::PathBuf;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path of a socket cannot be used as an address (at most 107 bytes).
    #[error("socket path {path} is too long")]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// Something answers on the path already, or it is no socket at all.
    #[error("socket path {path} is in use: {reason}")]
    InUse {
        /// The path.
        path: PathBuf,
        /// What was found there.
        reason: &'static str,
    },
    /// The listening socket could not be made.
    #[error("listen on {path}")]
    Listen {
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// No connection could be taken from the listening socket.
    #[error("accept a connection")]
    Accept(#[source] io::Error),
    /// The peer could not be reached.
    #[error("connect to {path}")]
    Connect {
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A pair of connected sockets could not be made.
    #[error("make a socket pair")]
    Pair(#[source] io::Error),
    /// The deadline could not be set.
    #[error("set the deadline of a connection")]
    Deadline(#[source] io::Error),
    /// The socket could not be made ready for use by the asynchronous runtime.
    #[error("register a socket with the runtime")]
    Register(#[source] io::Error),
    /// The peer's identity could not be read.
    #[error("read peer credentials")]
    Credentials(#[source] io::Error),
    /// A message without bytes looks like the end of a connection, so none is sent.
    #[error("a message needs at least one byte")]
    Empty,
    /// More descriptors than fit in one message, see [`crate::MAX_DESCRIPTORS`].
    #[error("{count} descriptors do not fit in one message")]
    TooManyDescriptors {
        /// How many were to be sent.
        count: usize,
    },
    /// The message could not be sent.
    #[error("send a message")]
    Send(#[source] io::Error),
    /// The message could not be received.
    #[error("receive a message")]
    Receive(#[source] io::Error),
    /// The deadline passed first.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer sent more than the receiver allows; the message and its descriptors are dropped.
    #[error("message is larger than {max} bytes")]
    Truncated {
        /// What the receiver allows, in bytes.
        max: usize,
    },
    /// Descriptors of the message were lost, for lack of free numbers say; the rest is closed.
    #[error("descriptors of a message were lost")]
    DescriptorsLost,
    /// A descriptor could not be made inheritable.
    #[error("let a descriptor survive exec")]
    Inherit(#[source] io::Error),
}

impl Error {
    /// Whether no program listens on the socket, as while it is being started again.
    #[must_use]
    pub fn is_without_listener(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Connect { source, .. } if matches!(source.kind(), ConnectionRefused | NotFound))
    }
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

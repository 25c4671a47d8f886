//! Messages with file descriptors over `SOCK_SEQPACKET` unix sockets.
//!
//! Invariant: bytes and descriptors of a message travel together or not at all; every descriptor
//! that arrives is owned (and close-on-exec) before any other code can use it, so an error never
//! leaks one.
//! Failure: a message that was cut short, in bytes or in descriptors, is an error, never a shorter
//! message; a peer that goes away is `None` on receive and an error on send.
//!
//! # Example
//!
//! ```
//! use std::io::stderr;
//! use std::os::fd::AsFd;
//!
//! let (client, server) = fdpass::socketpair()?;
//! client.send(b"log", &[stderr().as_fd()])?;
//! let message = server.recv(16)?.ok_or("the peer closed the connection")?;
//! assert_eq!(message.fds.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "tokio")]
mod asynchronous;
mod connection;
mod error;
mod listener;
mod sys;

use std::os::fd::BorrowedFd;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncConnection, AsyncListener};
pub use connection::{Connection, Message, PeerCredentials, socketpair};
pub use error::{Error, Result};
pub use listener::Listener;

/// Most descriptors that the kernel carries in one message.
pub const MAX_DESCRIPTORS: usize = 253;

/// Lets a descriptor survive `execve`. Every descriptor of this crate is close-on-exec until then.
pub fn clear_cloexec(fd: BorrowedFd<'_>) -> Result<()> {
    sys::clear_cloexec(fd).map_err(|errno| Error::Inherit(errno.into()))
}

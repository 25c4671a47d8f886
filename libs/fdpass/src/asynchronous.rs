//! Connection and listener for tokio.
//!
//! Invariant: no call blocks a worker; every method is cancel-safe, since a message is taken or
//! sent in one system call.
//! Failure: as in the synchronous ends, except that there is no deadline of its own: the caller
//! wraps calls in `tokio::time::timeout`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::SockFlag;
use tokio::io::unix::AsyncFd;

use crate::connection::{self, Connection, Message, PeerCredentials};
use crate::listener::Listener;
use crate::{Error, Result, sys};

/// A listening socket.
#[derive(Debug)]
pub struct AsyncListener {
    fd: AsyncFd<OwnedFd>,
    path: PathBuf,
}

/// A connected socket.
#[derive(Debug)]
pub struct AsyncConnection {
    fd: AsyncFd<OwnedFd>,
}

impl AsyncListener {
    /// As [`Listener::bind`]. Must be called within a runtime.
    pub fn bind(path: &Path, mode: u32) -> Result<Self> {
        Listener::bind(path, mode)?.try_into()
    }

    /// Waits for a connection.
    pub async fn accept(&self) -> Result<AsyncConnection> {
        loop {
            let mut ready = self.fd.readable().await.map_err(Error::Accept)?;
            let attempt = ready.try_io(|fd| {
                sys::accept(fd.as_fd(), SockFlag::SOCK_NONBLOCK).map_err(io::Error::from)
            });
            if let Ok(accepted) = attempt {
                return AsyncConnection::register(accepted.map_err(Error::Accept)?);
            }
        }
    }

    /// The path it was bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl TryFrom<Listener> for AsyncListener {
    type Error = Error;

    fn try_from(listener: Listener) -> Result<Self> {
        let (fd, path) = listener.into_parts();
        Ok(Self {
            fd: register(fd)?,
            path,
        })
    }
}

impl AsyncConnection {
    /// Connects to a listening socket. A full queue of the listener is an error at once, not a
    /// wait. Must be called within a runtime.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |errno: Errno| Error::Connect {
            path: path.into(),
            source: errno.into(),
        };
        let address = connection::address(path)?;
        let fd = sys::seqpacket(SockFlag::SOCK_NONBLOCK).map_err(failed)?;
        sys::connect(fd.as_fd(), &address).map_err(failed)?;
        Self::register(fd)
    }

    fn register(fd: OwnedFd) -> Result<Self> {
        Ok(Self { fd: register(fd)? })
    }

    /// As [`Connection::send`].
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        connection::check_outgoing(bytes, fds)?;
        loop {
            let mut ready = self.fd.writable().await.map_err(Error::Send)?;
            let attempt =
                ready.try_io(|fd| sys::send(fd.as_fd(), bytes, fds).map_err(io::Error::from));
            if let Ok(sent) = attempt {
                return sent.map_err(Error::Send);
            }
        }
    }

    /// As [`Connection::recv`].
    pub async fn recv(&self, max: usize) -> Result<Option<Message>> {
        loop {
            let mut ready = self.fd.readable().await.map_err(Error::Receive)?;
            match sys::receive(self.fd.as_fd(), max) {
                Err(Errno::EAGAIN) => ready.clear_ready(),
                other => return connection::incoming(other, max),
            }
        }
    }

    /// As [`Connection::peer`].
    pub fn peer(&self) -> Result<PeerCredentials> {
        connection::peer(self.fd.as_fd())
    }
}

impl TryFrom<Connection> for AsyncConnection {
    type Error = Error;

    /// Must be called within a runtime. The socket turns non-blocking for all processes that share
    /// it.
    fn try_from(connection: Connection) -> Result<Self> {
        Self::register(connection.into())
    }
}

impl AsFd for AsyncConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn register(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    sys::register(fd).map_err(Error::Register)
}

//! One end of a connection, used from ordinary threads.
//!
//! Invariant: a call sends or receives exactly one message.
//! Failure: with a deadline set, every call ends by then with [`Error::TimedOut`]; without one, a
//! call waits for its peer as long as that takes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, setsockopt, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::sys::{self, Received};
use crate::{Error, MAX_DESCRIPTORS, Result};

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

/// One message as it arrived.
#[derive(Debug)]
pub struct Message {
    /// At least one byte.
    pub bytes: Vec<u8>,
    /// Close-on-exec, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// Who held the other end when the connection was made; the kernel vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id, in our pid namespace; 0 when the peer is not visible there.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Connection {
    /// Connects to a listening socket; waits while its queue is full.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::open(path, None)
    }

    /// Connects, and gives this and every later call `deadline` to end.
    pub fn connect_within(path: &Path, deadline: Duration) -> Result<Self> {
        Self::open(path, Some(deadline))
    }

    fn open(path: &Path, deadline: Option<Duration>) -> Result<Self> {
        let failed = |errno: Errno| Error::Connect {
            path: path.into(),
            source: errno.into(),
        };
        let address = address(path)?;
        let connection = Self {
            fd: sys::seqpacket(SockFlag::empty()).map_err(failed)?,
        };
        if deadline.is_some() {
            connection.set_deadline(deadline)?;
        }
        match sys::connect(connection.fd.as_fd(), &address) {
            Ok(()) => Ok(connection),
            Err(Errno::EAGAIN) => Err(Error::TimedOut),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// How long each later call may wait; `None` lifts the limit. A call that began is not
    /// affected.
    pub fn set_deadline(&self, deadline: Option<Duration>) -> Result<()> {
        // The kernel treats zero as "no limit", so the shortest limit is a microsecond.
        let micros = deadline.map_or(0, |d| {
            i64::try_from(d.as_micros()).unwrap_or(i64::MAX).max(1)
        });
        let value = TimeVal::microseconds(micros.min(i64::from(u32::MAX) * 1_000_000));
        setsockopt(&self.fd, sockopt::ReceiveTimeout, &value)
            .and_then(|()| setsockopt(&self.fd, sockopt::SendTimeout, &value))
            .map_err(|errno| Error::Deadline(errno.into()))
    }

    /// Sends one message of at least one byte and at most [`MAX_DESCRIPTORS`] descriptors, which
    /// the caller keeps.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        check_outgoing(bytes, fds)?;
        sys::send(self.fd.as_fd(), bytes, fds).map_err(send_failed)
    }

    /// Receives one message of at most `max` bytes. `None`: the peer has closed the connection.
    pub fn recv(&self, max: usize) -> Result<Option<Message>> {
        incoming(sys::receive(self.fd.as_fd(), max), max)
    }

    /// Who holds the other end.
    pub fn peer(&self) -> Result<PeerCredentials> {
        peer(self.fd.as_fd())
    }
}

impl From<OwnedFd> for Connection {
    /// Takes a connected `SOCK_SEQPACKET` socket, such as one end of a pair.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.fd
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Two ends connected with each other.
pub fn socketpair() -> Result<(Connection, Connection)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .map(|(a, b)| (a.into(), b.into()))
        .map_err(|errno| Error::Pair(errno.into()))
}

pub(crate) fn address(path: &Path) -> Result<UnixAddr> {
    UnixAddr::new(path).map_err(|_| Error::Path { path: path.into() })
}

pub(crate) fn peer(fd: BorrowedFd<'_>) -> Result<PeerCredentials> {
    let found = getsockopt(&fd, sockopt::PeerCredentials)
        .map_err(|errno| Error::Credentials(errno.into()))?;
    Ok(PeerCredentials {
        pid: found.pid(),
        uid: found.uid(),
        gid: found.gid(),
    })
}

pub(crate) fn check_outgoing(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if fds.len() > MAX_DESCRIPTORS {
        return Err(Error::TooManyDescriptors { count: fds.len() });
    }
    Ok(())
}

pub(crate) fn send_failed(errno: Errno) -> Error {
    match errno {
        Errno::EAGAIN => Error::TimedOut,
        errno => Error::Send(errno.into()),
    }
}

/// Judges what arrived. Descriptors of a refused message are closed on the way out.
pub(crate) fn incoming(received: Result<Received, Errno>, max: usize) -> Result<Option<Message>> {
    let received = match received {
        Ok(received) => received,
        Err(Errno::EAGAIN) => return Err(Error::TimedOut),
        // The peer closed its end with messages of ours unread.
        Err(Errno::ECONNRESET) => return Ok(None),
        Err(errno) => return Err(Error::Receive(errno.into())),
    };
    if received.descriptors_lost {
        return Err(Error::DescriptorsLost);
    }
    if received.truncated {
        return Err(Error::Truncated { max });
    }
    // An empty message looks like the end of the connection; a peer that sends one is treated so.
    if received.bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Message {
        bytes: received.bytes,
        fds: received.fds,
    }))
}

//! The virtio-serial port, or a socket in its place.
//!
//! A port is readable at its end while no host is connected, and cannot be waited for in this state
//! by level: an edge-triggered epoll reports the next change.
//!
//! Invariant: a write blocks while the host does not read, and never while no host is connected.
//! Failure: the kernel's error; `BrokenPipe` when no host is connected.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::{read, write};

/// An open port.
#[derive(Debug)]
pub struct Port {
    file: OwnedFd,
    changes: Epoll,
    /// A socket whose end is final.
    is_socket: bool,
}

impl Port {
    /// Opens the device.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
        Self::new(file.into(), false)
    }

    /// A socket whose other end is the host.
    pub fn of_socket(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::new(socket.into(), true)
    }

    fn new(file: OwnedFd, is_socket: bool) -> io::Result<Self> {
        let changes = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        changes.add(&file, EpollEvent::new(flags, 0))?;
        Ok(Self {
            file,
            changes,
            is_socket,
        })
    }

    /// Whether the host's end is final.
    pub(crate) const fn is_socket(&self) -> bool {
        self.is_socket
    }

    /// Reads something; 0 when no host is connected.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match read(&self.file, buffer) {
                Ok(length) => return Ok(length),
                Err(Errno::EAGAIN) => self.await_change()?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for bytes, or for a host that connects or disconnects.
    pub(crate) fn await_change(&self) -> io::Result<()> {
        loop {
            let mut events = [EpollEvent::empty()];
            match self.changes.wait(&mut events, EpollTimeout::NONE) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes all of it.
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match write(&self.file, bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::EAGAIN) => self.await_room()?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn await_room(&self) -> io::Result<()> {
        let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = files[0].revents().unwrap_or(PollFlags::empty());
        if found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
            Err(ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }
}

//! The listening end: a socket file that appears complete, or not at all.
//!
//! Invariant: the path is never visible with other permissions than requested; only a socket on
//! which no process listens is ever replaced.
//! Failure: the path stays as it was. A crash can leave `.NAME.PID.N` beside it, which no process
//! opens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{Backlog, SockFlag, bind, listen};

use crate::connection::{Connection, address};
use crate::{Error, Result, sys};

/// A listening socket. Dropping it leaves the file; the next [`Listener::bind`] replaces that.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path` with the permission bits `mode`, whatever the umask. A stale socket file
    /// is replaced; anything else there is [`Error::InUse`]. Two programs that do this at the same
    /// instant for one path can both succeed, and the later one gets the connections.
    pub fn bind(path: &Path, mode: u32) -> Result<Self> {
        refuse_occupied(path)?;
        let failed = |source: io::Error| Error::Listen {
            path: path.into(),
            source,
        };
        let temporary = temporary(path)?;
        let fd = sys::seqpacket(SockFlag::empty()).map_err(|errno| failed(errno.into()))?;
        bind(fd.as_raw_fd(), &address(&temporary)?).map_err(|errno| failed(errno.into()))?;
        // No client can connect before `listen`, so the mode is right from the start.
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode))
            .and_then(|()| listen(&fd, Backlog::MAXCONN).map_err(Into::into))
            .and_then(|()| std::fs::rename(&temporary, path))
            .map_err(|source| {
                // The important error is returned already; a left-over name has no effect.
                let _ = std::fs::remove_file(&temporary);
                failed(source)
            })?;
        Ok(Self {
            fd,
            path: path.into(),
        })
    }

    /// Waits for a connection.
    pub fn accept(&self) -> Result<Connection> {
        sys::accept(self.fd.as_fd(), SockFlag::empty())
            .map(Connection::from)
            .map_err(|errno| Error::Accept(errno.into()))
    }

    /// The path it was bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> (OwnedFd, PathBuf) {
        (self.fd, self.path)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Succeeds when `path` is free or a socket on which no process listens.
fn refuse_occupied(path: &Path) -> Result<()> {
    let in_use = |reason| {
        Err(Error::InUse {
            path: path.into(),
            reason,
        })
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(Error::Listen {
                path: path.into(),
                source,
            });
        }
        Ok(found) if !found.file_type().is_socket() => return in_use("not a socket"),
        Ok(_) => {}
    }
    let probe = sys::seqpacket(SockFlag::SOCK_NONBLOCK)
        .and_then(|fd| sys::connect(fd.as_fd(), &address(path).map_err(|_| Errno::ENAMETOOLONG)?));
    match probe {
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(()),
        Ok(()) | Err(Errno::EAGAIN) => in_use("another process listens on it"),
        Err(Errno::EPROTOTYPE) => in_use("a socket of another type listens there"),
        Err(errno) => Err(Error::Listen {
            path: path.into(),
            source: errno.into(),
        }),
    }
}

/// A name beside `path` that no other listener of this machine uses.
fn temporary(path: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = path
        .file_name()
        .ok_or_else(|| Error::Path { path: path.into() })?;
    let name = format!(
        ".{}.{}.{number}",
        name.to_string_lossy(),
        std::process::id()
    );
    Ok(path.with_file_name(name))
}

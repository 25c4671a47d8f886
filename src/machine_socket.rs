//! Connections to the sockets of a machine.
//!
//! They are in a directory that belongs to the machine's user, so that a QEMU which its guest has
//! taken over decides what a name there means.
//!
//! Invariant: no name in such a directory is followed: a socket is opened without links, and the
//! connection goes to what was opened. Nothing is sent to a peer of another user: the one that has listened
//! last, which is QEMU, although libvirtd has made the socket.
//! Failure: [`io::Error`] that names the socket and what is wrong with it.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use tokio::net::UnixStream;

/// A socket of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSocket {
    /// Where it is: a name in the machine's directory, whose own name only root can change.
    pub path: PathBuf,
    /// The user that the machine runs as.
    pub user: u32,
}

impl MachineSocket {
    /// Connects to a process of the machine's user.
    ///
    /// # Errors
    /// When no process listens, the name is no socket, or the process belongs to another user.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let socket = self.find()?;
        let stream = UnixStream::connect(opened(&socket)).await?;
        let user = stream.peer_cred()?.uid();
        if user != self.user {
            let words = format!("its process belongs to user {user}, not to {}", self.user);
            return Err(self.refused(&words));
        }
        Ok(stream)
    }

    /// The socket itself, whatever its name means by then.
    fn find(&self) -> io::Result<OwnedFd> {
        let socket = entry(&self.path, OFlags::PATH)?;
        match FileType::from_raw_mode(fstat(&socket)?.st_mode) {
            FileType::Socket => Ok(socket),
            other => Err(self.refused(&format!("it is no socket, but {other:?}"))),
        }
    }

    fn refused(&self, words: &str) -> io::Error {
        let words = format!("{}: {words}", self.path.display());
        io::Error::new(io::ErrorKind::PermissionDenied, words)
    }
}

/// Connects to a socket in a machine's directory that this process or one that it has started listens
/// on. Nothing is sent. Blocks.
pub(crate) fn touch(path: &Path) -> io::Result<()> {
    let socket = entry(path, OFlags::PATH)?;
    BlockingStream::connect(opened(&socket)).map(drop)
}

/// Opens an entry of a machine's directory, which is no link. A FIFO does not keep the caller waiting.
pub(crate) fn entry(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let odd = || io::Error::from(io::ErrorKind::InvalidInput);
    let directory = path.parent().ok_or_else(odd)?;
    let name = path.file_name().ok_or_else(odd)?;
    let own = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | own,
        Mode::empty(),
    )?;
    // One name, so that nothing but the last step could be a link.
    let entry = openat(
        &directory,
        name,
        flags | OFlags::NONBLOCK | own,
        Mode::empty(),
    )?;
    Ok(entry)
}

/// The path by which the kernel finds what is open here.
fn opened(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::socket::{Shutdown, shutdown};
    use tokio::net::UnixListener;

    use super::*;

    fn own() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    /// A machine's directory, and a socket of root elsewhere.
    fn scratch() -> (tempfile::TempDir, UnixListener) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("machine")).unwrap();
        let listener = UnixListener::bind(dir.path().join("root.sock")).unwrap();
        (dir, listener)
    }

    fn serial(dir: &tempfile::TempDir, user: u32) -> MachineSocket {
        let path = dir.path().join("machine/serial");
        MachineSocket { path, user }
    }

    #[tokio::test]
    async fn a_socket_of_the_machines_user_is_reached() {
        let (dir, _root) = scratch();
        let socket = serial(&dir, own());
        let listener = UnixListener::bind(&socket.path).unwrap();
        let connected = tokio::join!(socket.connect(), listener.accept());
        connected.0.unwrap();
        connected.1.unwrap();
        touch(&socket.path).unwrap();
        // Not dropped alone: a process that a parallel test has forked has the socket, too, until it executes its program.
        shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
        let refused = socket.connect().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let refused = touch(&socket.path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_link_to_a_socket_of_the_node_is_not_followed() {
        let (dir, root) = scratch();
        let socket = serial(&dir, own());
        symlink("../root.sock", &socket.path).unwrap();
        let refused = socket.connect().await.unwrap_err().to_string();
        assert!(refused.contains("no socket, but Symlink"), "{refused}");
        assert!(touch(&socket.path).is_err());
        let machine = dir.path().join("machine");
        std::fs::rename(&machine, dir.path().join("other")).unwrap();
        symlink("other", machine).unwrap();
        assert!(socket.connect().await.is_err());
        let came = tokio::time::timeout(std::time::Duration::ZERO, root.accept());
        assert!(came.await.is_err(), "nothing reached the node's socket");
    }

    #[tokio::test]
    async fn a_socket_of_another_user_is_refused() {
        let (dir, _root) = scratch();
        let socket = serial(&dir, own() + 1);
        // As a hard link to it is.
        std::fs::hard_link(dir.path().join("root.sock"), &socket.path).unwrap();
        let refused = socket.connect().await.unwrap_err().to_string();
        assert!(refused.contains("belongs to user"), "{refused}");
    }

    #[tokio::test]
    async fn a_pipe_keeps_no_caller_waiting() {
        let (dir, _root) = scratch();
        let socket = serial(&dir, own());
        nix::unistd::mkfifo(&socket.path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(socket.connect().await.is_err());
        assert!(touch(&socket.path).is_err());
        entry(&socket.path, OFlags::RDONLY).unwrap();
    }
}

//! A server's Unix socket with a check of its peers.
//!
//! Invariant: the socket has mode 0600 from the moment it has its name; a live server's socket is
//! never taken, and nothing but a socket is ever replaced. Only processes of our own user, of root
//! and of one further user, where the caller names one, are served.
//! Failure: [`Error`] at start-up. A peer of another user is disconnected and logged. An error of
//! accepting is logged and tried again: the server never ends by it.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, stream};
use nix::unistd::{Uid, chown, geteuid};
use tokio::net::{UnixListener, UnixStream};

/// The user of `vmlet-agent`, as `deploy/agent` and the defaults of all settings have it: one below
/// the users of machines, and none that a distribution gives to a program.
pub const AGENT_UID: u32 = 1_899_999_999;

/// Time that a server behind an existing socket has to accept.
const ANSWER: Duration = Duration::from_secs(1);

/// Wait after a failure to accept, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The name in log lines and log filters.
const LOG: &str = "listener";

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another server answers on it.
    #[error("another server answers on {}", .0.display())]
    Taken(PathBuf),
    /// Something that is no socket has the name.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The path has no directory or no name.
    #[error("{} is not the path of a file", .0.display())]
    NoName(PathBuf),
    /// A step of making it failed.
    #[error("{step} {}", path.display())]
    Make {
        /// What was to be done.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    allowed: [u32; 3],
}

/// The name of our socket in the file system.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

/// Other users reach the sockets of other programs in it.
fn make_directory(dir: &Path) -> io::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).create(dir)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o755))
}

impl Listener {
    /// Makes the directory if needed, and the socket.
    pub async fn bind(path: &Path) -> Result<Self, Error> {
        Self::bind_for(path, 0).await
    }

    /// As [`Self::bind`], but the socket belongs to `client`, whose processes are served, too. With
    /// 0 it belongs to our own user.
    pub async fn bind_for(path: &Path, client: u32) -> Result<Self, Error> {
        let failed = |step, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Make { step, path, source }
        };
        let parent = path.parent().filter(|_| path.file_name().is_some());
        let dir = parent.ok_or_else(|| Error::NoName(path.into()))?;
        make_directory(dir).map_err(failed("make directory", dir))?;
        check_free(path).await?;
        // Short, so that it fits wherever the name itself does. The kernel lists the socket under this name
        // (`/proc/net/unix`, `ss -x`): vmlet-installer finds connections to the proxy by it.
        let temporary = dir.join(format!(".{}", std::process::id()));
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &temporary)(e));
            }
            _ => {}
        }
        let socket = UnixListener::bind(&temporary).map_err(failed("bind", &temporary))?;
        std::fs::set_permissions(&temporary, Permissions::from_mode(0o600))
            .map_err(failed("set the mode of", &temporary))?;
        if client != 0 {
            chown(&temporary, Some(Uid::from_raw(client)), None)
                .map_err(|errno| failed("give to the agent's user", path)(errno.into()))?;
        }
        std::fs::rename(&temporary, path).map_err(failed("name socket", path))?;
        let path = path.to_owned();
        let allowed = [geteuid().as_raw(), 0, client];
        Ok(Self {
            socket,
            path,
            allowed,
        })
    }

    /// What is needed to remove the socket's name later.
    pub fn claim(&self) -> Claim {
        let inode = inode(&self.path);
        let path = self.path.clone();
        Claim { path, inode }
    }

    /// Connections of those who may connect, without end.
    pub fn incoming(self) -> impl Stream<Item = io::Result<UnixStream>> {
        stream::unfold(self, |listener| async move {
            let stream = listener.accept().await;
            Some((Ok(stream), listener))
        })
    }

    /// The next connection of a user who may connect.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) if self.admits(&stream) => return stream,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(target: LOG, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    fn admits(&self, stream: &UnixStream) -> bool {
        match stream.peer_cred() {
            Ok(peer) if self.allowed.contains(&peer.uid()) => true,
            Ok(peer) => {
                let uid = peer.uid();
                let pid = peer.pid();
                tracing::warn!(target: LOG, uid, pid, "connection of another user refused");
                false
            }
            Err(error) => {
                tracing::warn!(target: LOG, %error, "connection without credentials refused");
                false
            }
        }
    }
}

impl Claim {
    /// Removes the socket unless another server has taken its place.
    pub fn release(self) {
        if self.inode.is_some() && self.inode == inode(&self.path) {
            // The next server finds that no process listens on it, and replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Whether the name may be taken: it is free, or a socket on which no process listens.
async fn check_free(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Make {
        step: "look at",
        path: path.into(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::NotASocket(path.into())),
        Ok(_) => {}
    }
    match tokio::time::timeout(ANSWER, UnixStream::connect(path)).await {
        // A server whose queue is full does not answer in time, but it lives.
        Err(_) | Ok(Ok(_)) => Err(Error::Taken(path.into())),
        Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(e)) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests;

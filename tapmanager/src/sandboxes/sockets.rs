//! The sockets of starts: one for each start that is allowed and has not happened.
//!
//! Invariant: a socket belongs to the user of its machine, in a directory that root alone can change:
//! no other machine can connect to it, and so none can delay the start. It lasts as long as the
//! token: a machine that runs has none. Connections of one socket are served one after the other.
//! Failure: a start whose socket cannot be made is refused. After a restart of the program that is a
//! warning, and the socket for all starts still serves the token.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fdpass::{AsyncConnection, AsyncListener, Error};
use nix::unistd::User;
use service::telemetry::one_line;
use tapmanager::wire::start_socket;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

/// Characters of a sandbox's id in the name of a socket: unique in practice, and short enough for
/// the path of a socket.
const NAME: usize = 20;
/// Connections that wait to be taken over by the server.
const WAITING: usize = 16;
/// After a failed accept, of descriptors run out say.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection to the socket of a start.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) connection: AsyncConnection,
    /// The socket serves its next connection when this is dropped.
    pub(crate) served: oneshot::Sender<()>,
}

/// The sockets.
#[derive(Debug)]
pub(crate) struct StartSockets {
    /// The socket for all starts, which names the directory of these.
    shared: PathBuf,
    /// Of a start that names no user.
    uid: u32,
    gid: u32,
    arrivals: mpsc::Sender<Arrival>,
    open: Mutex<HashMap<String, Open>>,
}

/// A socket that is there.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    _accepts: AbortOnDropHandle<()>,
}

impl StartSockets {
    /// No sockets yet; those of an earlier run are removed. Connections come out of the channel.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub(crate) fn new(shared: &Path, qemu: &User) -> io::Result<(Self, mpsc::Receiver<Arrival>)> {
        let directory = start_socket(shared, "");
        std::fs::create_dir_all(&directory)?;
        std::fs::set_permissions(&directory, Permissions::from_mode(0o711))?;
        for entry in std::fs::read_dir(&directory)? {
            std::fs::remove_file(entry?.path())?;
        }
        let (arrivals, arrived) = mpsc::channel(WAITING);
        let sockets = Self {
            shared: shared.to_owned(),
            uid: qemu.uid.as_raw(),
            gid: qemu.gid.as_raw(),
            arrivals,
            open: Mutex::default(),
        };
        Ok((sockets, arrived))
    }

    /// Makes the socket for the start of a sandbox's machine, as this user or QEMU's; returns its name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn open(&self, sandbox: &str, uid: Option<u32>) -> Result<String, Error> {
        let name: String = sandbox.chars().take(NAME).collect();
        let path = start_socket(&self.shared, &name);
        // Before the next one has its name.
        self.close(sandbox);
        let listener = AsyncListener::bind(&path, 0o600)?;
        let owner = uid.unwrap_or(self.uid);
        chown(&path, Some(owner), Some(self.gid)).map_err(|source| Error::Listen {
            path: path.clone(),
            source,
        })?;
        let accepts = tokio::spawn(accept(listener, owner, self.arrivals.clone()));
        let open = Open {
            path,
            _accepts: AbortOnDropHandle::new(accepts),
        };
        self.sockets().insert(sandbox.to_owned(), open);
        Ok(name)
    }

    /// Removes the socket of a sandbox; one that was taken over by the server is served to the end.
    pub(crate) fn close(&self, sandbox: &str) {
        let Some(open) = self.sockets().remove(sandbox) else {
            return;
        };
        match std::fs::remove_file(&open.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = open.path.display();
                tracing::warn!(socket = %path, %error, "socket of a start not removed");
            }
            _ => {}
        }
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes connections of the socket's user and of root to the server, one at a time.
async fn accept(listener: AsyncListener, owner: u32, arrivals: mpsc::Sender<Arrival>) {
    loop {
        let connection = match listener.accept().await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(socket = "start", error = one_line(&error), "accept failed");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let is_expected = |uid| uid == owner || uid == 0;
        if !connection.peer().is_ok_and(|peer| is_expected(peer.uid)) {
            continue;
        }
        let (served, ended) = oneshot::channel();
        if arrivals.send(Arrival { connection, served }).await.is_err() {
            return;
        }
        // An error is the drop that is waited for.
        let _ = ended.await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use nix::unistd::{Uid, geteuid};

    use super::*;

    fn sockets(dir: &Path) -> (StartSockets, mpsc::Receiver<Arrival>) {
        let own = User::from_uid(geteuid()).unwrap().unwrap();
        StartSockets::new(&dir.join("handoff.sock"), &own).unwrap()
    }

    fn directory(dir: &Path) -> PathBuf {
        start_socket(&dir.join("handoff.sock"), "")
    }

    #[tokio::test]
    async fn a_start_has_a_socket_of_its_own_until_it_is_over() {
        let scratch = tempfile::tempdir().unwrap();
        let (sockets, mut arrived) = sockets(scratch.path());
        let long = "0123456789abcdef".repeat(4);
        let name = sockets.open(&long, None).unwrap();
        assert_eq!(name, long[..NAME]);
        let path = directory(scratch.path()).join(&name);
        let found = path.metadata().unwrap();
        assert_eq!(
            (found.mode() & 0o777, found.uid()),
            (0o600, geteuid().as_raw())
        );

        // A flood at one socket takes one place, and keeps no other one from the server.
        let flood: Vec<_> = (0..3)
            .map(|_| AsyncConnection::connect(&path).unwrap())
            .collect();
        let first = arrived.recv().await.unwrap();
        let other = sockets.open("two", None).unwrap();
        let other = directory(scratch.path()).join(other);
        let quick = AsyncConnection::connect(&other).unwrap();
        let second = arrived.recv().await.unwrap();
        quick.send(b"of two", &[]).await.unwrap();
        let received = second.connection.recv(16).await.unwrap().unwrap();
        assert_eq!(received.bytes, b"of two");
        drop(first);
        arrived.recv().await.unwrap();
        drop(flood);

        sockets.close(&long);
        assert!(!path.exists() && other.exists());
        sockets.close(&long);
    }

    #[tokio::test]
    async fn sockets_of_an_earlier_run_are_removed_and_a_repeated_start_replaces_its_own() {
        let scratch = tempfile::tempdir().unwrap();
        let (earlier, _arrived) = sockets(scratch.path());
        let left = directory(scratch.path()).join(earlier.open("left", None).unwrap());
        std::mem::forget(earlier);
        let (sockets, mut arrived) = sockets(scratch.path());
        assert!(!left.exists());
        let mode = directory(scratch.path()).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o711);
        let first = sockets.open("one", None).unwrap();
        assert_eq!(sockets.open("one", None).unwrap(), first);
        let path = directory(scratch.path()).join(first);
        let _client = AsyncConnection::connect(&path).unwrap();
        arrived.recv().await.unwrap();
        // Who may change names there.
        let owner = directory(scratch.path()).metadata().unwrap().uid();
        assert_eq!(Uid::from_raw(owner), geteuid());
    }
}

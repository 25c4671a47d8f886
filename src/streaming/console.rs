//! Serial consoles at libvirt's sockets, shared by the clients that are attached to them: those of
//! machines that an earlier version has started, or whose wrapper could not change the port.
//!
//! Invariant: a machine's console socket accepts one client: one task per machine holds it while
//! clients are attached, sends the guest's output to all of them and their input to the guest. A
//! slow client loses its session, never holds up the guest, the log or another client.
//! Failure: [`io::Error`] when the console cannot be reached; a client that is too slow gets
//! [`Lagged`](broadcast::error::RecvError::Lagged).

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use podspec::ContainerId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{broadcast, mpsc};

use crate::machine_socket::MachineSocket;
use crate::vm::console::Client;

/// Pieces of output that wait for one client.
const OUTPUT: usize = 256;
/// Pieces of input that wait for the guest, from all clients.
const INPUT: usize = 16;
/// Largest piece of output.
const PIECE: usize = 4096;
/// Time for the emulator to accept.
const CONNECT: Duration = Duration::from_secs(5);

/// The consoles with clients.
#[derive(Debug, Default)]
pub(super) struct Consoles(Mutex<HashMap<ContainerId, Lines>>);

/// The channels of one console.
#[derive(Debug, Clone)]
struct Lines {
    output: broadcast::WeakSender<Bytes>,
    input: mpsc::WeakSender<Bytes>,
}

/// A client's part of a console. Dropped, it is detached.
#[derive(Debug)]
pub(super) struct Attached {
    /// What the guest writes.
    pub(super) output: broadcast::Receiver<Bytes>,
    /// What the guest reads.
    pub(super) input: Input,
}

/// Where a client types.
#[derive(Debug)]
pub(super) enum Input {
    /// Into the FIFO that the emulator reads.
    Fifo(pipe::Sender),
    /// Into the connection that the clients share.
    Shared(mpsc::Sender<Bytes>),
}

impl Input {
    /// Waits for a guest that does not read.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Fifo(fifo) => fifo.write_all(bytes).await,
            Self::Shared(shared) => {
                let sent = shared.send(Bytes::copy_from_slice(bytes)).await;
                sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
            }
        }
    }
}

impl From<Client> for Attached {
    fn from(client: Client) -> Self {
        Self {
            output: client.output,
            input: Input::Fifo(client.input),
        }
    }
}

impl Consoles {
    /// Attaches a client to the console of a machine.
    pub(super) async fn attach(
        &self,
        id: &ContainerId,
        socket: &MachineSocket,
    ) -> io::Result<Attached> {
        if let Some(attached) = self.join(id) {
            return Ok(attached);
        }
        let console = tokio::time::timeout(CONNECT, socket.connect()).await??;
        // Another client may have been faster; then this connection is closed unused.
        let mut consoles = self.consoles();
        if let Some(attached) = consoles.get(id).and_then(Lines::join) {
            return Ok(attached);
        }
        consoles.retain(|_, lines| lines.input.strong_count() > 0);
        let (output, receiver) = broadcast::channel(OUTPUT);
        let (input, requests) = mpsc::channel(INPUT);
        let lines = Lines {
            output: output.downgrade(),
            input: input.downgrade(),
        };
        consoles.insert(id.clone(), lines);
        tokio::spawn(carry(console, output, requests));
        Ok(Attached {
            output: receiver,
            input: Input::Shared(input),
        })
    }

    fn join(&self, id: &ContainerId) -> Option<Attached> {
        self.consoles().get(id)?.join()
    }

    fn consoles(&self) -> MutexGuard<'_, HashMap<ContainerId, Lines>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn join(&self) -> Option<Attached> {
        Some(Attached {
            input: Input::Shared(self.input.upgrade()?),
            output: self.output.upgrade()?.subscribe(),
        })
    }
}

/// Carries bytes between the guest and its clients until the console closes or no client is left.
async fn carry(
    console: UnixStream,
    output: broadcast::Sender<Bytes>,
    mut input: mpsc::Receiver<Bytes>,
) {
    let (mut from_guest, mut to_guest) = console.into_split();
    let reads = async {
        let mut buffer = vec![0; PIECE];
        loop {
            match from_guest.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                // Without a receiver nothing is lost: the log has its own copy.
                Ok(length) => drop(output.send(Bytes::copy_from_slice(&buffer[..length]))),
            }
        }
    };
    let writes = async {
        while let Some(bytes) = input.recv().await {
            if to_guest.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reads => {}
        () = writes => {}
    }
}

/// The consoles of one server.
pub(super) type Shared = Arc<Consoles>;

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    struct Guest {
        listener: UnixListener,
        socket: MachineSocket,
        _dir: tempfile::TempDir,
    }

    fn own(path: std::path::PathBuf) -> MachineSocket {
        let user = nix::unistd::geteuid().as_raw();
        MachineSocket { path, user }
    }

    fn guest() -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        Guest {
            listener: UnixListener::bind(&path).unwrap(),
            socket: own(path),
            _dir: dir,
        }
    }

    #[tokio::test]
    async fn clients_of_one_machine_share_one_connection() {
        let guest = guest();
        let consoles = Consoles::default();
        let id = ContainerId::generate();
        let mut first = consoles.attach(&id, &guest.socket).await.unwrap();
        let mut second = consoles.attach(&id, &guest.socket).await.unwrap();
        let (mut console, _) = guest.listener.accept().await.unwrap();
        console.write_all(b"login: ").await.unwrap();
        for client in [&mut first, &mut second] {
            assert_eq!(&client.output.recv().await.unwrap()[..], b"login: ");
        }
        first.input.send(b"ro").await.unwrap();
        second.input.send(b"ot\n").await.unwrap();
        let mut typed = [0; 5];
        console.read_exact(&mut typed).await.unwrap();
        assert_eq!(&typed, b"root\n");
        drop((first, second));
        assert_eq!(console.read(&mut typed).await.unwrap(), 0, "detached");
        let mut again = consoles.attach(&id, &guest.socket).await.unwrap();
        let (console, _) = guest.listener.accept().await.unwrap();
        drop(console);
        assert!(again.output.recv().await.is_err(), "the machine ended");
    }

    #[tokio::test]
    async fn a_slow_client_holds_up_no_other_one() {
        let guest = guest();
        let consoles = Consoles::default();
        let id = ContainerId::generate();
        let mut slow = consoles.attach(&id, &guest.socket).await.unwrap();
        let mut fast = consoles.attach(&id, &guest.socket).await.unwrap();
        let (mut console, _) = guest.listener.accept().await.unwrap();
        let mut received = 0;
        while received < 2 * OUTPUT * PIECE {
            console.write_all(&[b'x'; PIECE]).await.unwrap();
            received += fast.output.recv().await.unwrap().len();
        }
        let lagged = slow.output.recv().await.unwrap_err();
        assert!(matches!(lagged, broadcast::error::RecvError::Lagged(_)));
    }

    #[tokio::test]
    async fn a_machine_without_a_console_is_an_error() {
        let path = own("/nonexistent/console".into());
        let id = ContainerId::generate();
        assert!(Consoles::default().attach(&id, &path).await.is_err());
    }
}

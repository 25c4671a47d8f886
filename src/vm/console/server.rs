//! The socket of a console, for clients on the node.
//!
//! Invariant: root and our own user alone are served, each connection as a client of its own, which
//! ends with the console or a minute later.
//! Failure: an error of making the socket is the caller's. A connection that fails ends alone; what a
//! client is too slow to receive is left out, and it is sent a line that says so.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use service::listener::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, broadcast};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::clients::{Client, Output, input};
use super::{DEADLINE, Error, Result, soon_on_thread};

/// Bytes of input that are read at once.
const INPUT: usize = 1024;
/// A client that takes nothing for so long, or whose guest does not, is disconnected.
const STUCK: Duration = Duration::from_secs(60);

/// A socket begins under a name that all of a directory share.
static BINDING: Mutex<()> = Mutex::const_new(());

/// A socket that is served. Dropping it ends that; its connections end with the console.
#[derive(Debug)]
pub(super) struct Server(#[expect(dead_code, reason = "held")] AbortOnDropHandle<()>);

impl Server {
    /// Makes the socket beside a raw file, and serves it; `None` without a FIFO, as a machine of an
    /// earlier version has none.
    pub(super) async fn start(raw: &Path, output: Output) -> Result<Option<Self>> {
        let turn = timeout(DEADLINE, BINDING.lock()).await;
        let turn = turn.map_err(|_| Error::Crowded)?;
        let path = raw.to_owned();
        let bound = soon_on_thread(move || {
            let _turn = turn;
            if !input(&path).exists() {
                return Ok(None);
            }
            let bound = Handle::current().block_on(Listener::bind(&socket(&path)));
            bound.map(Some).map_err(Error::Serve)
        });
        let Some(listener) = bound.await? else {
            return Ok(None);
        };
        let task = tokio::spawn(serve(listener, raw.to_owned(), output));
        Ok(Some(Self(AbortOnDropHandle::new(task))))
    }
}

async fn serve(listener: Listener, raw: PathBuf, output: Output) {
    loop {
        let connection = listener.accept().await;
        match output.client(&raw).await {
            Ok(Some(client)) => drop(tokio::spawn(carry(connection, client))),
            // The connection is closed.
            Ok(None) => {}
            Err(error) => {
                let raw = raw.display();
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%raw, error, "console not reached for a client");
            }
        }
    }
}

/// The socket beside a raw file.
pub(in crate::vm) fn socket(raw: &Path) -> PathBuf {
    let mut name = OsString::from(raw);
    name.push(".sock");
    name.into()
}

/// Carries bytes until the client leaves or the console closes.
async fn carry(connection: UnixStream, client: Client) {
    let Client { output, input } = client;
    let (typed, shown) = connection.into_split();
    // Either side has ended, or waits for too long.
    tokio::select! {
        () = show(output, shown) => {}
        () = types(typed, input) => {}
    }
}

async fn show(mut output: broadcast::Receiver<Bytes>, mut client: OwnedWriteHalf) {
    loop {
        let bytes = match output.recv().await {
            Ok(bytes) => bytes,
            Err(RecvError::Lagged(pieces)) => left_out(pieces).into(),
            Err(RecvError::Closed) => return,
        };
        if !is_written(client.write_all(&bytes)).await {
            return;
        }
    }
}

async fn types(mut client: OwnedReadHalf, mut guest: pipe::Sender) {
    let mut buffer = [0; INPUT];
    while let Ok(length @ 1..) = client.read(&mut buffer).await {
        if !is_written(guest.write_all(&buffer[..length])).await {
            return;
        }
    }
}

async fn is_written(write: impl Future<Output = io::Result<()>>) -> bool {
    matches!(timeout(STUCK, write).await, Ok(Ok(())))
}

fn left_out(pieces: u64) -> String {
    format!("\r\n[{pieces} pieces of output left out: this client reads too slowly]\r\n")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;
    use crate::vm::console::clients;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn several_clients_of_the_node_type_and_see_the_same_output() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let mut emulator = clients::open(&raw).unwrap();
        fcntl(&emulator.input, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let output = Output::new();
        let server = Server::start(&raw, output.clone()).await.unwrap();
        let server = server.expect("there is a FIFO");
        let mode = socket(&raw).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut clients = Vec::new();
        for typed in [b"a", b"b"] {
            let mut client = UnixStream::connect(socket(&raw)).await.unwrap();
            client.write_all(typed).await.unwrap();
            clients.push(client);
        }
        // Both are served when the guest has received what they typed.
        let read = move || {
            let mut typed = [0; 2];
            emulator.input.read_exact(&mut typed).map(|()| typed)
        };
        let read = timeout(LONG, tokio::task::spawn_blocking(read)).await;
        let mut typed = read.unwrap().unwrap().unwrap();
        typed.sort_unstable();
        assert_eq!(&typed, b"ab");
        output.send(b"login: ");
        drop(output);
        drop(server);
        for client in &mut clients {
            let mut seen = Vec::new();
            let read = timeout(LONG, client.read_to_end(&mut seen)).await;
            read.unwrap().unwrap();
            assert_eq!(seen, b"login: ", "the console has closed");
        }
    }

    #[test]
    fn a_slow_client_is_shown_how_much_it_did_not_receive() {
        assert!(left_out(7).contains("7 pieces of output left out"));
    }
}

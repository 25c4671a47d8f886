//! Clients of a console: each receives what the guest writes and can type.
//!
//! The output is that of the raw file, from the time at which the client comes; what is typed goes
//! into a FIFO beside the file, which the emulator reads. So no client is a concern of the guest, of
//! the log or of another client.
//!
//! Invariant: the FIFO is in a directory of ours, so that its name leads nowhere else.
//! Failure: an emulator that an earlier version has started, or whose wrapper could not change the
//! port, reads no FIFO: such a console has no clients here. A client that is too slow receives
//! [`Lagged`](broadcast::error::RecvError::Lagged).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe;
use tokio::sync::broadcast;

use super::{Error, Result, soon_on_thread};

/// Pieces of output that wait for one client.
const WAITING: usize = 256;
/// Largest piece of output.
const PIECE: usize = 4096;

/// A client's part of a console. Dropped, it is detached.
#[derive(Debug)]
pub struct Client {
    /// What the guest writes; it closes when the machine ends or the daemon lets the console go.
    pub output: broadcast::Receiver<Bytes>,
    /// What the guest reads. Writes wait for a guest that does not read.
    pub input: pipe::Sender,
}

/// What the guest writes, for all clients of a console.
#[derive(Debug, Clone)]
pub(super) struct Output(broadcast::Sender<Bytes>);

impl Output {
    pub(super) fn new() -> Self {
        Self(broadcast::channel(WAITING).0)
    }

    /// What the guest writes from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Bytes> {
        self.0.subscribe()
    }

    pub(super) fn has_clients(&self) -> bool {
        self.0.receiver_count() > 0
    }

    pub(super) fn send(&self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            // Fails when the last client has left; the log has its own copy.
            let _ = self.0.send(Bytes::copy_from_slice(piece));
        }
    }

    /// A client; `None` when no emulator reads a FIFO beside this raw file.
    pub(super) async fn client(&self, raw: &Path) -> Result<Option<Client>> {
        let path = input(raw);
        let file = soon_on_thread(move || {
            let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
            let mut options = OpenOptions::new();
            match options.write(true).custom_flags(flags).open(&path) {
                Ok(file) => Ok(Some(file)),
                // No FIFO, or no reader.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => Ok(None),
                Err(source) => Err(Error::OpenRaw { path, source }),
            }
        });
        let Some(file) = file.await? else {
            return Ok(None);
        };
        let output = self.subscribe();
        let input = pipe::Sender::from_file(file).map_err(|source| Error::OpenRaw {
            path: input(raw),
            source,
        })?;
        Ok(Some(Client { output, input }))
    }
}

/// The FIFO beside a raw file.
pub(super) fn input(raw: &Path) -> PathBuf {
    let mut name = OsString::from(raw);
    name.push(".in");
    name.into()
}

/// The files of a console that an emulator has open.
#[derive(Debug)]
pub(in crate::vm) struct Files {
    /// The FIFO, for reading and writing: with a writer it does not end.
    pub(in crate::vm) input: File,
    /// The raw file, for appending.
    pub(in crate::vm) output: File,
}

/// Opens the files of a console, which are made when they are missing.
pub(super) fn open(raw: &Path) -> io::Result<Files> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let fifo = input(raw);
    match mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut both = OpenOptions::new();
    let both = both.read(true).write(true).custom_flags(flags);
    let mut append = OpenOptions::new();
    let append = append.append(true).create(true).mode(0o600);
    Ok(Files {
        input: both.open(fifo)?,
        output: append.custom_flags(flags).open(raw)?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn what_clients_type_reaches_the_reader_and_a_lost_one_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let output = Output::new();
        assert!(output.client(&raw).await.unwrap().is_none(), "no FIFO");
        mkfifo(&input(&raw), Mode::S_IRWXU).unwrap();
        assert!(output.client(&raw).await.unwrap().is_none(), "no reader");
        let mut emulator = open(&raw).unwrap();
        let mut first = output.client(&raw).await.unwrap().unwrap();
        let mut second = output.client(&raw).await.unwrap().unwrap();
        first.input.write_all(b"ro").await.unwrap();
        second.input.write_all(b"ot\n").await.unwrap();
        let mut typed = [0; 5];
        emulator.input.read_exact(&mut typed).unwrap();
        assert_eq!(&typed, b"root\n");
        drop(first);
        output.send(b"login: ");
        assert_eq!(&second.output.recv().await.unwrap()[..], b"login: ");
        drop(second);
        assert!(!output.has_clients());
    }

    #[tokio::test]
    async fn a_slow_client_is_behind_and_the_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let _emulator = open(&raw).unwrap();
        let output = Output::new();
        let mut slow = output.client(&raw).await.unwrap().unwrap();
        let mut fast = output.client(&raw).await.unwrap().unwrap();
        for _ in 0..=WAITING {
            output.send(&[b'x'; PIECE]);
            fast.output.recv().await.unwrap();
        }
        let lagged = slow.output.recv().await.unwrap_err();
        assert!(matches!(lagged, broadcast::error::RecvError::Lagged(_)));
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_refused() {
        for name in ["raw", "raw.in"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("other"), "").unwrap();
            std::os::unix::fs::symlink("other", dir.path().join(name)).unwrap();
            let refused = open(&dir.path().join("raw")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::ELOOP as i32), "{name}");
        }
    }
}

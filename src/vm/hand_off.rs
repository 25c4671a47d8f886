//! Gives the emulator the open files of its console and of its disks, and the directories that it
//! serves.
//!
//! Invariant: each socket is in the machine's own directory, takes one connection of the machine's
//! user, and lives as long as the start. The files of volumes are closed on threads of their owners:
//! no thread of the runtime waits for a volume.
//! Failure: an [`Error`] before any call to libvirt; a connection that fails fails the
//! start by `vmwrapper`'s error. Without the files of its console a machine starts all the same.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::chown;
use std::path::Path;

use fdpass::{AsyncConnection, AsyncListener};
use podspec::ContainerId;
use serde::Serialize;
use tokio::task::JoinHandle;

use super::console;
use super::error::{Error, Result};
use super::file_disks::WireDisk;
use super::model::Container;
use super::service::Containers;
use super::shares::{Protocol, WireDirectory};
use super::users::Owner;
use crate::foreign::Open;
use crate::platform::Platform;

/// What `vmwrapper` gets, with the descriptors of all disks, and then one for each directory.
#[derive(Debug, Serialize)]
struct Message {
    disks: Vec<WireDisk>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    directories: Vec<WireDirectory>,
}

/// What belongs to a message.
#[derive(Debug)]
struct Files {
    disks: Vec<Open<Vec<File>>>,
    /// The first descriptor of each counts.
    directories: Vec<Open<Vec<OwnedFd>>>,
}

impl Files {
    /// In the order of the message.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let disks = self.disks.iter().flat_map(|disk| disk.local());
        let directories = self
            .directories
            .iter()
            .filter_map(|all| all.local().first());
        let directories = directories.map(|directory| directory.as_fd());
        disks.map(|file| file.as_fd()).chain(directories).collect()
    }
}

/// The files of a start, until it is dropped.
#[derive(Debug)]
pub(in crate::vm) struct Offer(JoinHandle<()>);

impl Offer {
    /// Whether an emulator has collected the files, or could not.
    pub(in crate::vm) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Container {
    /// Whether its emulator gets open files.
    pub(in crate::vm) fn has_files(&self) -> bool {
        let mut directories = self.spec.shares_by(Protocol::NineP);
        !self.spec.file_disks.is_empty() || directories.next().is_some()
    }
}

impl<P: Platform> Containers<P> {
    /// Opens the files of a machine's emulator and offers them to it; `None` when it has none. The
    /// directory of the machine's sockets is there.
    pub(in crate::vm) async fn offer_files(&self, row: &Container) -> Result<Option<Offer>> {
        if !row.has_files() {
            return Ok(None);
        }
        let (disks, of_disks) = self.open_file_disks(row).await?;
        let (directories, of_directories) = self.open_directories(row).await?;
        let message = Message { disks, directories };
        let files = Files {
            disks: of_disks,
            directories: of_directories,
        };
        let bytes = serde_json::to_vec(&message).unwrap_or_default();
        let owner = self.owner(row);
        let listener = listen(&self.paths.disk_socket(&row.id), owner)?;
        let id = row.id.clone();
        let serve = async move {
            let served = serve(&listener, owner, &bytes, &files.descriptors()).await;
            report(&id, served);
        };
        Ok(Some(Offer(tokio::spawn(serve))))
    }

    /// Opens the files of a machine's console and offers them to its emulator. The directory of the
    /// machine's sockets is there. Without an offer the console stays at libvirt's socket, and the
    /// machine starts.
    pub(in crate::vm) async fn offer_console(&self, row: &Container) -> Option<Offer> {
        let offered = self.try_offer_console(row).await;
        let offered = offered.inspect_err(|error| {
            let error = crate::one_line(error);
            tracing::warn!(container = %row.id, error, "files of the console not offered");
        });
        offered.ok()
    }

    async fn try_offer_console(&self, row: &Container) -> Result<Offer> {
        let files = console::open(&self.console(row)).await?;
        let owner = self.owner(row);
        let listener = listen(&self.paths.console_offer(&row.id), owner)?;
        let id = row.id.clone();
        let serve = async move {
            let files = [files.input.as_fd(), files.output.as_fd()];
            report(&id, serve(&listener, owner, b"console", &files).await);
        };
        Ok(Offer(tokio::spawn(serve)))
    }
}

fn report(id: &ContainerId, served: Result<(), fdpass::Error>) {
    if let Err(error) = served {
        let error = crate::one_line(&error);
        tracing::warn!(container = %id, error, "files of the emulator not handed over");
    }
}

fn listen(path: &Path, Owner { uid, gid }: Owner) -> Result<AsyncListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(offer(path, error));
        }
        _ => {}
    }
    let listener = AsyncListener::bind(path, 0o600).map_err(Error::HandOff)?;
    chown(path, Some(uid), Some(gid)).map_err(|error| offer(path, error))?;
    Ok(listener)
}

fn offer(path: &Path, source: std::io::Error) -> Error {
    let path = path.to_owned();
    Error::HandOff(fdpass::Error::Listen { path, source })
}

async fn serve(
    listener: &AsyncListener,
    owner: Owner,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), fdpass::Error> {
    loop {
        let connection: AsyncConnection = listener.accept().await?;
        if connection.peer()?.uid != owner.uid {
            continue;
        }
        return connection.send(bytes, files).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;
    use crate::foreign::Foreign;

    #[tokio::test]
    async fn files_are_closed_in_the_turns_of_their_owners() {
        let foreign = Foreign::default();
        let owners = ["disk", "directory"].map(str::to_owned);
        let (mut ears, ends): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                std::io::pipe()
                    .map(|(ear, end)| (ear, OwnedFd::from(end)))
                    .unwrap()
            })
            .unzip();
        let mut ends = ends.into_iter();
        let mut next = || ends.next().unwrap();
        let files = Files {
            disks: vec![foreign.keep(&owners[0], vec![File::from(next()), File::from(next())])],
            directories: vec![foreign.keep(&owners[1], vec![next()])],
        };
        assert_eq!(files.descriptors().len(), 3);
        let held = owners.map(|owner| foreign.hold(owner));
        // On this thread, which a close would block.
        drop(files);
        for ear in &ears {
            let flags = nix::fcntl::OFlag::O_NONBLOCK;
            nix::fcntl::fcntl(ear, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        }
        for ear in &mut ears {
            let open = ear.read(&mut [0]).unwrap_err();
            assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
        }
        drop(held);
        let closed = tokio::task::spawn_blocking(move || {
            for ear in &mut ears {
                let flags = nix::fcntl::OFlag::empty();
                nix::fcntl::fcntl(&*ear, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
                assert_eq!(ear.read(&mut [0]).unwrap(), 0);
            }
        });
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, closed).await.unwrap().unwrap();
    }

    fn own() -> Owner {
        Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }

    #[test]
    fn the_message_is_that_of_the_shared_fixture() {
        let text = include_str!("../../tests/fixtures/emulator-files.json");
        let disk = |name: &str, read_only| WireDisk {
            path: Path::new("/var/lib/vmlet/console/0123").join(name),
            read_only,
        };
        let directory = |tag: &str, read_only| WireDirectory {
            tag: tag.to_owned(),
            read_only,
        };
        let message = Message {
            disks: vec![disk("disk-0", false), disk("disk-1", true)],
            directories: vec![directory("vmlet-0", false), directory("vmlet-1", true)],
        };
        let expected: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(message).unwrap(), expected);
    }

    #[tokio::test]
    async fn only_the_user_of_the_machine_gets_the_files() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("files");
        let file = File::open("/dev/null").unwrap();
        let files = [file.as_fd()];
        let other = Owner {
            uid: own().uid + 1,
            ..own()
        };
        let listener = listen(&path, own()).unwrap();
        let stranger = async {
            let connection = AsyncConnection::connect(&path).unwrap();
            connection.recv(16).await.unwrap().is_none()
        };
        // The server goes on after a stranger.
        let refused = tokio::select! {
            refused = stranger => refused,
            served = serve(&listener, other, b"files", &files) => panic!("{served:?}"),
        };
        assert!(refused);
        drop(listener);
        let listener = listen(&path, own()).unwrap();
        let limit = Duration::from_secs(60);
        let served = serve(&listener, own(), b"files", &files);
        let client = async {
            let connection = AsyncConnection::connect(&path).unwrap();
            connection.recv(16).await.unwrap().unwrap()
        };
        let both = async { tokio::join!(served, client) };
        let (served, message) = tokio::time::timeout(limit, both).await.unwrap();
        served.unwrap();
        assert_eq!(
            (message.bytes.as_slice(), message.fds.len()),
            (&b"files"[..], 1)
        );
    }
}

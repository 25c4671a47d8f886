//! Gives the emulator the open files of its disks.
//!
//! Invariant: the socket is in the machine's own directory, takes one connection of the machine's
//! user, and lives as long as the start. Files are opened and checked for this start; whether
//! another emulator has one open is decided by QEMU's locks of the file, on this node and, where
//! the file system has locks, on others.
//! Failure: [`Error`] before libvirt is requested anything; a connection that fails fails the
//! start by `vmwrapper`'s error.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use fdpass::{AsyncConnection, AsyncListener};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::FileDisk;
use super::error::{Error, Result};
use super::place::io;
use super::prepare::run;
use crate::platform::Platform;
use crate::vm::disks::serial;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource};
use crate::vm::error::Result as Outcome;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::users::Owner;

/// What `vmwrapper` gets, with two descriptors for each disk that QEMU may write, the one for
/// reading first, and one for each other disk.
#[derive(Debug, Serialize)]
struct Message {
    disks: Vec<WireDisk>,
}

#[derive(Debug, Serialize)]
struct WireDisk {
    path: PathBuf,
    read_only: bool,
}

/// The disks of a start, until it is dropped.
#[derive(Debug)]
pub(in crate::vm) struct Offer(JoinHandle<()>);

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<P: Platform> Containers<P> {
    /// Opens the files of a machine's disks and offers them to its emulator; `None` when it has
    /// none. The directory of the machine's sockets is there.
    pub(in crate::vm) async fn offer_file_disks(&self, row: &Container) -> Outcome<Option<Offer>> {
        let disks = &row.spec.file_disks;
        if disks.is_empty() {
            return Ok(None);
        }
        let mut files = Vec::new();
        let mut message = Message { disks: Vec::new() };
        for (index, disk) in disks.iter().enumerate() {
            let place = self.place(disk).await?;
            let (missing, write) = (Error::Missing(disk.shown()), !disk.read_only);
            let opened = run(move || {
                let open = |write| place.find(write).map(|found| found.map(|(file, _)| file));
                let mut files = vec![open(false)?];
                if write {
                    files.push(open(true)?);
                }
                Ok(files.into_iter().collect::<Option<Vec<File>>>())
            });
            files.extend(opened.await?.ok_or(missing)?);
            message.disks.push(WireDisk {
                path: self.paths.disk_stand_in(&row.id, index),
                read_only: disk.read_only,
            });
        }
        let owner = self.owner(row);
        let stands_in: Vec<_> = message.disks.iter().map(|disk| disk.path.clone()).collect();
        let shown = disks[0].clone();
        let prepare = move || {
            let made = stands_in.iter().try_for_each(|path| stand_in(path, owner));
            made.map_err(io(&shown, "describe to libvirt"))
        };
        run(prepare).await?;
        let listener = listen(&self.paths.disk_socket(&row.id), owner)?;
        let bytes = serde_json::to_vec(&message).unwrap_or_default();
        let id = row.id.clone();
        let serve = async move {
            if let Err(error) = serve(&listener, owner, &bytes, &files).await {
                tracing::warn!(container = %id, error = crate::one_line(&error), "disks of volumes not handed over");
            }
        };
        Ok(Some(Offer(tokio::spawn(serve))))
    }

    /// The root disk as the domain has it, if it is a file of a volume.
    pub(in crate::vm) fn root_in_file(&self, row: &Container) -> Option<Disk> {
        let mut all = row.spec.file_disks.iter().enumerate();
        let (index, disk) = all.find(|(_, disk)| disk.is_root())?;
        Some(self.file_disk(row, index, disk))
    }

    /// The other disks as the domain has them.
    pub(in crate::vm) fn further_files(&self, row: &Container) -> impl Iterator<Item = Disk> {
        let all = row.spec.file_disks.iter().enumerate();
        let further = all.filter(|(_, disk)| !disk.is_root());
        further.map(|(index, disk)| self.file_disk(row, index, disk))
    }

    fn file_disk(&self, row: &Container, index: usize, disk: &FileDisk) -> Disk {
        Disk {
            device: DiskDevice::Virtio,
            source: DiskSource::File(self.paths.disk_stand_in(&row.id, index)),
            format: match disk.format {
                crate::images::Format::Raw => DiskFormat::Raw,
                crate::images::Format::Qcow2 => DiskFormat::Qcow2,
            },
            discard: true,
            read_only: disk.read_only,
            serial: serial(&row.spec.disk_paths(), &disk.path),
        }
    }
}

fn stand_in(path: &Path, Owner { uid, gid }: Owner) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?;
    chown(path, Some(uid), Some(gid))
}

fn listen(path: &Path, Owner { uid, gid }: Owner) -> Result<AsyncListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(offer(path, error));
        }
        _ => {}
    }
    let listener = AsyncListener::bind(path, 0o600).map_err(Error::Offer)?;
    chown(path, Some(uid), Some(gid)).map_err(|error| offer(path, error))?;
    Ok(listener)
}

fn offer(path: &Path, source: std::io::Error) -> Error {
    let path = path.to_owned();
    Error::Offer(fdpass::Error::Listen { path, source })
}

async fn serve(
    listener: &AsyncListener,
    owner: Owner,
    bytes: &[u8],
    files: &[File],
) -> Result<(), fdpass::Error> {
    loop {
        let connection: AsyncConnection = listener.accept().await?;
        if connection.peer()?.uid != owner.uid {
            continue;
        }
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        return connection.send(bytes, &files).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn own() -> Owner {
        Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }

    #[test]
    fn the_message_is_that_of_the_shared_fixture() {
        let text = include_str!("../../../tests/fixtures/file-disks.json");
        let disk = |name: &str, read_only| WireDisk {
            path: Path::new("/var/lib/vmlet/console/0123").join(name),
            read_only,
        };
        let disks = vec![disk("disk-0", false), disk("disk-1", true)];
        let expected: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(Message { disks }).unwrap(), expected);
    }

    #[tokio::test]
    async fn only_the_user_of_the_machine_gets_the_disks() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("disks");
        let file = || vec![File::open("/dev/null").unwrap()];
        let other = Owner {
            uid: own().uid + 1,
            ..own()
        };
        let (listener, files) = (listen(&path, own()).unwrap(), file());
        let stranger = async {
            let connection = AsyncConnection::connect(&path).unwrap();
            connection.recv(16).await.unwrap().is_none()
        };
        // The server goes on after a stranger.
        let refused = tokio::select! {
            refused = stranger => refused,
            served = serve(&listener, other, b"disks", &files) => panic!("{served:?}"),
        };
        assert!(refused);
        drop(listener);
        let (listener, limit) = (listen(&path, own()).unwrap(), Duration::from_secs(60));
        let served = serve(&listener, own(), b"disks", &files);
        let client = async {
            let connection = AsyncConnection::connect(&path).unwrap();
            connection.recv(16).await.unwrap().unwrap()
        };
        let both = async { tokio::join!(served, client) };
        let (served, message) = tokio::time::timeout(limit, both).await.unwrap();
        served.unwrap();
        assert_eq!(
            (message.bytes.as_slice(), message.fds.len()),
            (&b"disks"[..], 1)
        );
    }
}

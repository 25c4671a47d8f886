//! The records of the processes that serve shares, and the directory of a pod machine's share.
//!
//! Invariant: the record is written before the server begins, in a directory that only root enters:
//! programs enter the namespace of the process that it names.
//! Failure: the kernel's error. Without its record the server of a pod machine mounts no volume, and
//! any server goes unwatched after a restart of the daemon.

use std::ffi::OsString;
use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use super::{Protocol, Share};
use crate::files;
use crate::helper::Child;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::host::process::Processes as Emulators;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// A process, also where its number is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) pid: u32,
    /// Clock ticks from the node's boot to the process's start.
    pub(super) started: u64,
}

impl Server {
    fn from_child(child: &Child) -> Option<Self> {
        let pid = child.id()?;
        let started = Emulators::started_at(pid)?;
        Some(Self { pid, started })
    }

    /// As in a record.
    fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim_end().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl<P: Platform> Containers<P> {
    /// Records the server of a share; makes the directory of a pod machine's share.
    pub(super) async fn record_server(
        &self,
        row: &Container,
        share: &Share,
        child: &Child,
    ) -> io::Result<Server> {
        let record = self.record_of(row, share);
        let directory = share.is_of_pod().then(|| self.paths.volumes(&row.id));
        let ended = || io::Error::other("the server has ended");
        let server = Server::from_child(child).ok_or_else(ended)?;
        let write = move || {
            if let Some(directory) = directory {
                match std::fs::create_dir(&directory) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
                // The server is not root.
                std::fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
            }
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options
                .open(record)?
                .write_all(format!("{server}\n").as_bytes())
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(io::Error::other)??;
        Ok(server)
    }

    /// Removes the records of a machine's servers, and the directory of a pod machine's share; may
    /// be repeated.
    pub(in crate::vm) async fn remove_share_files(&self, row: &Container) -> Result<()> {
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            let record = self.record_of(row, share);
            is_gone(tokio::fs::remove_file(&record).await)
                .map_err(files::failed("remove", &record))?;
            if share.is_of_pod() {
                let directory = self.paths.volumes(&row.id);
                is_gone(tokio::fs::remove_dir_all(&directory).await)
                    .map_err(files::failed("remove", &directory))?;
            }
        }
        Ok(())
    }

    /// How the program finds the server of a pod machine's share.
    pub(super) async fn server(&self, machine: &Container) -> Result<Option<[OsString; 2]>> {
        let server = self.recorded(self.paths.share_server(&machine.id)).await?;
        Ok(server.map(|Server { pid, started }| {
            [format!("--pid={pid}"), format!("--started={started}")].map(OsString::from)
        }))
    }

    /// The server of a share as it was recorded; `None` without a record.
    pub(super) async fn recorded_server(
        &self,
        row: &Container,
        share: &Share,
    ) -> Result<Option<Server>> {
        self.recorded(self.record_of(row, share)).await
    }

    async fn recorded(&self, path: PathBuf) -> Result<Option<Server>> {
        match tokio::fs::read_to_string(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Server::parse(&read.map_err(files::failed("read", &path))?)),
        }
    }

    fn record_of(&self, row: &Container, share: &Share) -> PathBuf {
        if share.is_of_pod() {
            self.paths.share_server(&row.id)
        } else {
            self.paths.server_of_tag(&row.id, &share.tag)
        }
    }
}

/// Success also for what was not there.
fn is_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let server = Server {
            pid: 17,
            started: 4_000_000_000_000,
        };
        assert_eq!(Server::parse(&format!("{server}\n")), Some(server));
        for wrong in ["", "17", "17 ", "x 1", "1 x\n", "-1 1"] {
            assert_eq!(Server::parse(wrong), None, "{wrong:?}");
        }
    }
}

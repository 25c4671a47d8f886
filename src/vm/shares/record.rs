//! The directory of a pod machine's share, and the record of its server.
//!
//! Invariant: the record is written before the server begins, in a directory that only root enters:
//! programs enter the namespace of the process that it names.
//! Failure: the kernel's error; without a record no volume is mounted.

use std::ffi::OsString;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

use tokio::process::Child;

use super::Share;
use crate::files;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::host::process::Processes as Emulators;
use crate::vm::model::Container;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Makes the directory of a pod machine's share, and records its server.
    pub(super) async fn record_server(&self, row: &Container, child: &Child) -> io::Result<()> {
        let (directory, record) = (
            self.paths.volumes(&row.id),
            self.paths.share_server(&row.id),
        );
        let pid = child.id();
        let write = move || {
            match std::fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // The server is not root.
            std::fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
            let ended = || io::Error::other("the server has ended");
            let pid = pid.ok_or_else(ended)?;
            let started = Emulators::started_at(pid).ok_or_else(ended)?;
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options
                .open(record)?
                .write_all(format!("{pid} {started}\n").as_bytes())
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(io::Error::other)?
    }

    /// Removes the directory of a pod machine's share and the record of its server; may be repeated.
    pub(in crate::vm) async fn remove_share_files(&self, row: &Container) -> Result<()> {
        if !row.spec.shares.iter().any(Share::is_of_pod) {
            return Ok(());
        }
        let (directory, record) = (
            self.paths.volumes(&row.id),
            self.paths.share_server(&row.id),
        );
        for (removed, path) in [
            (tokio::fs::remove_file(&record).await, &record),
            (tokio::fs::remove_dir_all(&directory).await, &directory),
        ] {
            match removed {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(files::failed("remove", path)(e).into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// How the program finds the server of a pod machine's share.
    pub(super) async fn server(&self, machine: &Container) -> Result<Option<[OsString; 2]>> {
        let path = self.paths.share_server(&machine.id);
        let text = match tokio::fs::read_to_string(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(files::failed("read", &path))?,
        };
        let words = text.split_once(' ');
        Ok(words.map(|(pid, started)| {
            let started = started.trim_end();
            [format!("--pid={pid}"), format!("--started={started}")].map(OsString::from)
        }))
    }
}

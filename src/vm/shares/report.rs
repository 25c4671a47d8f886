//! What the process of a share reported before it ended, for the error of a start that fails by it.
//!
//! Invariant: only a process that this daemon started, and that ended with an error, has a report.
//! Failure: without a record of the ends in time, the start has the hypervisor's error; a log that
//! cannot be read is empty.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::watch::End;
use super::{Protocol, Share, socket_name};
use crate::machine_socket;
use crate::platform::Platform;
use crate::vm::error::Error;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;

/// Most bytes of a log in a message.
const SHOWN: u64 = 400;
/// Time from the ends of processes to their records.
const RECORD: Duration = Duration::from_secs(2);

impl<P: Platform> Containers<P> {
    /// The error of a start that the hypervisor refused: of the first share whose process has ended
    /// with an error, with what both reported; else that of the hypervisor.
    pub(in crate::vm) async fn error_of_start(&self, row: &Container, refused: Error) -> Error {
        if refused.is_transient() {
            return refused;
        }
        let failed = tokio::time::timeout(RECORD, self.failed_share(row)).await;
        let Ok(Some((share, report))) = failed else {
            return refused;
        };
        let refused = crate::one_line(&refused);
        let source = format!("its process on the node has ended ({report}): {refused}");
        Error::from(ShareError::Directory {
            path: share.path.clone(),
            source: io::Error::other(source),
        })
    }

    async fn failed_share<'a>(&self, row: &'a Container) -> Option<(&'a Share, String)> {
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            let socket = self.paths.sockets(&row.id).join(socket_name(share));
            if has_no_listener(socket).await
                && let End::Failure(report) = self.servers.end(&row.id, &share.tag).await
            {
                return Some((share, report));
            }
        }
        None
    }
}

/// Whether no process listens for an emulator: it has ended, or serves one already. A process that
/// still listens ends by this connection; the undoing of the start ends it in the same way.
async fn has_no_listener(socket: PathBuf) -> bool {
    let connect = move || machine_socket::touch(&socket);
    let connected = tokio::task::spawn_blocking(connect).await;
    matches!(connected, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The last bytes of a log.
pub(super) fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::from(machine_socket::entry(log, OFlags::RDONLY)?);
        if !file.metadata()?.is_file() {
            return Ok(String::new());
        }
        let from = file.metadata()?.len().saturating_sub(SHOWN);
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(SHOWN).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    };
    read().unwrap_or_default()
}

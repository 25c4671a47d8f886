//! What the process of a share reported before it ended, for the error of a start that fails by it.
//!
//! Invariant: only a process that this daemon started, and that ended with an error, has a report.
//! Failure: without a report in time, the start has the hypervisor's error; a log that cannot be
//! read is empty.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Protocol, socket_name};
use crate::platform::Platform;
use crate::vm::error::Error;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// What the processes of a machine report, beside their sockets.
pub(super) const LOG: &str = "shares.log";
/// Most bytes of it in a message.
const SHOWN: u64 = 400;
/// Time from the end of a process to its report.
const REPORT: Duration = Duration::from_secs(2);

impl<P: Platform> Containers<P> {
    /// The error of a start that the hypervisor refused: of the first share whose process has ended
    /// and reported why, else what the hypervisor reported.
    pub(in crate::vm) async fn error_of_start(&self, row: &Container, refused: Error) -> Error {
        if refused.is_transient() {
            return refused;
        }
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            let socket = self.paths.sockets(&row.id).join(socket_name(share));
            if !has_no_listener(socket).await {
                continue;
            }
            let report = self.servers.report(&row.id, &share.tag);
            if let Ok(report) = tokio::time::timeout(REPORT, report).await {
                let source = format!("its process on the node has ended: {report}");
                return Error::Share {
                    path: share.path.clone(),
                    source: io::Error::other(source),
                };
            }
        }
        refused
    }
}

/// Whether no process accepts connections: it has ended, or had its emulator already. One that still
/// listens ends by this connection, as it does by the undoing of the start.
async fn has_no_listener(socket: PathBuf) -> bool {
    let connect = move || UnixStream::connect(socket);
    let connected = tokio::task::spawn_blocking(connect).await;
    matches!(connected, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The last bytes of a log.
pub(super) fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let from = file.metadata()?.len().saturating_sub(SHOWN);
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(SHOWN).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    };
    read().unwrap_or_default()
}

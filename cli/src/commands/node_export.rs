//! `node export-disk`: writes a disk of this node to standard output, for `export`.
//!
//! Invariant: the daemon serves it to root and its own user alone. It ends when its input does:
//! then no client is left. The node's copy is removed when the client says that it is complete.
//! Failure: a sentence, and exit code [`AGAIN`] where another attempt may succeed.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use nodeapi::v1::export_event::Event;
use nodeapi::v1::node_client::NodeClient;
use nodeapi::v1::{
    ExportBackupRequest, ExportDiskRequest, ExportEvent, ExportSnapshotRequest, ForgetExportRequest,
};
use nodeapi::{Deadlines, client, connect};
use tokio::io::{AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::publish::{Layer, LayerSum};
use super::transfer::AGAIN;
use super::transfer::line::{COMPLETE, Line};

/// Time for the client to take what is written. The daemon has less.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often a client learns that the program works.
const REPORT: Duration = Duration::from_secs(5);

/// Disk to write, and what the client has of it.
#[derive(Debug, Args)]
pub(crate) struct NodeExportArgs {
    /// UID of the virtual machine.
    #[arg(value_name = "UID")]
    uid: String,
    /// UID of a snapshot of it, in place of the disk as it is.
    #[arg(long, value_name = "UID")]
    snapshot: Option<String>,
    /// UID of a backup of it, in place of the disk as it is.
    #[arg(long, value_name = "UID", conflicts_with = "snapshot", requires_all = ["target", "vm_name"])]
    backup: Option<String>,
    /// Target of the backup, as the configuration of the daemon names it.
    #[arg(long, value_name = "TARGET", requires = "backup")]
    target: Option<String>,
    /// Namespace and name of the machine of the backup, with a slash between them.
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "backup")]
    vm_name: Option<String>,
    /// Checksum of the manifest of the backup.
    #[arg(long, value_name = "SHA256", requires = "backup")]
    sha256: Option<String>,
    /// Bytes that the client has received.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    received: u64,
    /// Checksum of these bytes.
    #[arg(long, value_name = "SHA256", default_value = "")]
    received_sha256: String,
    /// Write size and checksum of the layer of a container disk that has the disk, in place of the
    /// disk.
    #[arg(long)]
    layer: bool,
    /// Socket of the daemon's node API.
    #[arg(long, value_name = "SOCKET", default_value = client::DEFAULT_ENDPOINT)]
    node_endpoint: String,
}

/// Why a file was not transferred.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}", words(.0))]
    Daemon(Status),
    #[error("the client has read nothing for {} s", PATIENCE.as_secs())]
    Stalled,
    #[error("failed to exchange bytes with the client")]
    Write(#[source] std::io::Error),
}

fn words(status: &Status) -> String {
    match status.code() {
        Code::Unimplemented => {
            "the daemon of this node is older than this program and transfers no files: upgrade the node".to_owned()
        }
        Code::Unavailable if status.message().is_empty() => "the daemon is not available".to_owned(),
        _ => status.message().to_owned(),
    }
}

impl Failure {
    pub(super) fn is_passing(&self) -> bool {
        let passing = [
            Code::Unavailable,
            Code::Unknown,
            Code::Cancelled,
            Code::DeadlineExceeded,
        ];
        match self {
            Self::Daemon(status) => passing.contains(&status.code()),
            Self::Stalled | Self::Write(_) => true,
        }
    }
}

pub(crate) async fn run(args: &NodeExportArgs) -> anyhow::Result<ExitCode> {
    let mut daemon = connect(&args.node_endpoint, Deadlines::default())?;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let written = async {
        let events = args.begin(&mut daemon).await.map_err(Failure::Daemon)?;
        if args.layer {
            write_layer(events, &mut tokio::io::stdout()).await
        } else {
            write(events, &mut tokio::io::stdout()).await
        }
    };
    let written = tokio::select! {
        written = written => written,
        // The client writes nothing before the end.
        _ = input.next_line() => return Ok(ExitCode::FAILURE),
    };
    if let Err(failure) = written {
        if !failure.is_passing() {
            return Err(failure.into());
        }
        eprintln!("error: {:#}", anyhow::Error::from(failure));
        return Ok(ExitCode::from(AGAIN));
    }
    if let Ok(Some(line)) = input.next_line().await
        && line == COMPLETE.trim_end()
    {
        let complete = ForgetExportRequest {
            vm_uid: args.uid.clone(),
            snapshot_uid: args.snapshot.clone().unwrap_or_default(),
            backup_uid: args.backup.clone().unwrap_or_default(),
        };
        // A copy that stays is removed later.
        let _ = daemon.forget_export(complete).await;
    }
    Ok(ExitCode::SUCCESS)
}

impl NodeExportArgs {
    async fn begin(
        &self,
        daemon: &mut NodeClient<Channel>,
    ) -> Result<Streaming<ExportEvent>, Status> {
        let vm_uid = self.uid.clone();
        let received_bytes = self.received;
        let received_sha256 = self.received_sha256.clone();
        if let Some(backup_uid) = self.backup.clone() {
            let request = ExportBackupRequest {
                vm_uid,
                backup_uid,
                target: self.target.clone().unwrap_or_default(),
                vm_name: self.vm_name.clone().unwrap_or_default(),
                sha256: self.sha256.clone().unwrap_or_default(),
                received_bytes,
                received_sha256,
            };
            // A daemon of before has no such call.
            return Ok(daemon.export_backup(request).await?.into_inner());
        }
        let events = match self.snapshot.clone() {
            // A daemon of before snapshots has no such call.
            Some(snapshot_uid) => {
                let request = ExportSnapshotRequest {
                    vm_uid,
                    snapshot_uid,
                    received_bytes,
                    received_sha256,
                };
                daemon.export_snapshot(request).await
            }
            None => {
                let request = ExportDiskRequest {
                    vm_uid,
                    received_bytes,
                    received_sha256,
                };
                daemon.export_disk(request).await
            }
        };
        Ok(events?.into_inner())
    }
}

async fn write(
    mut events: Streaming<ExportEvent>,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Failure> {
    while let Some(event) = events.message().await.map_err(Failure::Daemon)? {
        let line = match event.event {
            Some(Event::Data(data)) => {
                put(out, &data).await?;
                continue;
            }
            Some(Event::PreparingPercent(percent)) => Line::Preparing(percent),
            Some(Event::Begin(begin)) => Line::Begin {
                size: begin.size_bytes,
                offset: begin.offset,
            },
            Some(Event::End(end)) => Line::End { sha256: end.sha256 },
            None => continue,
        };
        say(out, &line).await?;
    }
    Ok(())
}

/// Writes what the layer of the disk is.
async fn write_layer(
    mut events: Streaming<ExportEvent>,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Failure> {
    let mut layer = LayerSum::begin(0);
    let mut reported = Instant::now();
    while let Some(event) = events.message().await.map_err(Failure::Daemon)? {
        match event.event {
            Some(Event::PreparingPercent(percent)) => say(out, &Line::Preparing(percent)).await?,
            Some(Event::Begin(begin)) => layer = LayerSum::begin(begin.size_bytes),
            Some(Event::Data(data)) => {
                layer.update(&data);
                if reported.elapsed() >= REPORT {
                    reported = Instant::now();
                    say(out, &Line::Preparing(100)).await?;
                }
            }
            Some(Event::End(_)) => {
                let Layer { digest, size } = layer.end();
                let sha256 = digest.trim_start_matches("sha256:").to_owned();
                say(out, &Line::Begin { size, offset: size }).await?;
                return say(out, &Line::End { sha256 }).await;
            }
            None => {}
        }
    }
    Ok(())
}

async fn say(out: &mut (impl AsyncWrite + Unpin), line: &Line) -> Result<(), Failure> {
    put(out, line.text().map_err(Failure::Write)?.as_bytes()).await
}

async fn put(out: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Failure> {
    let written = async {
        out.write_all(bytes).await?;
        out.flush().await
    };
    let written = timeout(PATIENCE, written).await;
    written
        .map_err(|_| Failure::Stalled)?
        .map_err(Failure::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_away_is_waited_for_and_a_refusal_is_not_repeated() {
        let failure = |code| Failure::Daemon(Status::new(code, "a sentence"));
        assert!(failure(Code::Unavailable).is_passing());
        assert!(failure(Code::Unknown).is_passing());
        for code in [
            Code::FailedPrecondition,
            Code::NotFound,
            Code::Aborted,
            Code::Unimplemented,
        ] {
            assert!(!failure(code).is_passing(), "{code:?}");
        }
        assert_eq!(failure(Code::NotFound).to_string(), "a sentence");
        let old = failure(Code::Unimplemented).to_string();
        assert!(old.contains("upgrade the node"), "{old}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_left() {
        let (mut out, _unread) = tokio::io::duplex(8);
        put(&mut out, b"eight by").await.unwrap();
        let left = put(&mut out, b"more").await.unwrap_err();
        assert!(matches!(left, Failure::Stalled));
    }
}

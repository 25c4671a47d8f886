//! Reads a disk through the node API, again and again until it is complete.
//!
//! Invariant: what was received stays in the file, and the node continues it or begins again.
//! Failure: see the parent.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nodeapi::v1::{ExportDiskRequest, ForgetExportRequest, export_event::Event};
use tonic::{Code, Status};

use super::{End, WITHIN};
use crate::{NodeApi, eventually, in_time, program};

/// Between two messages.
const MESSAGE: Duration = Duration::from_secs(120);

pub(super) async fn run(dir: PathBuf, vm: String, target: PathBuf) -> End {
    let socket = dir.join("run/node/node.sock");
    let ended = eventually(WITHIN, "a disk is exported", || {
        attempt(&socket, &vm, &target)
    })
    .await;
    // The node would keep its copy for a while.
    let forgotten = eventually(WITHIN, "a copy is forgotten", || async {
        let node = NodeApi::connect(&socket).await?;
        let request = ForgetExportRequest {
            vm_uid: vm.clone(),
            ..ForgetExportRequest::default()
        };
        Ok(node.node.clone().forget_export(request).await.map(drop)?)
    })
    .await;
    let _ = fs::remove_file(&target);
    match (ended, forgotten) {
        (Ok(end), Ok(())) => end,
        (Err(error), _) | (_, Err(error)) => End::Wrong(format!("export of {vm}: {error:#}")),
    }
}

async fn attempt(socket: &Path, vm: &str, target: &Path) -> Result<End> {
    let node = NodeApi::connect(socket).await?;
    let length = fs::metadata(target).map_or(0, |file| file.len());
    let request = ExportDiskRequest {
        vm_uid: vm.to_owned(),
        received_bytes: length,
        received_sha256: match length {
            0 => String::new(),
            _ => sum(target)?,
        },
    };
    let events = node.node.clone().export_disk(request).await;
    let mut events = match events {
        Ok(events) => events.into_inner(),
        Err(status) => return refused(vm, status),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(target)?;
    loop {
        let message = in_time(MESSAGE, "a part of the disk", async {
            Ok(events.message().await)
        });
        let event = match message.await? {
            Ok(event) => event.context("the export ended too early")?.event,
            Err(status) => return refused(vm, status),
        };
        match event {
            Some(Event::Begin(begin)) => {
                file.set_len(begin.offset)?;
                file.seek(SeekFrom::Start(begin.offset))?;
            }
            Some(Event::Data(data)) => file.write_all(&data)?,
            Some(Event::End(end)) => return complete(vm, target, &file, &end.sha256),
            _ => {}
        }
    }
}

fn complete(vm: &str, target: &Path, file: &File, announced: &str) -> Result<End> {
    file.sync_all()?;
    let received = sum(target)?;
    if received != announced {
        let why = format!("the disk of {vm} was sent as {announced} and received as {received}");
        return Ok(End::Wrong(why));
    }
    let mut check = Command::new("qemu-img");
    let checked = program::output(check.args(["check", "-f", "qcow2"]).arg(target))?;
    let words = String::from_utf8_lossy(&checked.stdout);
    if !checked.status.success() {
        return Ok(End::Wrong(format!("the disk of {vm} is damaged: {words}")));
    }
    Ok(End::Complete(format!("export of {vm}, {received}")))
}

/// The machine runs again, or is deleted; all else may pass.
fn refused(vm: &str, status: Status) -> Result<End> {
    match status.code() {
        Code::FailedPrecondition | Code::NotFound => Ok(End::Refused(status.message().to_owned())),
        Code::InvalidArgument | Code::DataLoss => {
            Ok(End::Wrong(format!("export of {vm}: {status}")))
        }
        _ => bail!(status),
    }
}

/// SHA-256 of a file.
pub(super) fn sum(file: &Path) -> Result<String> {
    let sum = program::output(Command::new("sha256sum").arg(file))?;
    ensure!(sum.status.success(), "sha256sum: {sum:?}");
    let text = String::from_utf8(sum.stdout)?;
    let first = text.split_whitespace().next();
    Ok(first.context("no sum")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_than_announced_and_a_damaged_disk_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("disk");
        fs::write(&target, "no disk").unwrap();
        let file = File::open(&target).unwrap();
        let other = complete("vm", &target, &file, &"0".repeat(64)).unwrap();
        assert!(matches!(other, End::Wrong(why) if why.contains("received as")));
        let announced = sum(&target).unwrap();
        let damaged = complete("vm", &target, &file, &announced).unwrap();
        assert!(matches!(damaged, End::Wrong(why) if why.contains("damaged")));
    }

    #[test]
    fn a_node_that_is_away_is_tried_again_and_one_that_refuses_is_not() {
        assert!(refused("vm", Status::unavailable("away")).is_err());
        let runs = refused("vm", Status::failed_precondition("stop the machine")).unwrap();
        assert_eq!(runs, End::Refused("stop the machine".to_owned()));
        let wrong = refused("vm", Status::data_loss("another digest")).unwrap();
        assert!(matches!(wrong, End::Wrong(_)));
    }
}

//! Snapshots that clients fetch from the node, while the guest runs and writes.
//!
//! Invariant: what a client has received is what the guest had at the snapshot, whatever it has written since; the
//! machine's files belong to its user all the time.
//! Failure: the test names what was sent, or who has a file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{NodeApi, PodOptions, Stack, await_text, provision, uid};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, run_task_request::Kind};
use tonic::{Code, Status, Streaming};

use super::exports::{AT, COUNT, await_copies, read, sum_in_file, sum_of};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(180);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b2b";
const MIB: usize = 1 << 20;

fn snapshot(number: u32) -> String {
    uid(1000 + number)
}

async fn export(
    node: &NodeApi,
    number: u32,
    received: &Path,
) -> Result<Streaming<v1::ExportEvent>, Status> {
    let length = fs::metadata(received).map_or(0, |is| is.len());
    let request = v1::ExportSnapshotRequest {
        vm_uid: VM.to_owned(),
        snapshot_uid: snapshot(number),
        received_bytes: length,
        received_sha256: match length {
            0 => String::new(),
            _ => sum_of(received).unwrap_or_default(),
        },
    };
    let exported = node.node.clone().export_snapshot(request).await?;
    Ok(exported.into_inner())
}

/// Owner, group and mode of each file of the disk that is read.
fn owners(stack: &Stack) -> Result<Vec<(u32, u32, u32)>> {
    let root = stack.dir().join("state/disks").join(VM);
    let files = [root.join("root.qcow2"), root.join("layers/1.qcow2")];
    let owner = |file: &PathBuf| {
        let is = fs::metadata(file).with_context(|| file.display().to_string())?;
        Ok((is.uid(), is.gid(), is.mode() & 0o777))
    };
    files.iter().map(owner).collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_snapshot_of_a_guest_that_writes_is_fetched_over_a_kill_of_the_daemon() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let image = cri.await_image(&stack).await?;
    let Kind::Provision(disk) = provision(&image) else {
        bail!("no disk");
    };
    let disk = Kind::Provision(v1::Provision {
        size_bytes: 200 * MIB as u64,
        ..disk
    });
    node.done(&uid(1), VM, disk, TASK).await?;
    let mut pod = PodOptions::named("writer", &stack);
    let of_disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
    pod.annotations.extend([of_disk]);
    let (sandbox, container) = Box::pin(cri.boot(&pod, &image)).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;

    // What the guest writes does not compress, so that no part of it is left out.
    let write =
        format!("dd if=/dev/urandom of=/dev/vda bs=1M seek={AT} count={COUNT} conv=fsync 2>&1");
    cri.shell(&container, &write).await?;
    let sum = format!("dd if=/dev/vda bs=1M skip={AT} count={COUNT} 2>/dev/null | sha256sum");
    let written = cri.shell(&container, &sum).await?;
    let written = written.split_whitespace().next().context("a sum")?;
    for (task, number) in [(2, 1), (3, 2)] {
        let take = Kind::Snapshot(v1::Snapshot {
            uid: snapshot(number),
            quiesce_seconds: 0,
            memory: false,
        });
        node.done(&uid(task), VM, take, TASK).await?;
        cri.shell(&container, &write).await?;
    }
    let later = cri.shell(&container, &sum).await?;
    ensure!(!later.contains(written), "the guest wrote the same again");
    let before = owners(&stack)?;
    ensure!(
        before
            .iter()
            .all(|(user, _, mode)| *user != 0 && *mode == 0o600),
        "{before:?}"
    );

    // A daemon that is killed in the middle leaves nothing, and the client continues.
    let file = stack.dir().join("fetched.qcow2");
    let mut events = export(&node, 1, &file).await?;
    let part = read(&mut events, 5 * MIB).await?;
    fs::write(&file, &part.bytes)?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    await_copies(&stack, 0).await?;
    let mut events = export(&node, 1, &file).await?;
    let rest = read(&mut events, usize::MAX).await?;
    ensure!(rest.offset == part.bytes.len() as u64, "{}", rest.offset);
    fs::write(&file, [part.bytes, rest.bytes].concat())?;
    ensure!(rest.sum == Some(sum_of(&file)?), "{:?}", rest.sum);
    let fetched = sum_in_file(&file)?;
    ensure!(fetched == written, "it is not what the guest had");
    ensure!(owners(&stack)? == before, "{:?}", owners(&stack)?);

    // The machine has its disk as before, and the deletion of the snapshot ends the export.
    let now = cri.shell(&container, &sum).await?;
    ensure!(now == later, "the guest reads something else");
    cri.shell(&container, &write).await?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let mut events = export(&node, 1, Path::new("/none")).await?;
    read(&mut events, 1).await?;
    let delete = Kind::DeleteSnapshot(v1::DeleteSnapshot { uid: snapshot(1) });
    node.done(&uid(4), VM, delete, TASK).await?;
    let ended = read(&mut events, usize::MAX).await;
    let ended = ended.err().context("the export of a deleted snapshot")?;
    ensure!(ended.code() == Code::NotFound, "{ended:?}");
    await_copies(&stack, 0).await?;
    node.done(&uid(5), VM, Kind::DeleteDisk(v1::DeleteDisk {}), TASK)
        .await?;
    for number in 1..=5 {
        node.forget(&uid(number)).await?;
    }
    fs::remove_file(file)?;
    stack.await_clean().await?;
    stack.down()
}

//! A snapshot for which vmlet-guest freezes the file systems of a guest that writes all the time.
//!
//! Invariant: the superblock of a journaling file system says that its journal has to be applied, for as long as it
//! is mounted and not frozen. So the layers on the node show what a snapshot has.
//! Failure: the test names the task, what a layer has, or the guest that does not write.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{NodeApi, Stack, eventually, program, provision, uid};
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};

use super::guest::Debian;
use super::wanted;

const SOON: Duration = Duration::from_secs(180);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b2c";
const SECTOR: usize = 512;
/// Where the superblock is in its file system.
const SUPERBLOCK: usize = 1024;
/// Installs a program that writes down what it gets before and after a freeze.
const HOOK: &str = r"mkdir -p /etc/qemu/fsfreeze-hook.d && cd /etc/qemu/fsfreeze-hook.d &&
    printf '#!/bin/sh\necho $1 >>/var/log/hook\n' >log && chmod 755 log";
/// The flag of a journal that has to be applied.
const RECOVER: u8 = 4;

fn take(number: u32, quiesce_seconds: u32) -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: uid(1000 + number),
        quiesce_seconds,
        memory: false,
    })
}

/// The file that the guest writes to: that of the latest layer.
fn active(stack: &Stack) -> Result<PathBuf> {
    let disk = stack.dir().join("state/disks").join(VM);
    let number = |path: &Path| -> Option<u32> { path.file_stem()?.to_str()?.parse().ok() };
    let entries = std::fs::read_dir(disk.join("layers")).into_iter().flatten();
    let layers = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let latest = layers.max_by_key(|path| number(path));
    Ok(latest.unwrap_or_else(|| disk.join("root.qcow2")))
}

/// Whether the journal of the guest's file system, which begins at this sector, has to be applied in a layer.
fn needs_recovery(layer: &Path, sector: usize) -> Result<bool> {
    let copy = layer.with_file_name("superblock.test");
    let mut read = Command::new("qemu-img");
    read.args(["dd", "-U", "-f", "qcow2", "-O", "raw"]);
    let skipped = sector + SUPERBLOCK / SECTOR;
    // Some versions count what is skipped.
    read.arg(format!("bs={SECTOR}"))
        .arg(format!("skip={skipped}"));
    read.arg(format!("count={}", skipped + 2));
    read.arg(format!("if={}", layer.display()));
    let output = program::output_of(read.arg(format!("of={}", copy.display())))?;
    ensure!(output.status.success(), "{output:?}");
    let superblock = std::fs::read(&copy)?;
    std::fs::remove_file(copy)?;
    let magic = superblock.get(0x38..0x3a).context("no superblock")?;
    ensure!(
        magic == [0x53, 0xef],
        "{} has no superblock",
        layer.display()
    );
    Ok(superblock[0x60] & RECOVER != 0)
}

/// Waits until the guest has written something more.
async fn await_writing(debian: &Debian) -> Result<()> {
    let count = || debian.run("wc -l </var/log/written");
    let before: u64 = count().await?.trim().parse()?;
    eventually(SOON, "a guest that writes", || async {
        let now: u64 = count().await?.trim().parse()?;
        ensure!(now > before, "{now} lines");
        Ok(())
    })
    .await
}

/// A task of its own freezes the guest, beside a snapshot without a freeze; programs of the guest run before and after.
async fn held(stack: &Stack, node: &NodeApi, debian: &Debian, sector: usize) -> Result<()> {
    debian.run(HOOK).await?;
    let freeze = Kind::Freeze(v1::Freeze {
        uid: uid(1004),
        seconds: 60,
    });
    eventually(SOON, "a frozen guest", || async {
        let status = node.send(&uid(6), VM, freeze.clone()).await?;
        ensure!(status.snapshot.is_some(), "{status:?}");
        Ok(())
    })
    .await?;
    let layer = active(stack)?;
    node.done(&uid(7), VM, take(4, 0), SOON).await?;
    let cancel = v1::CancelTaskRequest { uid: uid(6) };
    node.node.clone().cancel_task(cancel).await?;
    let held = node.end(&uid(6), VM, freeze, SOON).await?;
    ensure!(held.state() == State::Success, "{held:?}");
    ensure!(held.snapshot.is_some_and(|held| held.quiesced));
    ensure!(!needs_recovery(&layer, sector)?, "it was frozen");
    await_writing(debian).await?;
    eventually(SOON, "the programs of the guest", || async {
        let log = debian.run("cat /var/log/hook").await?;
        ensure!(log == "freeze\nthaw\n", "{log:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_quiesced_snapshot_has_the_file_systems_that_its_guest_had_frozen() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.var("VMLET_DEBIAN_IMAGE")?.to_owned();
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    cri.pull(&image).await?;
    node.done(&uid(1), VM, provision(&image), SOON).await?;
    let annotations = [("vmlet.dev/vm-disk", VM)];
    let mut debian = Debian::boot(&stack, "quiesced", &wanted(&annotations, &[])).await?;
    debian.facts().await?;
    eventually(SOON, "vmlet-guest", || async {
        let agent = debian.run("readlink /proc/$PPID/exe").await?;
        ensure!(agent.trim().ends_with("/vmlet-guest"), "{agent}");
        Ok(())
    })
    .await?;
    let sector = debian.run("cat /sys/class/block/vda1/start").await?;
    let sector: usize = sector.trim().parse()?;
    let writes = "while :; do date >>/var/log/written; sync /var/log/written; done";
    let unit = format!("systemd-run --unit=writer sh -c '{writes}'");
    debian.run(&unit).await?;
    await_writing(&debian).await?;

    // As after a cut of the power.
    let layer = active(&stack)?;
    let taken = node.end(&uid(2), VM, take(1, 0), SOON).await?;
    ensure!(taken.state() == State::Success, "{taken:?}");
    ensure!(taken.snapshot.is_some_and(|taken| !taken.quiesced));
    ensure!(
        needs_recovery(&layer, sector)?,
        "it is mounted and written to"
    );

    let layer = active(&stack)?;
    let taken = node.end(&uid(3), VM, take(2, 30), SOON).await?;
    ensure!(taken.state() == State::Success, "{taken:?}");
    ensure!(taken.snapshot.is_some_and(|taken| taken.quiesced));
    ensure!(!needs_recovery(&layer, sector)?, "it was frozen");
    await_writing(&debian).await?;
    ensure!(needs_recovery(&active(&stack)?, sector)?, "it is thawed");
    held(&stack, &node, &debian, sector).await?;

    // The guest is frozen, and no record says so.
    stack.arm("quiesce.frozen")?;
    let begun = node.send(&uid(4), VM, take(3, 30)).await;
    begun.context("the task is taken")?;
    eventually(SOON, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await?;
    debian.revived(&stack).await?;
    await_writing(&debian).await?;
    let node = stack.node().await?;
    // A guest that was frozen still would refuse.
    let taken = node.end(&uid(4), VM, take(3, 30), SOON).await?;
    ensure!(taken.state() == State::Success, "{taken:?}");
    ensure!(taken.snapshot.is_some_and(|taken| taken.quiesced));
    await_writing(&debian).await?;

    debian.end().await?;
    node.done(&uid(5), VM, Kind::DeleteDisk(v1::DeleteDisk {}), SOON)
        .await?;
    for number in 1..=7 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

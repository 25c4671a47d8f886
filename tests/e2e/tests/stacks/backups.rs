//! Backups of a machine that runs: full, incremental, over a daemon that is killed at each step, verified, exported, and
//! restored to a machine of its own.
//!
//! Invariant: what the guest of the restored machine reads is what the guest had written before the backup. An increment
//! reads what was changed, and at most as much again.
//! Failure: the test names the task, the crash point, or what the guest reads.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{PodOptions, Stack, await_text, eventually, uid};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};

use crate::backup_exports;
use crate::exports::await_copies;
use crate::linked_disk::{IMAGE_SUM, linked};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(300);
const DEATH: Duration = Duration::from_secs(120);
pub(crate) const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b3a";
pub(crate) const NEW: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b3b";
pub(crate) const NAME: &str = "default/vm";
/// Of the stack's configuration.
const TARGET: &str = "local";
const SIZE: u64 = 10 << 30;
/// Where the guest writes, and how much, in MiB.
pub(crate) const AT: u32 = 2048;
pub(crate) const CHANGED: u64 = 64;

/// The number of the object of a backup; tasks have lower ones.
pub(crate) fn object(number: u32) -> String {
    uid(1_000_000 + number)
}

/// A disk over the image that is larger than what a backup may read of it.
pub(crate) fn disk(image: &str) -> Result<Kind> {
    let Kind::Provision(disk) = linked(image) else {
        anyhow::bail!("no disk");
    };
    Ok(Kind::Provision(v1::Provision {
        size_bytes: SIZE,
        ..disk
    }))
}

fn backup(number: u32) -> Kind {
    Kind::Backup(v1::Backup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
        full: false,
        // The guest has no file system that it can freeze.
        quiesce_seconds: 0,
        most_increments: 0,
    })
}

fn verify(number: u32) -> Kind {
    Kind::VerifyBackup(v1::VerifyBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
        sha256: String::new(),
    })
}

fn restore(number: u32, sha256: &str) -> Kind {
    Kind::RestoreBackup(v1::RestoreBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        source_vm_uid: VM.to_owned(),
        size_bytes: 0,
        vm_name: "default/restored".to_owned(),
        sha256: sha256.to_owned(),
    })
}

fn delete(number: u32) -> Kind {
    Kind::DeleteBackup(v1::DeleteBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
    })
}

/// Tasks of one stack, each with a number of its own.
pub(crate) struct Tasks<'a> {
    stack: &'a Stack,
    last: u32,
}

impl<'a> Tasks<'a> {
    pub(crate) const fn new(stack: &'a Stack) -> Self {
        Self { stack, last: 0 }
    }

    pub(crate) async fn end(&mut self, vm: &str, kind: Kind) -> Result<v1::TaskStatus> {
        self.last += 1;
        let task = uid(self.last);
        let node = self.stack.node().await?;
        let ended = node.end(&task, vm, kind, TASK).await?;
        node.forget(&task).await?;
        Ok(ended)
    }

    pub(crate) async fn done(&mut self, vm: &str, kind: Kind) -> Result<v1::TaskStatus> {
        let ended = self.end(vm, kind).await?;
        ensure!(ended.state() == State::Success, "{ended:?}");
        Ok(ended)
    }

    async fn backup(&mut self, number: u32) -> Result<v1::DiskBackup> {
        let done = self.done(VM, backup(number)).await?;
        done.backup.context("a backup that was written")
    }

    /// The daemon is killed at a point of the task, and the next one carries it to its end.
    pub(crate) async fn killed_at(
        &mut self,
        point: &str,
        vm: &str,
        kind: Kind,
    ) -> Result<v1::TaskStatus> {
        let task = self.die_at(point, vm, &kind).await?;
        let ended = self.revived(&task, vm, kind).await?;
        ensure!(ended.state() == State::Success, "{ended:?}");
        Ok(ended)
    }

    /// The daemon is killed at a point of the task, which has this name.
    pub(crate) async fn die_at(&mut self, point: &str, vm: &str, kind: &Kind) -> Result<String> {
        self.last += 1;
        let task = uid(self.last);
        self.stack.arm(point)?;
        // The daemon may end before it has answered.
        let _ = self.stack.node().await?.send(&task, vm, kind.clone()).await;
        eventually(DEATH, "the death of the daemon", || async {
            ensure!(!self.stack.is_alive("vmlet"));
            Ok(())
        })
        .await?;
        ensure!(!self.stack.is_armed(point), "nothing reached {point}");
        Ok(task)
    }

    /// The next daemon carries the task to its end.
    pub(crate) async fn revived(&self, task: &str, vm: &str, kind: Kind) -> Result<v1::TaskStatus> {
        self.stack.restart("vmlet")?;
        self.stack.cri().await?.await_ready().await?;
        let node = self.stack.node().await?;
        let ended = node.end(task, vm, kind, TASK).await?;
        node.forget(task).await?;
        Ok(ended)
    }
}

pub(crate) async fn boot(stack: &Stack, vm: &str, name: &str) -> Result<(String, String)> {
    let cri = stack.cri().await?;
    let mut pod = PodOptions::named(name, stack);
    let disk = ("vmlet.dev/vm-disk".to_owned(), vm.to_owned());
    pod.annotations.extend([disk]);
    let (sandbox, container) = Box::pin(cri.boot(&pod, stack.image()?)).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;
    Ok((sandbox, container))
}

/// A command in the guest, also after a restart of the daemon.
pub(crate) async fn shell(stack: &Stack, container: &str, line: &str) -> Result<String> {
    let cri = stack.cri().await?;
    cri.await_agent(container).await?;
    cri.shell(container, line).await
}

/// The guest writes something new that does not compress; the sum of it as it is on the disk.
pub(crate) async fn write(stack: &Stack, container: &str, mib: u64) -> Result<String> {
    let write =
        format!("dd if=/dev/urandom of=/dev/vda bs=1M seek={AT} count={mib} conv=fsync 2>&1");
    shell(stack, container, &write).await?;
    sum(stack, container).await
}

pub(crate) async fn sum(stack: &Stack, container: &str) -> Result<String> {
    let read = format!(
        "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda bs=1M skip={AT} count={CHANGED} 2>/dev/null | sha256sum"
    );
    let sum = shell(stack, container, &read).await?;
    Ok(sum.split_whitespace().next().context("a sum")?.to_owned())
}

fn stored(stack: &Stack, number: u32, file: &str) -> PathBuf {
    let machine = stack.dir().join("backups").join(VM);
    machine.join(object(number)).join(file)
}

/// What attempts have left in the target.
fn left(stack: &Stack) -> Result<Vec<String>> {
    let names = std::fs::read_dir(stack.dir().join("backups").join(VM))?;
    let names = names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<Vec<_>> = names.collect();
    let is_left = |name: &String| name.starts_with('.');
    Ok(names?.into_iter().filter(is_left).collect())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_is_backed_up_while_it_runs_and_restored_to_another() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let image = stack.image()?.to_owned();
    cri.pull(&image).await?;
    let mut tasks = Tasks::new(&stack);
    tasks.done(VM, disk(&image)?).await?;
    let (sandbox, container) = boot(&stack, VM, "first").await?;
    let image_sum = shell(&stack, &container, IMAGE_SUM).await?;

    let full = tasks.backup(1).await?;
    ensure!(full.full && full.running, "{full:?}");
    write(&stack, &container, CHANGED).await?;
    let second = tasks.backup(2).await?;
    eprintln!(
        "read after {CHANGED} MiB of changes in 10 GiB: {} bytes",
        second.read_bytes
    );
    let most = 2 * (CHANGED << 20);
    ensure!(
        second.parent_uid == object(1) && second.read_bytes <= most,
        "{second:?}"
    );
    ensure!(second.read_bytes >= CHANGED << 20, "{second:?}");

    let points = [
        "taken", "copied", "written", "noted", "renamed", "named", "kept",
    ];
    let mut written = String::new();
    for (number, point) in (3..).zip(points) {
        let point = format!("backup.{point}");
        written = write(&stack, &container, 2).await?;
        let killed = tasks.killed_at(&point, VM, backup(number)).await;
        let killed = killed.with_context(|| format!("killed at {point}"))?;
        let done = killed.backup.context("a backup")?;
        ensure!(done.parent_uid == object(number - 1), "{point}: {done:?}");
        ensure!(left(&stack)?.is_empty(), "{point}: {:?}", left(&stack)?);
    }
    ensure!(
        sum(&stack, &container).await? == written,
        "the guest reads something else"
    );
    // What the guest writes now is in no backup.
    write(&stack, &container, 1).await?;

    let last = 9;
    let verified = tasks.done(VM, verify(last)).await?;
    let verified = verified.backup.context("a backup that was verified")?;
    let file = stored(&stack, 4, "0.qcow2");
    let mut bytes = std::fs::read(&file)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes)?;
    let words = format!("file 0.qcow2 of backup {}", object(4));
    let refused = backup_exports::refusal(&stack, last, TARGET).await?;
    ensure!(refused.contains(&words), "{refused}");
    for (vm, kind) in [(VM, verify(last)), (NEW, restore(last, ""))] {
        let spoiled = tasks.end(vm, kind).await?;
        ensure!(
            spoiled.message.contains(&words) && !spoiled.transient,
            "{spoiled:?}"
        );
    }
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes)?;

    backup_exports::begin(&stack, last, TARGET).await?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    stack.cri().await?.await_ready().await?;
    await_copies(&stack, 0).await?;
    let fetched = backup_exports::complete(&stack, last, TARGET).await?;
    let sum_of_it = backup_exports::sum_in(&fetched)?;
    ensure!(sum_of_it == written, "the file is not what was backed up");

    for point in ["recorded", "staged", "joined", "ready"] {
        let point = format!("backup.restore.{point}");
        let restored = tasks
            .killed_at(&point, NEW, restore(last, &verified.sha256))
            .await;
        restored.with_context(|| format!("killed at {point}"))?;
        if point != "backup.restore.ready" {
            tasks.done(NEW, Kind::DeleteDisk(v1::DeleteDisk {})).await?;
        }
    }
    backup_exports::compare(&stack, &fetched, NEW)?;
    std::fs::remove_file(fetched)?;
    let (other, restored) = boot(&stack, NEW, "restored").await?;
    ensure!(
        sum(&stack, &restored).await? == written,
        "it is not what was backed up"
    );
    ensure!(
        shell(&stack, &restored, IMAGE_SUM).await? == image_sum,
        "the image differs"
    );

    let cri = stack.cri().await?;
    for sandbox in [sandbox, other] {
        cri.stop_pod(&sandbox).await?;
        cri.remove_pod(&sandbox).await?;
    }
    let needed = tasks.end(VM, delete(8)).await?;
    ensure!(
        needed.transient && needed.message.contains("is based on it"),
        "{needed:?}"
    );
    let killed = tasks.killed_at("backup.unnamed", VM, delete(9)).await;
    killed.context("killed at backup.unnamed")?;
    for number in (1..9).rev() {
        tasks.done(VM, delete(number)).await?;
    }
    let rest = std::fs::read_dir(stack.dir().join("backups").join(VM))?.count();
    ensure!(rest == 0, "{rest} entries are left in the target");
    for vm in [VM, NEW] {
        tasks.done(vm, Kind::DeleteDisk(v1::DeleteDisk {})).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

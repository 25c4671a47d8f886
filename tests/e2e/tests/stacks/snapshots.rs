//! Snapshots of the disk of a machine: taken while its guest writes, reverted to, and deleted.
//!
//! Invariant: the guest reads after a revert what it had written before the snapshot, and nothing of what it
//! wrote later; a deletion changes nothing that it reads.
//! Failure: the test names the task, or what the guest reads.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, eventually, uid};
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};

use crate::linked_disk::{IMAGE_SUM, SIZE, linked};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(240);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn snapshot(number: u32) -> String {
    uid(1000 + number)
}

fn take(number: u32, quiesce_seconds: u32) -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: snapshot(number),
        quiesce_seconds,
        memory: false,
    })
}

fn revert(number: u32) -> Kind {
    Kind::Revert(v1::Revert {
        uid: snapshot(number),
        memory: false,
    })
}

fn delete(number: u32) -> Kind {
    Kind::DeleteSnapshot(v1::DeleteSnapshot {
        uid: snapshot(number),
    })
}

/// A machine, one after the other, on the disk of the stack.
struct Machine<'a> {
    cri: &'a Cri,
    sandbox: String,
    container: String,
}

impl<'a> Machine<'a> {
    async fn boot(stack: &Stack, cri: &'a Cri, image: &str, name: &str) -> Result<Self> {
        let mut pod = PodOptions::named(name, stack);
        let disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
        pod.annotations.extend([disk]);
        let (sandbox, container) = Box::pin(cri.boot(&pod, image)).await?;
        await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
        cri.await_agent(&container).await?;
        Ok(Self {
            cri,
            sandbox,
            container,
        })
    }

    /// The guest writes a word beyond what its image has, and it is on its disk.
    async fn write(&self, place: u32, word: &str) -> Result<()> {
        let write = format!("echo {word} | dd of=/dev/vda bs=512 seek={place} conv=fsync,notrunc");
        self.cri.shell(&self.container, &write).await.map(drop)
    }

    async fn reads(&self, place: u32, word: &str) -> Result<()> {
        let read = format!(
            "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip={place} count=1 2>/dev/null | tr -d '\\0'"
        );
        let found = self.cri.shell(&self.container, &read).await?;
        ensure!(
            found.trim() == word,
            "{place}: {found:?} in place of {word:?}"
        );
        Ok(())
    }

    async fn image_sum(&self) -> Result<String> {
        self.cri.shell(&self.container, IMAGE_SUM).await
    }

    async fn end(self) -> Result<()> {
        self.cri.stop_pod(&self.sandbox).await?;
        Ok(self.cri.remove_pod(&self.sandbox).await?)
    }
}

fn layers(stack: &Stack) -> Result<Vec<PathBuf>> {
    let directory = stack.dir().join("state/disks").join(VM).join("layers");
    let entries = std::fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// No user that another machine may get has a file of the disk.
fn ensure_taken_back(stack: &Stack) -> Result<()> {
    let root = stack.dir().join("state/disks").join(VM).join("root.qcow2");
    for file in layers(stack)?.into_iter().chain([root]) {
        let owner = std::fs::metadata(&file)?.uid();
        ensure!(owner == 0, "user {owner} has {}", file.display());
    }
    Ok(())
}

/// A snapshot that its guest does not freeze for.
fn ensure_not_quiesced(task: &v1::TaskStatus, reason: &str) -> Result<()> {
    ensure!(task.state() == State::Error && !task.transient, "{task:?}");
    for words in ["failed to freeze", "without quiesce", reason] {
        ensure!(task.message.contains(words), "{task:?}");
    }
    Ok(())
}

async fn disk(node: &NodeApi) -> Result<v1::Disk> {
    let disks = node.disks().await?;
    disks.into_iter().next().context("the disk is listed")
}

/// A layer that is only read, and then the one below the guest's own, while the guest writes.
async fn merge_while_it_runs(stack: &Stack, node: &NodeApi, machine: &Machine<'_>) -> Result<()> {
    let before = layers(stack)?.len();
    let listed = disk(node).await?.snapshots;
    node.done(&uid(12), VM, take(5, 0), TASK).await?;
    machine.write(200_000, "five").await?;
    machine.write(220_000, "five").await?;
    node.done(&uid(13), VM, take(6, 0), TASK).await?;
    machine.write(200_000, "six").await?;
    for (task, number) in [(14, 5), (15, 6)] {
        let begun = Instant::now();
        node.done(&uid(task), VM, delete(number), TASK).await?;
        eprintln!("snapshot {number} deleted in {:?}", begun.elapsed());
        machine.reads(200_000, "six").await?;
        machine.reads(220_000, "five").await?;
    }
    for line in stack.log("vmlet").lines() {
        if line.contains("layers of a running machine merged") {
            eprintln!("{line}");
        }
    }
    ensure!(layers(stack)?.len() == before, "{:?}", layers(stack)?);
    ensure!(disk(node).await?.snapshots.len() == listed.len());
    machine.write(200_000, "ten").await?;
    machine.write(200_000, "six").await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_finds_what_it_had_at_a_snapshot_whatever_is_killed() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.pull(&image).await?;
    node.done(&uid(1), VM, linked(&image), TASK).await?;
    let machine = Machine::boot(&stack, &cri, &image, "first").await?;
    let image_sum = machine.image_sum().await?;
    machine.write(200_000, "one").await?;
    // The guest goes on to write.
    let writes = "(while :; do dd if=/dev/urandom of=/dev/vda bs=64k seek=1300 count=16 conv=fsync,notrunc; done) \
                  >/dev/null 2>&1 &";
    cri.shell(&machine.container, writes).await?;
    let first = node.end(&uid(2), VM, take(1, 0), TASK).await?;
    ensure!(first.state() == State::Success, "{first:?}");
    let taken = first.snapshot.context("it is reported")?;
    ensure!(taken.running && !taken.quiesced && taken.virtual_bytes == SIZE);
    machine.write(200_000, "two").await?;
    machine.write(210_000, "later").await?;

    // The emulator has the new layer, and no record says so.
    stack.arm("node.snapshot.switched")?;
    let begun = node.send(&uid(3), VM, take(2, 0)).await;
    begun.context("the task is taken")?;
    eventually(TASK, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    let second = node.end(&uid(3), VM, take(2, 0), TASK).await?;
    ensure!(second.state() == State::Success, "{second:?}");
    let machine = Machine {
        cri: &cri,
        ..machine
    };
    machine.write(200_000, "three").await?;

    // The kernel freezes no FAT, and the guest has nothing else.
    let refused = node.end(&uid(4), VM, take(3, 30), TASK).await?;
    ensure_not_quiesced(&refused, "no file system that it can freeze")?;
    ensure!(disk(&node).await?.snapshots.len() == 2);
    machine.write(200_000, "four").await?;
    machine.reads(200_000, "four").await?;
    merge_while_it_runs(&stack, &node, &machine).await?;
    let refused = node.end(&uid(5), VM, revert(1), TASK).await?;
    ensure!(
        refused.state() == State::Error && refused.transient,
        "{refused:?}"
    );
    machine.end().await?;
    ensure_taken_back(&stack)?;
    let machine = Machine::boot(&stack, &cri, &image, "merged").await?;
    machine.reads(200_000, "six").await?;
    machine.reads(220_000, "five").await?;
    ensure!(machine.image_sum().await? == image_sum);
    machine.end().await?;
    ensure_taken_back(&stack)?;

    node.done(&uid(6), VM, revert(1), TASK).await?;
    let machine = Machine::boot(&stack, &cri, &image, "second").await?;
    machine.reads(200_000, "one").await?;
    machine.reads(210_000, "").await?;
    ensure!(machine.image_sum().await? == image_sum);
    machine.end().await?;
    ensure_taken_back(&stack)?;

    node.done(&uid(7), VM, revert(2), TASK).await?;
    for (task, number) in [(8, 1), (10, 2)] {
        node.done(&uid(task), VM, delete(number), TASK).await?;
    }
    let listed = disk(&node).await?;
    ensure!(listed.snapshots.is_empty() && listed.current_snapshot.is_empty());
    ensure!(layers(&stack)?.is_empty(), "{:?}", layers(&stack)?);
    let machine = Machine::boot(&stack, &cri, &image, "third").await?;
    machine.reads(200_000, "two").await?;
    machine.reads(210_000, "later").await?;
    ensure!(machine.image_sum().await? == image_sum);
    // Its agents end, and none comes back.
    let ends = "rm /bin/vmlet-guest /bin/qemu-ga; \
                (sleep 0.5; kill -9 $(pidof vmlet-guest) $(pidof qemu-ga)) >/dev/null 2>&1 &";
    cri.shell(&machine.container, ends).await?;
    eventually(BOOT, "a guest without agents", || async {
        let answer = cri.exec(&machine.container, &["true"], 5).await;
        ensure!(answer.is_err(), "{answer:?}");
        Ok(())
    })
    .await?;
    let refused = node.end(&uid(9), VM, take(4, 5), TASK).await?;
    ensure_not_quiesced(&refused, "")?;
    ensure!(disk(&node).await?.snapshots.is_empty());
    machine.end().await?;

    node.done(&uid(11), VM, Kind::DeleteDisk(v1::DeleteDisk {}), TASK)
        .await?;
    for number in 1..=15 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

//! Snapshots with the memory of a guest: taken while it runs, and resumed from as often as its machine reverts.
//!
//! Invariant: the guest has in memory and on its disk what it had at the moment of the snapshot, and does not boot. What
//! it did later is in neither.
//! Failure: the test names the task, or what the guest has.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, eventually, ticks, uid};
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};

use crate::linked_disk::linked;

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(240);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// Sector of the disk that the guest writes to, beyond what its image has.
const SECTOR: u32 = 200_000;

fn snapshot(number: u32) -> String {
    uid(1000 + number)
}

fn take(number: u32) -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: snapshot(number),
        quiesce_seconds: 0,
        memory: true,
    })
}

fn revert(number: u32) -> Kind {
    Kind::Revert(v1::Revert {
        uid: snapshot(number),
        memory: true,
    })
}

fn delete(number: u32) -> Kind {
    Kind::DeleteSnapshot(v1::DeleteSnapshot {
        uid: snapshot(number),
    })
}

struct Machine<'a> {
    cri: &'a Cri,
    pod: PodOptions,
    sandbox: String,
    container: String,
}

impl<'a> Machine<'a> {
    /// In a new pod, which boots or resumes.
    async fn start(
        stack: &Stack,
        cri: &'a Cri,
        image: &str,
        name: &str,
        resumes: bool,
    ) -> Result<Self> {
        let mut pod = PodOptions::named(name, stack);
        let mut set = |key: &str, value: &str| pod.annotations.insert(key.into(), value.into());
        set("vmlet.dev/vm-disk", VM);
        if resumes {
            set("vmlet.dev/restore", "true");
        }
        let started = Box::pin(cri.boot(&pod, image)).await?;
        if !resumes {
            await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
        }
        cri.await_agent(&started.1).await?;
        Ok(Self {
            cri,
            pod,
            sandbox: started.0,
            container: started.1,
        })
    }

    /// The guest writes a word to a file that is in its memory alone, and to its disk.
    async fn write(&self, word: &str) -> Result<()> {
        let write = format!(
            "echo {word} >/marker; echo {word} | dd of=/dev/vda bs=512 seek={SECTOR} conv=fsync,notrunc"
        );
        self.cri.shell(&self.container, &write).await.map(drop)
    }

    async fn has(&self, word: &str) -> Result<()> {
        let read = format!(
            "echo 3 >/proc/sys/vm/drop_caches; cat /marker; dd if=/dev/vda bs=512 skip={SECTOR} count=1 2>/dev/null | tr -d '\\0'"
        );
        let found = self.cri.shell(&self.container, &read).await?;
        let words: Vec<_> = found.split_whitespace().collect();
        ensure!(words == [word, word], "{words:?} in place of {word}");
        Ok(())
    }

    /// The guest prints on, and has not booted in this pod.
    async fn goes_on(&self) -> Result<()> {
        let log = || std::fs::read_to_string(self.pod.log(0));
        eventually(BOOT, "a tick", || async {
            ticks(&log()?).first().copied().context("no tick yet")
        })
        .await?;
        let log = log()?;
        ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
        Ok(())
    }

    /// What the emulator shows as the ID of this content of the disk; the guest has the device.
    async fn generation(&self, stack: &Stack) -> Result<String> {
        let device = "cat /sys/bus/acpi/devices/QEMUVGID:00/hid";
        let hid = self.cri.shell(&self.container, device).await?;
        ensure!(hid.trim() == "QEMUVGID", "{hid}");
        stack.generation(&format!("vmlet-{VM}"))
    }

    async fn end(self) -> Result<()> {
        self.cri.stop_pod(&self.sandbox).await?;
        Ok(self.cri.remove_pod(&self.sandbox).await?)
    }
}

fn memories(stack: &Stack) -> PathBuf {
    stack.dir().join("state/disks").join(VM).join("memory")
}

async fn taken(node: &NodeApi, task: u32, number: u32) -> Result<v1::DiskSnapshot> {
    let ended = node.end(&uid(task), VM, take(number), TASK).await?;
    ensure!(ended.state() == State::Success, "{ended:?}");
    let taken = ended.snapshot.context("it is reported")?;
    ensure!(taken.running && taken.memory_bytes > 1 << 20, "{taken:?}");
    Ok(taken)
}

/// The emulator writes to the new layer, and no record says so.
async fn taken_by_a_daemon_that_dies(stack: &Stack) -> Result<()> {
    stack.arm("node.snapshot.switched")?;
    let node = stack.node().await?;
    let begun = node.send(&uid(3), VM, take(2)).await;
    begun.context("the task is taken")?;
    eventually(TASK, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await?;
    stack.restart("vmlet")?;
    stack.cri().await?.await_ready().await?;
    taken(&stack.node().await?, 3, 2).await.map(drop)
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_continues_from_the_moment_of_its_snapshot() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    {
        let cri = stack.cri().await?;
        let node = stack.node().await?;
        cri.pull(&image).await?;
        node.done(&uid(1), VM, linked(&image), TASK).await?;
    }
    let cri = stack.cri().await?;
    let machine = Machine::start(&stack, &cri, &image, "first", false).await?;
    machine.write("one").await?;
    let first = machine.generation(&stack).await?;
    taken(&stack.node().await?, 2, 1).await?;
    machine.has("one").await?;
    machine.write("two").await?;
    taken_by_a_daemon_that_dies(&stack).await?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let machine = Machine {
        cri: &cri,
        ..machine
    };
    machine.has("two").await?;
    machine.write("three").await?;
    let later = machine.generation(&stack).await?;
    ensure!(later == first, "{later} after {first}");
    let refused = node.end(&uid(4), VM, revert(1), TASK).await?;
    ensure!(
        refused.state() == State::Error && refused.transient,
        "{refused:?}"
    );
    machine.end().await?;

    let mut generations = BTreeSet::from([first]);
    for (task, number, word) in [(5, 1, "one"), (6, 2, "two"), (7, 1, "one")] {
        node.done(&uid(task), VM, revert(number), TASK).await?;
        let disks = node.disks().await?;
        let disk = disks.first().context("the disk is listed")?;
        ensure!(disk.saved_memory && disk.current_snapshot == snapshot(number));
        let name = format!("resumes-{task}");
        let machine = Machine::start(&stack, &cri, &image, &name, true).await?;
        machine.has(word).await?;
        machine.goes_on().await?;
        let generation = machine.generation(&stack).await?;
        ensure!(generations.insert(generation), "{generations:?}");
        machine.write("later").await?;
        machine.end().await?;
    }
    // Without the memory the same disk boots.
    node.done(&uid(8), VM, revert(2), TASK).await?;
    let discard = Kind::Restore(v1::Restore { discard: true });
    node.done(&uid(9), VM, discard, TASK).await?;
    let machine = Machine::start(&stack, &cri, &image, "boots", false).await?;
    let found = machine
        .cri
        .shell(&machine.container, "cat /marker || echo none");
    ensure!(found.await?.trim() == "none", "it has no memory");
    machine.end().await?;

    for (task, number) in [(10, 1), (11, 2)] {
        node.done(&uid(task), VM, delete(number), TASK).await?;
    }
    ensure!(!memories(&stack).exists(), "memory is left");
    let off = node.end(&uid(12), VM, take(3), TASK).await?;
    ensure!(off.message.contains("is off"), "{off:?}");
    let deleted = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(13), VM, deleted, TASK).await?;
    for number in 1..=13 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

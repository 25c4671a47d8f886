//! The power of a node is cut: what the daemon, libvirt and the emulators have not synced is lost.
//!
//! Invariant: the state directory is an ext4 file system of its own whose power the kernel cuts ([`Ext4`]);
//! all processes end with it. What a task or a request has reported is so after the next boot. A task that
//! was interrupted ends as it would have. A guest boots from the disk that its last boot left, or resumes
//! where it was; in the end nothing is left.
//! Failure: the step or the crash point, and what was lost, or came back.

use std::cell::Cell;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{PodOptions, Stack, await_text, eventually, program, provision, ticks, uid};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};
use testfs::Ext4;

/// Those that have files in the directory, in the order in which they start.
const PROGRAMS: [&str; 3] = ["libvirtd", "vmlet-tapmanager", "vmlet"];
/// Of the file system, in MiB.
const SIZE: u64 = 3072;
const SOON: Duration = Duration::from_secs(180);
const BOOT: Duration = Duration::from_secs(300);
/// How long a daemon whose request failed may take to be dead.
const DEATH: Duration = Duration::from_secs(30);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// The number of the snapshot; tasks have lower ones.
const SNAPSHOT: u32 = 1_000_000;
const LONG: &str = "VMLET_TEST_LONG";

/// Crash points of each kind of change: files written and not named, named and not recorded, recorded and not removed.
const POINTS: [&str; 5] = [
    "node.provision.written",
    "node.provision.renamed",
    "node.save.renamed",
    "node.snapshot.layer",
    "node.delete.files",
];
/// The others that a machine reaches here.
const OTHERS: [&str; 11] = [
    "node.provision.recorded",
    "node.provision.pinned",
    "node.provision.ready",
    "node.disk.taken",
    "node.save.recorded",
    "node.save.written",
    "node.resume.used",
    "node.snapshot.recorded",
    "node.snapshot.committed",
    "node.delete.recorded",
    "node.delete.gone",
];

#[tokio::test]
#[ignore = "needs root"]
async fn what_was_reported_is_so_after_a_power_cut() -> Result<()> {
    let node = Node::up().await?;
    let cri = node.stack.cri().await?;
    cri.remove_image(&node.image).await?;
    cri.pull(&node.image).await?;
    node.cut().await.context("after a pull")?;
    let image = node.stack.cri().await?.image(&node.image).await?;
    ensure!(image.is_some(), "the image is gone");

    node.done(provision(&node.image)).await?;
    node.cut().await.context("after a provision")?;
    ensure!(node.disk().await?.is_some_and(|disk| disk.complete));
    ensure!(node.boot().await? == 1, "the first boot");
    node.cut().await.context("while the guest runs")?;
    node.check_file()?;
    ensure!(node.boot().await? == 2, "the guest's own write is lost");
    let saved = node.save(None).await?;
    ensure!(saved.state() == State::Success, "{saved:?}");
    node.cut().await.context("after a save")?;
    node.resume().await?;
    node.remove_pods().await?;

    node.done(snapshot()).await?;
    node.cut().await.context("after a snapshot")?;
    ensure!(node.boot().await? == 3, "the disk of the snapshot");
    node.remove_pods().await?;
    node.done(revert()).await?;
    node.cut().await.context("after a revert")?;
    ensure!(node.boot().await? == 3, "the disk is that of the snapshot");
    node.remove_pods().await?;
    node.done(delete_snapshot()).await?;
    node.cut().await.context("after the end of a snapshot")?;
    ensure!(node.boot().await? == 4, "the snapshot was merged");
    node.remove_pods().await?;
    node.done(Kind::DeleteDisk(v1::DeleteDisk {})).await?;
    node.cut().await.context("after a deletion")?;
    node.down().await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_task_that_a_power_cut_interrupts_ends_well() -> Result<()> {
    let node = Node::up().await?;
    let others = match std::env::var_os(LONG) {
        Some(_) => &OTHERS[..],
        None => &[],
    };
    for point in POINTS.iter().chain(others) {
        node.stack.arm(point)?;
        let lived = node.live(point).await;
        lived.with_context(|| format!("a power cut at {point}"))?;
        ensure!(!node.stack.is_armed(point), "nothing reached {point}");
    }
    node.down().await
}

/// A node with its state on a file system whose power is cut.
struct Node {
    stack: Stack,
    state: Ext4,
    image: String,
    /// How many names were given to pods and tasks.
    names: Cell<u32>,
}

impl Node {
    async fn up() -> Result<Self> {
        let stack = Stack::up()?;
        let image = stack.cri().await?.await_image(&stack).await?;
        for program in PROGRAMS.into_iter().rev() {
            stack.kill(program, Signal::SIGTERM).await?;
        }
        let state = Ext4::over(&stack.dir().join("state"), SIZE)?;
        let node = Self {
            stack,
            state,
            image,
            names: Cell::new(0),
        };
        node.start().await?;
        Ok(node)
    }

    async fn start(&self) -> Result<()> {
        for program in PROGRAMS {
            self.stack.restart(program)?;
        }
        self.stack.cri().await?.await_ready().await
    }

    /// Cuts the power and boots again.
    async fn cut(&self) -> Result<()> {
        self.state.cut()?;
        self.stack.end_all().await?;
        self.stack.begin_boot()?;
        let recovered = eventually(SOON, "the file system", || async { self.state.recover() });
        recovered.await?;
        self.start().await
    }

    /// The machine as far as the crash point needs it. Each step that ends with the daemon is repeated after a cut.
    async fn live(&self, point: &str) -> Result<()> {
        self.done(provision(&self.image))
            .await
            .context("provision")?;
        ensure!(self.disk().await?.is_some_and(|disk| disk.complete));
        let mut boots = 0;
        if ["node.save.", "node.resume."]
            .iter()
            .any(|part| point.starts_with(part))
        {
            boots = self.boot().await.context("before the save")?;
            let saved = self.save(Some(point)).await?;
            let has_memory = self.disk().await?.is_some_and(|disk| disk.saved_memory);
            ensure!(has_memory || saved.state() != State::Success, "{saved:?}");
            if has_memory {
                self.resume_or_boot().await.context("after the save")?;
            }
            self.remove_pods().await?;
        }
        if point.starts_with("node.snapshot.") {
            self.done(snapshot()).await.context("snapshot")?;
            let disk = self.disk().await?.context("no disk")?;
            let taken: Vec<_> = disk.snapshots.iter().map(|one| &one.uid).collect();
            ensure!(taken == [&uid(SNAPSHOT)], "{taken:?}");
            self.done(delete_snapshot()).await.context("its deletion")?;
        }
        if !point.starts_with("node.delete.") {
            let next = self.boot().await.context("boot")?;
            ensure!(next > boots, "boot {next} after {boots}");
            self.remove_pods().await?;
        }
        let deleted = self.done(Kind::DeleteDisk(v1::DeleteDisk {})).await;
        deleted.context("deletion")?;
        ensure!(self.disk().await?.is_none(), "the disk is back");
        self.stack.await_clean().await
    }

    async fn down(self) -> Result<()> {
        ensure!(self.disk().await?.is_none(), "the disk is back");
        self.remove_pods().await?;
        self.stack.await_clean().await?;
        for program in PROGRAMS.into_iter().rev() {
            self.stack.kill(program, Signal::SIGTERM).await?;
        }
        drop(self.state);
        for program in PROGRAMS {
            self.stack.restart(program)?;
        }
        self.stack.down()
    }

    async fn disk(&self) -> Result<Option<v1::Disk>> {
        let disks = self.stack.node().await?.disks().await?;
        ensure!(disks.len() < 2, "{disks:?}");
        Ok(disks.into_iter().next())
    }

    /// A task, to its end.
    async fn task(&self, kind: Kind) -> Result<v1::TaskStatus> {
        let task = uid(self.number());
        let ended = self.step(async || {
            let node = self.stack.node().await?;
            let ended = node.end(&task, VM, kind.clone(), SOON);
            tokio::select! {
                ended = ended => ended,
                dead = self.death(SOON) => dead.and_then(|()| bail!("the daemon died")),
            }
        });
        let ended = ended.await?;
        let forgotten = self.step(async || Ok(self.stack.node().await?.forget(&task).await?));
        forgotten.await?;
        Ok(ended)
    }

    /// A save, which may come too early for the guest. One that the cut has interrupted finds no guest any more.
    async fn save(&self, point: Option<&str>) -> Result<v1::TaskStatus> {
        eventually(SOON, "a save", || async {
            let saved = self.task(Kind::Save(v1::Save {})).await?;
            let is_cut = point.is_some_and(|point| !self.stack.is_armed(point));
            ensure!(!saved.transient || is_cut, "{saved:?}");
            Ok(saved)
        })
        .await
    }

    async fn done(&self, kind: Kind) -> Result<()> {
        let ended = self.task(kind).await?;
        ensure!(ended.state() == State::Success, "{ended:?}");
        Ok(())
    }

    /// Starts the machine in a new pod; it resumes where it has memory.
    async fn run(&self) -> Result<(PodOptions, bool)> {
        self.step(async || {
            self.remove_all_pods().await?;
            let resumes = self.disk().await?.is_some_and(|disk| disk.saved_memory);
            let mut pod = PodOptions::named(&format!("pod-{}", self.number()), &self.stack);
            let mut set = |key: &str, value: &str| pod.annotations.insert(key.into(), value.into());
            set("vmlet.dev/vm-disk", VM);
            if resumes {
                set("vmlet.dev/restore", "true");
            }
            let cri = self.stack.cri().await?;
            Box::pin(cri.boot(&pod, &self.image)).await?;
            Ok((pod, resumes))
        })
        .await
    }

    /// Boots the machine; how many times its disk was booted then.
    async fn boot(&self) -> Result<u64> {
        let (pod, resumes) = self.run().await?;
        ensure!(!resumes, "there is memory");
        let log = await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
        let count = log.lines().find_map(|line| line.split_once("VMLET-BOOTS "));
        let (_, count) = count.with_context(|| format!("no count of boots: {log}"))?;
        Ok(count.trim().parse()?)
    }

    /// The guest goes on.
    async fn resume(&self) -> Result<()> {
        ensure!(self.resume_or_boot().await?, "the memory is gone");
        Ok(())
    }

    /// Whether the guest went on; without memory it boots.
    async fn resume_or_boot(&self) -> Result<bool> {
        let (pod, resumes) = self.run().await?;
        if !resumes {
            await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
            return Ok(false);
        }
        let log = || std::fs::read_to_string(pod.log(0));
        eventually(BOOT, "a tick", || async {
            ticks(&log()?).first().copied().context("no tick yet")
        })
        .await?;
        let log = log()?;
        ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
        Ok(true)
    }

    async fn remove_pods(&self) -> Result<()> {
        self.step(async || self.remove_all_pods().await).await
    }

    async fn remove_all_pods(&self) -> Result<()> {
        let cri = self.stack.cri().await?;
        for sandbox in cri.sandboxes().await? {
            cri.stop_pod(&sandbox.id).await?;
            cri.remove_pod(&sandbox.id).await?;
        }
        Ok(())
    }

    /// The tables of the disk's only layer are right; clusters that nothing refers to are harmless.
    fn check_file(&self) -> Result<()> {
        const LEAKS: i32 = 3;
        let path = self.stack.dir().join("state/disks").join(VM);
        let path = path.join("root.qcow2");
        let output = program::output(Command::new("qemu-img").arg("check").arg(&path))?;
        let code = output.status.code();
        ensure!([Some(0), Some(LEAKS)].contains(&code), "{output:?}");
        Ok(())
    }

    /// Repeats an attempt that fails because the daemon died, each time after a power cut.
    async fn step<T>(&self, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
        loop {
            let outcome = attempt().await;
            let is_dead = match &outcome {
                Ok(_) => !self.stack.is_alive("vmlet"),
                Err(_) => self.death(DEATH).await.is_ok(),
            };
            if is_dead {
                self.cut().await?;
            }
            match outcome {
                Err(_) if is_dead => {}
                outcome => return outcome,
            }
        }
    }

    async fn death(&self, within: Duration) -> Result<()> {
        eventually(within, "the death of the daemon", || async {
            ensure!(!self.stack.is_alive("vmlet"));
            Ok(())
        })
        .await
    }

    fn number(&self) -> u32 {
        self.names.set(self.names.get() + 1);
        self.names.get()
    }
}

fn snapshot() -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: uid(SNAPSHOT),
        quiesce_seconds: 0,
        memory: false,
    })
}

fn revert() -> Kind {
    Kind::Revert(v1::Revert {
        uid: uid(SNAPSHOT),
        memory: false,
    })
}

fn delete_snapshot() -> Kind {
    Kind::DeleteSnapshot(v1::DeleteSnapshot { uid: uid(SNAPSHOT) })
}

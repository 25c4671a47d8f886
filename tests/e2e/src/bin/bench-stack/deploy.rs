//! Measures the time until the guests of virtual machines run, for one and for many machines of one image, beside
//! `qemu-img convert` and QEMU by hand.
//!
//! Invariant: all kinds boot the same guest with the same arguments of QEMU, all machines of a round at once; a
//! round ends when the last guest has written that it is up. A cold node pulls the image first; by hand, curl does.
//! Failure: a guest that does not come up, or a command that failed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::bench::{Booted, Stack, text};
use e2e::{Cri, NodeApi, PodOptions, in_time, uid};
use nodeapi::v1::{self, provision::Mode, run_task_request::Kind};
use tokio::task::JoinSet;

use crate::by_hand::Recipe;
use crate::first_write::FirstWrite;
use crate::samples::Samples;
use crate::trial::emulator;

/// What the guest writes when it is up.
const UP: &str = "VMLET-TICK";
const BOOT: Duration = Duration::from_secs(900);
const TASK: Duration = Duration::from_secs(600);
/// How often one machine starts in each way.
const REPEATED: u32 = 3;
/// The cloud-init image of a machine, beside its disk.
const SEED: &str = "seed.iso";
/// Digits of an id in the names of its files.
const DIGITS: usize = 20;

/// What is there before a round by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByHand {
    /// The disks: only guests boot.
    Boot,
    /// The file of the image.
    Convert,
    /// Its address.
    Fetch,
}

/// A round with one machine of each kind, then one with `count`.
pub(crate) async fn measure(stack: &Stack, url: &str, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let node = stack.node().await?;
    let mut bench = Bench {
        stack,
        cri,
        node,
        tasks: 0,
        rounds: 0,
    };
    // The first one fills the caches of the kernel and of libvirt.
    bench.round(Mode::Linked, 1).await?;
    let mut samples = Samples::default();
    for (machines, repeat) in [(1, REPEATED), (count, 1)] {
        let folders = bench.recipes(machines).await?;
        for _ in 0..repeat {
            for (mode, name) in [(Mode::Linked, "linked"), (Mode::Direct, "direct")] {
                let took = bench.round(mode, machines).await?;
                samples.time(format!("{name}_warm_{machines}"), took);
                bench.cri.remove_image(stack.image()).await?;
                let took = bench.round(mode, machines).await?;
                samples.time(format!("{name}_cold_{machines}"), took);
            }
            for (by_hand, name) in [
                (ByHand::Boot, "boot"),
                (ByHand::Convert, "convert"),
                (ByHand::Fetch, "fetch"),
            ] {
                let took = tokio::task::block_in_place(|| run_by_hand(&folders, url, by_hand))?;
                samples.time(format!("by_hand_{name}_{machines}"), took);
            }
        }
        for folder in folders {
            std::fs::remove_dir_all(folder.path)?;
        }
    }
    Ok(samples)
}

struct Bench<'a> {
    stack: &'a Stack,
    cri: Cri,
    node: NodeApi,
    tasks: u32,
    rounds: u32,
}

/// A machine that can be started by hand.
struct Folder {
    path: PathBuf,
    recipe: Recipe,
    /// A copy of its disk before the first boot.
    disk: PathBuf,
    /// The file of the image.
    image: PathBuf,
}

/// UID of a machine.
fn vm(number: u32) -> String {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e{number:08x}")
}

impl Bench<'_> {
    fn task(&mut self) -> String {
        self.tasks += 1;
        uid(self.tasks)
    }

    fn pod(&self, machine: u32) -> PodOptions {
        let mut pod = self.stack.pod(&format!("deploy-{}-{machine}", self.rounds));
        let disk = ("vmlet.dev/vm-disk".to_owned(), vm(machine));
        pod.annotations.extend([disk]);
        pod
    }

    /// Makes the disks of machines and boots them; the time until the last guest is up.
    async fn round(&mut self, mode: Mode, machines: u32) -> Result<Duration> {
        self.rounds += 1;
        let tasks: Vec<_> = (0..machines).map(|_| self.task()).collect();
        let begun = Instant::now();
        let image = self.stack.image().to_owned();
        self.cri.pull(&image).await.context("PullImage")?;
        let mut made = JoinSet::new();
        for (machine, task) in (0..machines).zip(tasks.clone()) {
            let node = self.node.clone();
            let kind = Kind::Provision(v1::Provision {
                image: image.clone(),
                mode: mode.into(),
                vm_name: format!("default/deploy-{machine}"),
                ..v1::Provision::default()
            });
            made.spawn(async move { node.timed(&task, &vm(machine), kind, TASK).await });
        }
        while let Some(made) = made.join_next().await {
            made?.context("Provision")?;
        }
        let mut booted = JoinSet::new();
        for machine in 0..machines {
            let pod = self.pod(machine);
            // Each pod has a worker of kubelet.
            let stack = self.stack.clone();
            let cri = self.cri.clone();
            booted.spawn(async move { stack.boot(&cri, &pod).await });
        }
        let mut guests = Vec::new();
        while let Some(booted) = booted.join_next().await {
            guests.push(booted??.0);
        }
        self.await_guests(&guests).await?;
        let took = begun.elapsed();
        self.remove(&guests, &tasks).await?;
        Ok(took)
    }

    async fn await_guests(&self, guests: &[Booted]) -> Result<()> {
        for guest in guests {
            let console = format!("state/console/{}.raw", &guest.container[..DIGITS]);
            let console = self.stack.path(&console);
            let up = tokio::task::spawn_blocking(move || await_up(&console));
            in_time(BOOT, "a guest is up", async { up.await? }).await?;
        }
        Ok(())
    }

    async fn remove(&mut self, guests: &[Booted], tasks: &[String]) -> Result<()> {
        for guest in guests {
            self.stack.remove(&self.cri, &guest.sandbox).await?;
        }
        for task in tasks {
            self.node.forget(task).await?;
        }
        for machine in 0..u32::try_from(tasks.len())? {
            let task = self.task();
            let delete = Kind::DeleteDisk(v1::DeleteDisk {});
            self.node.timed(&task, &vm(machine), delete, TASK).await?;
            self.node.forget(&task).await?;
        }
        Ok(())
    }

    /// The same machines for starts by hand, from one that runs.
    async fn recipes(&mut self, machines: u32) -> Result<Vec<Folder>> {
        self.rounds += 1;
        let task = self.task();
        let kind = e2e::provision(self.stack.image());
        self.node.timed(&task, &vm(0), kind, TASK).await?;
        let disks = self.stack.path("state/disks").join(vm(0));
        let root = disks.join("root.qcow2");
        let pristine = self.stack.path("deploy.qcow2");
        std::fs::copy(&root, &pristine)?;
        let image = backing_file(&root)?;
        let pod = self.pod(0);
        let booted = self.stack.boot(&self.cri, &pod).await?.0;
        let id = booted.container[..DIGITS].to_owned();
        let sockets = self.stack.path("state/console").join(&id);
        let pid = emulator(&format!("vmlet-{}", vm(0)))?;
        let mut folders = Vec::new();
        for number in 0..machines {
            let path = self.stack.path(&format!("by-hand-{number}"));
            std::fs::create_dir(&path)?;
            std::fs::copy(&pristine, path.join("root.qcow2"))?;
            let seed = disks.join(SEED);
            std::fs::copy(&seed, path.join(SEED))
                .with_context(|| format!("copy {}", seed.display()))?;
            folders.push(Folder {
                recipe: Recipe::read(pid, &[&disks, &sockets], &path)?,
                path,
                disk: pristine.clone(),
                image: image.clone(),
            });
        }
        self.remove(&[booted], &[task]).await?;
        Ok(folders)
    }
}

/// The file that an overlay is based on.
fn backing_file(overlay: &Path) -> Result<PathBuf> {
    let mut info = Command::new("qemu-img");
    let info = info.args(["info", "-U", "--output=json"]).arg(overlay);
    let info: serde_json::Value = serde_json::from_slice(&info.output()?.stdout)?;
    let base = info["full-backing-filename"].as_str();
    Ok(base.context("no overlay")?.into())
}

/// Blocks until the guest that writes to a file is up.
fn await_up(console: &Path) -> Result<()> {
    let deadline = Instant::now() + BOOT;
    let watch = FirstWrite::to(console)?;
    loop {
        let written = std::fs::read(console).unwrap_or_default();
        if String::from_utf8_lossy(&written).contains(UP) {
            return Ok(());
        }
        watch.wait(deadline.saturating_duration_since(Instant::now()))?;
    }
}

/// Boots all of them at once; the time until the last guest is up.
fn run_by_hand(folders: &[Folder], url: &str, by_hand: ByHand) -> Result<Duration> {
    let fetched = folders.first().context("no machine")?.path.join("fetched");
    for folder in folders {
        let _ = std::fs::remove_file(&folder.recipe.console);
        if by_hand == ByHand::Boot {
            overwrite(&folder.disk, &folder.path.join("root.qcow2"))?;
        }
    }
    let begun = Instant::now();
    if by_hand == ByHand::Fetch {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--output", text(&fetched)?, url]);
        ensure!(curl.status()?.success(), "curl {url}");
    }
    let mut guests = Vec::new();
    let booted = boot_all(folders, by_hand, &fetched, &mut guests);
    let took = begun.elapsed();
    for mut guest in guests {
        let _ = guest.kill();
        guest.wait()?;
    }
    let _ = std::fs::remove_file(&fetched);
    booted.map(|()| took)
}

/// Makes the disks, where there are none, and boots; `guests` has what was started.
fn boot_all(
    folders: &[Folder],
    by_hand: ByHand,
    fetched: &Path,
    guests: &mut Vec<Child>,
) -> Result<()> {
    for folder in folders {
        match by_hand {
            ByHand::Boot => {}
            ByHand::Convert => convert(&folder.image, folder)?,
            ByHand::Fetch => convert(fetched, folder)?,
        }
        guests.push(folder.recipe.spawn(&folder.path.join("messages"))?);
    }
    for folder in folders {
        let reported = || std::fs::read_to_string(folder.path.join("messages")).unwrap_or_default();
        await_up(&folder.recipe.console).with_context(reported)?;
    }
    Ok(())
}

/// A full copy in the place of the machine's disk, which keeps its owner.
fn convert(base: &Path, folder: &Folder) -> Result<()> {
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-O", "qcow2"]).arg(base);
    let converted = convert.arg(folder.path.join("root.qcow2")).status()?;
    ensure!(converted.success(), "convert {}", base.display());
    Ok(())
}

/// The content of a file, which keeps its owner.
fn overwrite(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from)?;
    std::fs::write(to, bytes).with_context(|| format!("write {}", to.display()))
}

//! Two versions of Vmlet on one node: machines of the earlier one run on through the upgrade, and on the way each
//! program of one version works with those of the other.
//!
//! Invariant: no machine is started again, no log has a gap, what is saved or on a device is there; a downgrade is
//! refused, and the machines go on.
//! Failure: the pair of versions is named.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Cri, Guest, LoopDevice, PodOptions, Stack, Versions, await_text, eventually, in_time,
    provision, ticks, uid, v1,
};
use nix::sys::signal::Signal;
use nodeapi::v1::{self as node, run_task_request::Kind};
use tokio::io::AsyncWriteExt;

use crate::processes::{Pod, SOON};
use crate::streaming::Attached;
use crate::survival::check_alive;

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(180);
/// Seconds for a guest to end.
const GRACE: i64 = 600;
/// The machine whose memory is saved.
const VM: &str = "6a3c2f0e-8c1b-4f57-9a2d-5b0c7e9d1f42";

/// The daemon, and what it starts or gives to guests.
const DAEMON: &[&str] = &["vmlet", "vmwrapper", "vmlet-virtiofsd", "vmlet-guest"];
const NETWORK: &[&str] = &["vmlet-tapmanager"];

#[tokio::test]
#[ignore = "needs root"]
async fn machines_outlive_an_upgrade_and_neighbouring_versions_work_together() -> Result<()> {
    let device = LoopDevice::new(96)?;
    let stack = Stack::up()?;
    let versions = Versions::new(&stack)?;
    begin_with_the_earlier_one(&stack, &versions).await?;
    let node = Node::new(&stack, &device).await?;

    // As in the middle of an upgrade of the package.
    versions.install_later(NETWORK)?;
    versions.install_later(DAEMON)?;
    node.check("programs that run and files of two versions")
        .await?;
    versions.install_earlier(DAEMON)?;
    versions.restart_later(NETWORK)?;
    node.check("an earlier daemon with a later tapmanager")
        .await?;

    versions.install_earlier(NETWORK)?;
    versions.install_later(DAEMON)?;
    versions.restart_earlier(NETWORK)?;
    versions.restart_later(&["vmlet"])?;
    node.check("a later daemon with an earlier tapmanager")
        .await?;

    versions.install_later(NETWORK)?;
    versions.restart_later(NETWORK)?;
    node.check("all programs of the later version").await?;

    cannot_go_back(&stack, &versions).await?;
    node.check("after an attempt to go back").await?;
    Box::pin(node.end()).await?;
    stack.down()
}

/// A node with programs and a database of the earlier version.
async fn begin_with_the_earlier_one(stack: &Stack, versions: &Versions<'_>) -> Result<()> {
    for program in ["vmlet", "vmlet-tapmanager"] {
        stack.kill(program, Signal::SIGTERM).await?;
    }
    for file in fs::read_dir(stack.dir().join("state"))? {
        let path = file?.path();
        let name = path.file_name().context("a file has a name")?;
        if name.to_string_lossy().starts_with("vmlet.db") {
            fs::remove_file(path)?;
        }
    }
    versions.install_earlier(NETWORK)?;
    versions.install_earlier(DAEMON)?;
    versions.restart_earlier(&["vmlet-tapmanager", "vmlet"])?;
    stack.cri().await?.await_ready().await
}

/// The earlier daemon does not start on the database of this one.
async fn cannot_go_back(stack: &Stack, versions: &Versions<'_>) -> Result<()> {
    versions.install_earlier(&["vmlet"])?;
    let started = stack.restart("vmlet");
    let refused = started.err().context("the earlier version starts")?;
    let log = stack.log("vmlet");
    let last = log.lines().next_back().unwrap_or_default();
    let reason = "a migration number that is too high";
    ensure!(last.contains(reason), "{refused:#}; {log}");
    versions.install_later(&["vmlet"])?;
    versions.restart_later(&["vmlet"])
}

/// Machines of all kinds, made by the earlier version.
struct Node<'a> {
    stack: &'a Stack,
    image: String,
    /// A machine with a directory of the node.
    plain: Machine,
    /// A container as a process.
    processes: Pod<'a>,
    process: String,
    /// A machine with a device as its root disk.
    block: Machine,
    device: &'a LoopDevice,
}

/// A machine that runs.
struct Machine {
    pod: PodOptions,
    sandbox: String,
    container: String,
    page: String,
    emulator: nix::unistd::Pid,
}

impl Machine {
    async fn new(stack: &Stack, pod: PodOptions, config: v1::ContainerConfig) -> Result<Self> {
        let cri = stack.cri().await?;
        let sandbox = cri.run(pod.sandbox()).await?;
        let container = Box::pin(cri.create(&sandbox, config, pod.sandbox())).await?;
        cri.start(&container).await?;
        await_text(&pod.log(0), "VMLET-TICK", BOOT).await?;
        let page = format!("http://{}/", cri.ip(&sandbox).await?);
        stack.fetch(&page, BOOT).await?;
        let emulator = Guest::in_pod(stack, &pod.name)?.emulator()?;
        Ok(Self {
            pod,
            sandbox,
            container,
            page,
            emulator,
        })
    }

    /// The guest goes on, by the same process, and has an agent and a console.
    async fn check(&self, stack: &Stack) -> Result<()> {
        check_alive(stack, &self.pod, &self.container, &self.page).await?;
        let guest = Guest::in_pod(stack, &self.pod.name)?;
        ensure!(guest.emulator()? == self.emulator, "another emulator");
        let said = guest.run(&["echo", "hello"])?;
        ensure!(said.trim() == "hello", "{said}");
        let mut client = Attached::start(stack, &["attach", "-i", &self.container])?;
        let mut keyboard = client.child.stdin.take().context("no input")?;
        client.is_attached().await?;
        keyboard.write_all(b"echo are-$((70 + 7))-there\n").await?;
        let answer = client.until("are-77-there");
        in_time(BOOT, "the answer of the console", answer)
            .await
            .map(drop)
    }

    async fn stop(&self, cri: &Cri) -> Result<()> {
        cri.stop(&self.container, GRACE).await?;
        let ended = cri.container(&self.container).await?;
        ensure!(ended.exit_code == 0, "{ended:?}");
        cri.remove_pod(&self.sandbox).await?;
        Ok(())
    }
}

impl<'a> Node<'a> {
    async fn new(stack: &'a Stack, device: &'a LoopDevice) -> Result<Self> {
        let cri = stack.cri().await?;
        let image = stack.image()?.to_owned();
        cri.pull(&image).await?;
        save(stack, &image).await?;

        let mut pod = PodOptions::named("plain", stack);
        let directory = stack.dir().join("shared");
        fs::create_dir(&directory)?;
        pod.writable.push((directory, "/shared".to_owned()));
        let config = pod.container(&image, 0);
        let plain = Machine::new(stack, pod, config).await.context("share")?;

        let pod = PodOptions::named("block", stack);
        let config = on_device(&pod, &image, device);
        let block = Machine::new(stack, pod, config).await.context("device")?;

        let processes = Pod::with(stack, "processes", |_| {}).await?;
        let script = "trap 'echo bye; exit 7' TERM; i=0; while :; do i=$((i+1)); echo $i; \
                      usleep 100000; done";
        let process = processes.start(processes.config("counter", script)).await?;
        Ok(Self {
            stack,
            image,
            plain,
            processes,
            process,
            block,
            device,
        })
    }

    /// What runs goes on, and a machine is made and removed.
    async fn check(&self, versions: &str) -> Result<()> {
        self.check_all().await.with_context(|| versions.to_owned())
    }

    async fn check_all(&self) -> Result<()> {
        self.plain.check(self.stack).await.context("share")?;
        self.block.check(self.stack).await.context("device")?;
        let guest = Guest::in_pod(self.stack, &self.plain.pod.name)?;
        guest.run(&["sh", "-c", "cat /proc/uptime >/shared/uptime"])?;
        let written = fs::read_to_string(self.stack.dir().join("shared/uptime"))?;
        ensure!(written.contains(' '), "{written:?}");
        fs::remove_file(self.stack.dir().join("shared/uptime"))?;

        let before = eventually(SOON, "the process's lines", || async { self.counted() }).await?;
        eventually(SOON, "the process's next lines", || async {
            let now = self.counted()?;
            ensure!(now > before + 5, "{now} lines");
            Ok(())
        })
        .await?;

        let cri = self.stack.cri().await?;
        let pod = PodOptions::named("new", self.stack);
        let config = pod.container(&self.image, 0);
        let new = Machine::new(self.stack, pod, config).await.context("new")?;
        new.check(self.stack).await.context("new")?;
        new.stop(&cri).await?;
        Ok(fs::remove_dir_all(&new.pod.logs)?)
    }

    /// How far the process has counted: each number is there once. The last line may not be whole.
    fn counted(&self) -> Result<usize> {
        let mut records = self.processes.records("counter")?;
        records.pop();
        for (number, record) in records.iter().enumerate() {
            ensure!(*record == format!("stdout F {}", number + 1), "{record}");
        }
        Ok(records.len())
    }

    /// All of it ends as it would have ended without an upgrade.
    async fn end(self) -> Result<()> {
        let cri = self.stack.cri().await?;
        restore(self.stack, &self.image).await?;
        cri.stop(&self.process, GRACE).await?;
        let ended = cri.container(&self.process).await?;
        ensure!(ended.exit_code == 7, "{ended:?}");
        self.plain.stop(&cri).await?;
        self.block.stop(&cri).await?;
        let pod = PodOptions::named("again", self.stack);
        let config = on_device(&pod, &self.image, self.device);
        let again = Machine::new(self.stack, pod, config).await?;
        await_text(&again.pod.log(0), "VMLET-BOOTS 2", BOOT).await?;
        again.stop(&cri).await?;
        self.processes.remove().await
    }
}

/// A machine with a device as its root disk.
fn on_device(pod: &PodOptions, image: &str, device: &LoopDevice) -> v1::ContainerConfig {
    v1::ContainerConfig {
        devices: vec![v1::Device {
            container_path: "/".to_owned(),
            host_path: device.path().display().to_string(),
            permissions: "mrw".to_owned(),
        }],
        ..pod.container(image, 0)
    }
}

/// A pod of the machine whose memory is saved.
fn suspended(stack: &Stack, name: &str, more: &[&str]) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let annotation = |(key, value): (&str, &str)| (format!("vmlet.dev/{key}"), value.to_owned());
    pod.annotations.extend([annotation(("vm-disk", VM))]);
    let more = more.iter().map(|key| annotation((key, "true")));
    pod.annotations.extend(more);
    pod
}

/// Boots a machine with a disk of its own, and saves its memory.
async fn save(stack: &Stack, image: &str) -> Result<()> {
    let cri = stack.cri().await?;
    let api = stack.node().await?;
    api.done(&uid(1), VM, provision(image), TASK).await?;
    let pod = suspended(stack, "before", &[]);
    let config = pod.container(image, 0);
    let machine = Machine::new(stack, pod, config).await?;
    api.done(&uid(2), VM, Kind::Save(node::Save {}), TASK)
        .await?;
    let ended = cri.await_exit(&machine.container, TASK).await?;
    ensure!(ended.reason == "Saved", "{ended:?}");
    cri.remove_pod(&machine.sandbox).await?;
    Ok(())
}

/// The guest goes on where it was.
async fn restore(stack: &Stack, image: &str) -> Result<()> {
    let cri = stack.cri().await?;
    let api = stack.node().await?;
    let disks = api.disks().await?;
    let disk = disks.first().context("no disk")?;
    ensure!(disk.saved_memory, "no saved memory");
    let count = |pod: &PodOptions| -> Result<u64> {
        let ticks = ticks(&fs::read_to_string(pod.log(0))?);
        Ok(ticks.last().context("no tick")?.count)
    };
    let before = count(&suspended(stack, "before", &[]))?;
    let restore = Kind::Restore(node::Restore { discard: false });
    api.done(&uid(3), VM, restore, TASK).await?;
    let pod = suspended(stack, "after", &["restore"]);
    let config = pod.container(image, 0);
    let machine = Machine::new(stack, pod, config).await?;
    let after = count(&machine.pod)?;
    ensure!(after > before, "{before}, then {after}");
    let log = fs::read_to_string(machine.pod.log(0))?;
    ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
    machine.stop(&cri).await?;
    let delete = Kind::DeleteDisk(node::DeleteDisk {});
    api.done(&uid(4), VM, delete, TASK).await?;
    for task in 1..=4 {
        api.forget(&uid(task)).await?;
    }
    Ok(())
}

//! Pods on a volume whose server stops, or dies: a FUSE file system that a process of the test
//! serves.
//!
//! Invariant: the server stops when it has read a guest's write, so that the emulator waits in the
//! kernel, where no signal reaches it. Pods beside the volume notice nothing. A request for a pod on
//! it ends within kubelet's time, well or in words, and a later one succeeds.
//! Failure: the request and how it ended, or what is left.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, await_text, eventually, in_time, v1};
use nix::sys::signal::Signal;
use tonic::Status;

use crate::shares::{await_no_process, directory};

mod fuse;
mod volume;

use volume::Volume;

const BOOT: Duration = Duration::from_secs(300);
/// What kubelet gives a request.
const REQUEST: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(180);
const DISKS: &str = r#"
- {mountPath: /claims/root, devicePath: /, file: os.img}
- {mountPath: /claims/data, devicePath: /dev/data, size: 8Mi}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_volume_whose_server_stops_holds_up_its_own_pods_only() -> Result<()> {
    if let Some(served) = volume::serve() {
        return served;
    }
    let node = Node::up("a_volume_whose_server_stops_holds_up_its_own_pods_only").await?;
    let beside = node.boot(&node.pod("beside")).await?;
    let pods = node.boot_on_volume().await?;
    node.volume.stop_at_write().await?;

    node.answers(&beside, 3).await.context("before a restart")?;
    node.lives("during").await?;
    node.is_refused("late").await?;
    node.stack.kill("vmlet", Signal::SIGKILL).await?;
    node.stack.restart("vmlet").context("start beside it")?;
    let node = node.reconnected().await?;
    node.answers(&beside, 3).await.context("after a restart")?;
    let ends = tokio::join!(node.ends(&pods[0]), node.ends(&pods[1]));
    eprintln!(
        "with a server that has stopped: {:?}, {:?}",
        ends.0?, ends.1?
    );
    node.answers(&beside, 1).await.context("after ends")?;

    node.volume.proceed()?;
    node.nothing_is_left().await?;
    for file in ["root/os.img", "data/disk.img"] {
        ensure!(node.volume.behind(file).is_file(), "{file} is gone");
    }
    node.down()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn pods_of_a_volume_whose_server_died_are_removed() -> Result<()> {
    if let Some(served) = volume::serve() {
        return served;
    }
    let mut node = Node::up("pods_of_a_volume_whose_server_died_are_removed").await?;
    let beside = node.boot(&node.pod("beside")).await?;
    node.boot_on_volume().await?;
    node.volume.kill()?;

    node.answers(&beside, 3).await?;
    let refused = node.is_refused("late").await?;
    ensure!(refused.contains("not connected"), "{refused}");
    node.stack.kill("vmlet", Signal::SIGKILL).await?;
    node.stack.restart("vmlet")?;
    let node = node.reconnected().await?;
    node.answers(&beside, 3).await?;
    node.nothing_is_left().await?;
    node.down()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_copy_of_an_image_that_hangs_ends_with_its_pod() -> Result<()> {
    if let Some(served) = volume::serve() {
        return served;
    }
    let node = Node::up("a_copy_of_an_image_that_hangs_ends_with_its_pod").await?;
    let beside = node.boot(&node.pod("beside")).await?;
    let pod = node.disk_pod("copied")?;
    let sandbox = node.cri.run(pod.sandbox()).await?;
    node.volume.stop_at_next_write()?;
    let create = node
        .cri
        .create(&sandbox, pod.container(&node.image, 0), pod.sandbox());
    let meanwhile = async {
        node.volume.await_stopped().await?;
        let log = node.stack.log("vmlet");
        ensure!(log.contains("image copy to a file of a volume started"));
        node.answers(&beside, 1).await?;
        node.lives("other").await?;
        // The program that copies waits in the kernel: no signal ends it.
        let [stopped, removed] = node.ends(&sandbox).await?;
        stopped?;
        removed?;
        node.answers(&beside, 1).await?;
        node.lives("after").await
    };
    let create = async { Ok(Box::pin(create).await) };
    let (created, ()) = tokio::try_join!(create, meanwhile)?;
    let created = created
        .err()
        .context("a container of a pod that is stopped")?;
    ensure!(created.message().contains("was stopped"), "{created:?}");

    node.volume.proceed()?;
    node.nothing_is_left().await?;
    // The next attempt has the volume to itself.
    let next = node.disk_pod("next")?;
    let (sandbox, container) = node.cri.boot(&next, &node.image).await?;
    await_text(&next.log(0), "VMLET-BOOTS 1", BOOT).await?;
    node.cri.stop(&container, 0).await?;
    node.cri.remove_pod(&sandbox).await?;
    let left: Vec<_> = fs::read_dir(node.volume.behind("root"))?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    ensure!(left == ["os.img"], "{left:?}");
    node.nothing_is_left().await?;
    node.down()
}

/// A node with a volume of that kind.
struct Node {
    /// Goes before the stack of a test that failed, which could not be stopped else.
    volume: Volume,
    stack: Stack,
    cri: Cri,
    image: String,
}

impl Node {
    /// The volume is there when the node starts: the node's programs have it in their view of mounts.
    async fn up(test: &str) -> Result<Self> {
        let volume = Volume::new(test).await?;
        let stack = Stack::up()?;
        let image = stack.image()?.to_owned();
        let cri = stack.cri().await?;
        cri.await_ready().await?;
        cri.pull(&image).await?;
        Ok(Self {
            volume,
            stack,
            cri,
            image,
        })
    }

    async fn reconnected(self) -> Result<Self> {
        let cri = self.stack.cri().await?;
        cri.await_ready().await?;
        Ok(Self { cri, ..self })
    }

    fn down(self) -> Result<()> {
        self.stack.down()
    }

    fn pod(&self, name: &str) -> PodOptions {
        PodOptions::named(name, &self.stack)
    }

    /// One whose disks are files of the volume.
    fn disk_pod(&self, name: &str) -> Result<PodOptions> {
        let mut pod = self.pod(name);
        let disks = ("vmlet.dev/file-disks".to_owned(), DISKS.to_owned());
        pod.annotations.extend([disks]);
        for claim in ["root", "data"] {
            let directory = self.volume.directory(claim)?;
            pod.writable.push((directory, format!("/claims/{claim}")));
        }
        Ok(pod)
    }

    /// One that shares a directory of the volume.
    fn sharing_pod(&self, name: &str) -> Result<PodOptions> {
        let mut pod = self.pod(name);
        let directory = self.volume.directory("shared")?;
        pod.writable.push((directory, "/data".to_owned()));
        Ok(pod)
    }

    async fn boot(&self, pod: &PodOptions) -> Result<String> {
        let booted = self.cri.boot(pod, &self.image).await;
        let (_, container) = booted.with_context(|| format!("boot {}", pod.name))?;
        self.cri.await_agent(&container).await?;
        Ok(container)
    }

    /// Two pods on the volume that write to it all the time; their sandboxes.
    async fn boot_on_volume(&self) -> Result<[String; 2]> {
        let by_disk = self.boot(&self.disk_pod("by-disk")?).await?;
        let by_share = self.boot(&self.sharing_pod("by-share")?).await?;
        let writers = [
            (
                &by_disk,
                "dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync",
            ),
            (&by_share, "date >/data/now"),
        ];
        for (container, write) in writers {
            self.cri.shell(container, write).await?;
            let all_the_time =
                format!("setsid sh -c 'while :; do {write}; done' >/dev/null 2>&1 &");
            self.cri.shell(container, &all_the_time).await?;
        }
        ensure!(self.volume.behind("shared/now").is_file());
        let mut sandboxes = [String::new(), String::new()];
        for (sandbox, container) in sandboxes.iter_mut().zip([&by_disk, &by_share]) {
            let all = self.cri.containers().await?;
            let one = all.into_iter().find(|one| one.id == *container);
            *sandbox = one.context("not listed")?.pod_sandbox_id;
        }
        Ok(sandboxes)
    }

    /// The daemon answers for all pods, and in full for the one beside the volume.
    async fn answers(&self, beside: &str, pods: usize) -> Result<()> {
        in_time(REQUEST, "lists and statistics", async {
            let containers = self.cri.containers().await?;
            let sandboxes = self.cri.sandboxes().await?;
            let running = v1::ContainerState::ContainerRunning;
            let running = containers.iter().filter(|one| one.state() == running);
            ensure!(running.clone().count() >= pods, "{containers:?}");
            ensure!(sandboxes.len() >= pods, "{sandboxes:?}");
            for container in &containers {
                self.cri.container(&container.id).await?;
            }
            self.cri.check_ready().await?;
            let mut runtime = self.cri.runtime.clone();
            let all = v1::ListContainerStatsRequest::default();
            let stats = runtime.list_container_stats(all).await?.into_inner().stats;
            let id = |one: &v1::ContainerStats| one.attributes.as_ref().map(|a| a.id.clone());
            let mut of_beside = stats
                .iter()
                .filter(|one| id(one).as_deref() == Some(beside));
            let of_beside = of_beside.next().context("no statistics")?;
            ensure!(of_beside.memory.is_some(), "{of_beside:?}");
            let all = v1::ListPodSandboxStatsRequest::default();
            let stats = runtime
                .list_pod_sandbox_stats(all)
                .await?
                .into_inner()
                .stats;
            ensure!(stats.len() >= pods, "{stats:?}");
            let node = self.stack.node().await?;
            ensure!(node.machines().await?.len() >= pods);
            node.disks().await?;
            ensure!(self.cri.shell(beside, "echo here").await? == "here");
            Ok(())
        })
        .await
    }

    /// A pod beside the volume, with a new disk and a shared directory, has its whole life.
    async fn lives(&self, name: &str) -> Result<()> {
        let mut pod = self.pod(name);
        let data = directory(&self.stack, name)?;
        pod.writable.push((data.clone(), "/data".to_owned()));
        let container = self.boot(&pod).await?;
        self.cri.shell(&container, "date >/data/now").await?;
        ensure!(data.join("now").is_file());
        let status = self.cri.container(&container).await?;
        ensure!(status.state() == v1::ContainerState::ContainerRunning);
        let sandboxes = self.cri.sandboxes().await?;
        let is_it = |one: &v1::PodSandbox| one.labels.values().any(|label| label == name);
        let sandbox = sandboxes.into_iter().find(is_it).context("not listed")?;
        in_time(REQUEST, "the end of a pod beside the volume", async {
            self.cri.stop(&container, 1).await?;
            self.cri.stop_pod(&sandbox.id).await?;
            Ok(self.cri.remove_pod(&sandbox.id).await?)
        })
        .await
    }

    /// A new pod on the volume gets no container, in words.
    async fn is_refused(&self, name: &str) -> Result<String> {
        let pod = self.disk_pod(name)?;
        let sandbox = self.cri.run(pod.sandbox()).await?;
        let create = self
            .cri
            .create(&sandbox, pod.container(&self.image, 0), pod.sandbox());
        let created = Box::pin(in_time(REQUEST, "CreateContainer", async {
            Ok(Box::pin(create).await)
        }));
        let refused = created.await?.err().context("a container on the volume")?;
        ensure!(refused.message().contains("/claims/root"), "{refused:?}");
        in_time(REQUEST, "the end of a pod without a container", async {
            self.cri.stop_pod(&sandbox).await?;
            Ok(self.cri.remove_pod(&sandbox).await?)
        })
        .await?;
        Ok(refused.message().to_owned())
    }

    /// What became of requests to end a pod.
    async fn ends(&self, sandbox: &str) -> Result<[Result<(), Status>; 2]> {
        let stopped = in_time(REQUEST, "StopPodSandbox", async {
            Ok(self.cri.stop_pod(sandbox).await)
        });
        let stopped = stopped.await?;
        let removed = in_time(REQUEST, "RemovePodSandbox", async {
            Ok(self.cri.remove_pod(sandbox).await)
        });
        Ok([stopped, removed.await?])
    }

    /// All pods can be removed, and nothing stays on the node.
    async fn nothing_is_left(&self) -> Result<()> {
        eventually(SOON, "the end of all pods", || async {
            for sandbox in self.cri.sandboxes().await? {
                self.cri.stop_pod(&sandbox.id).await?;
                self.cri.remove_pod(&sandbox.id).await?;
            }
            Ok(())
        })
        .await?;
        await_no_process(&self.stack).await?;
        self.stack.await_clean().await
    }
}

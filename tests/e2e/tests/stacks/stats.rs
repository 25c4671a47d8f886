//! The usage of a real guest, as clients see it, and what happens to one that uses too much.
//!
//! Invariant: each figure is compared with what was done to the guest, or with the kernel's own
//! files.
//! Failure: the reported figures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Console, Cri, PodOptions, Stack, await_text, cases, eventually, in_time, v1};
use nix::sys::signal::Signal;

mod metrics;

const BOOT: Duration = Duration::from_secs(180);
/// Kubelet waits no longer for an answer.
const KUBELET: Duration = Duration::from_secs(120);

/// What kubelet makes a pod's cgroup in.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "cpuset", "memory", "pids"];

#[tokio::test]
#[ignore = "needs root"]
async fn figures_and_limits_are_those_of_the_pod() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            figures_follow_what_the_guest_does,
            a_guest_that_takes_more_than_its_pod_may_have_is_oom_killed
        ]
    );
    stack.down()
}

async fn figures_follow_what_the_guest_does(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let group = PodCgroup::make(&format!("/{}/pod-s", stack.var("VMLET_NETNS")?))?;
    let mut pod = PodOptions::named("busy", stack);
    pod.cgroup_parent.clone_from(&group.name);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;

    let pid = pid(stack, &container)?;
    group.check_member(pid)?;
    let idle = of_container(&cri, &container).await?;
    let memory = idle.memory.as_ref().context("no memory")?;
    let set = value(memory.working_set_bytes.as_ref())?;
    ensure!((20 << 20..1 << 30).contains(&set), "{memory:?}");
    ensure!(set <= value(memory.usage_bytes.as_ref())?, "{memory:?}");
    let layer = idle.writable_layer.as_ref().context("no writable layer")?;
    ensure!(value(layer.used_bytes.as_ref())? > 0, "{layer:?}");
    let mountpoint = &layer.fs_id.as_ref().context("no file system")?.mountpoint;
    ensure!(Path::new(mountpoint).is_dir(), "{mountpoint}");

    // An idle guest's share, then one that never rests.
    let resting = eventually(BOOT, "a guest at rest", || async {
        let now = rate(&cri, &container).await?;
        ensure!(now < 500_000_000, "{now}: it still boots");
        Ok(now)
    })
    .await?;
    let mut console = Console::open(stack, &container)?;
    console.type_line("while :; do :; done &")?;
    eventually(BOOT, "the share of a guest that never rests", || async {
        let now = rate(&cri, &container).await?;
        ensure!(now > resting + 100_000_000, "{resting} before, {now} after");
        Ok(())
    })
    .await?;

    let before = traffic(&cri, &sandbox).await?;
    let page = format!("http://{}/", cri.ip(&sandbox).await?);
    for _ in 0..5 {
        stack.fetch(&page, BOOT).await?;
    }
    let after = eventually(BOOT, "counted traffic", || async {
        let now = traffic(&cri, &sandbox).await?;
        ensure!(
            now.0 > before.0 + 500 && now.1 > before.1 + 500,
            "{before:?} {now:?}"
        );
        Ok(now)
    });
    after.await?;

    let table = stack.crictl(&["stats"])?;
    ensure!(table.contains(&container[..13]), "{table}");
    let table = stack.crictl(&["statsp"])?;
    ensure!(table.contains(&sandbox[..13]), "{table}");
    let of_pod = of_sandbox(&cri, &sandbox[..13]).await?;
    let linux = of_pod.linux.context("no figures")?;
    let processes = linux.process.context("no processes")?.process_count;
    ensure!(value(processes.as_ref())? == 1 && linux.containers.len() == 1);
    ensure!(
        linux.cpu.is_some() && linux.memory.is_some(),
        "no figures of the pod"
    );

    lists_are_streamed(&cri, &sandbox, &container).await?;
    metrics::follow_the_machine(&cri, &sandbox, &container, pid).await?;
    move_to_first_cpu(&cri, &container, pid).await?;
    without_libvirt(stack, &cri, &container).await?;

    let cri = stack.cri().await?;
    cri.await_ready().await?;
    // The daemon's last look at machines, which it answers from for a moment, is from before the end.
    of_container(&cri, &container).await?;
    cri.stop(&container, 0).await?;
    // kubelet looks containers up by name in lists: one that has ended is not in them.
    eventually(BOOT, "lists without the ended container", || async {
        let listed = listed(&cri, &container).await?;
        ensure!(listed.is_empty(), "{listed:?}");
        Ok(())
    })
    .await?;
    let request = v1::ContainerStatsRequest {
        container_id: container.clone(),
    };
    let ended = cri.runtime.clone().container_stats(request).await?;
    let ended = ended.into_inner().stats.context("no entry")?;
    ensure!(ended.cpu.is_none() && ended.memory.is_none(), "{ended:?}");
    let attributes = ended.attributes.context("no attributes")?;
    ensure!(attributes.metadata.is_some_and(|m| m.name == "vm"));
    let unknown = of_sandbox(&cri, "0123").await.err().context("found")?;
    ensure!(
        format!("{unknown:?}").contains("no sandbox has the id"),
        "{unknown:?}"
    );
    cri.remove_pod(&sandbox).await?;
    drop(group);
    stack.await_clean().await
}

/// While libvirt is away the last figures serve: it returns only when they are there. How soon
/// they come is tested in virtual time, in `src/vm/resources/tests/stats.rs`.
async fn without_libvirt(stack: &Stack, cri: &Cri, container: &str) -> Result<()> {
    stack.kill("libvirtd", Signal::SIGKILL).await?;
    let figures = of_container(cri, container);
    let stats = in_time(KUBELET, "figures without libvirt", figures).await?;
    ensure!(stats.cpu.is_some() && stats.memory.is_some(), "{stats:?}");
    stack.restart("libvirtd")
}

/// kubelet's CPU manager moves a container; every thread follows.
async fn move_to_first_cpu(cri: &Cri, container: &str, pid: i32) -> Result<()> {
    let request = v1::UpdateContainerResourcesRequest {
        container_id: container.to_owned(),
        linux: Some(v1::LinuxContainerResources {
            cpuset_cpus: "0".to_owned(),
            ..v1::LinuxContainerResources::default()
        }),
        ..v1::UpdateContainerResourcesRequest::default()
    };
    let mut runtime = cri.runtime.clone();
    runtime.update_container_resources(request).await?;
    let resources = cri.container(container).await?.resources;
    let linux = resources.and_then(|r| r.linux).context("no resources")?;
    ensure!(linux.cpuset_cpus == "0", "{linux:?}");
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        ensure!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }
    Ok(())
}

async fn a_guest_that_takes_more_than_its_pod_may_have_is_oom_killed(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let group = PodCgroup::make(&format!("/{}/pod-o", stack.var("VMLET_NETNS")?))?;
    group.limit_memory(400 << 20)?;
    let mut pod = PodOptions::named("greedy", stack);
    pod.cgroup_parent.clone_from(&group.name);
    let sandbox = cri.run(pod.sandbox()).await?;
    let mut config = pod.container(&image, 0);
    let linux = config.linux.as_mut().context("no resources")?;
    let resources = linux.resources.as_mut().context("no resources")?;
    resources.memory_limit_in_bytes = 1 << 30;
    let container = Box::pin(cri.create(&sandbox, config, pod.sandbox())).await?;
    cri.start(&container).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let mut console = Console::open(stack, &container)?;
    console.type_line("dd if=/dev/zero of=/fill bs=1M")?;
    let status = cri.await_exit(&container, BOOT).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (137, "OOMKilled"),
        "{status:?}"
    );

    // The next machine of the pod is killed by us, and that is no want of memory.
    let again = Box::pin(cri.create(&sandbox, pod.container(&image, 1), pod.sandbox())).await?;
    cri.start(&again).await?;
    cri.stop(&again, 0).await?;
    let status = cri.container(&again).await?;
    ensure!(status.reason == "Error", "{status:?}");
    cri.remove_pod(&sandbox).await?;
    drop(group);
    stack.await_clean().await
}

/// Each streamed list has the items of the list, and honours its filter.
async fn lists_are_streamed(cri: &Cri, sandbox: &str, container: &str) -> Result<()> {
    let mut runtime = cri.runtime.clone();
    let mut images = cri.images.clone();
    let stream = runtime.stream_pod_sandboxes(v1::StreamPodSandboxesRequest::default());
    let streamed = collected(stream.await?, |message| message.pod_sandboxes).await?;
    ensure!(streamed == cri.sandboxes().await?, "{streamed:?}");
    let stream = runtime.stream_containers(v1::StreamContainersRequest::default());
    let streamed = collected(stream.await?, |message| message.containers).await?;
    ensure!(streamed == cri.containers().await?, "{streamed:?}");
    let stream = images.stream_images(v1::StreamImagesRequest::default());
    let streamed = collected(stream.await?, |message| message.images).await?;
    let list = images.list_images(v1::ListImagesRequest::default()).await?;
    ensure!(streamed == list.into_inner().images, "{streamed:?}");
    let stream = runtime.stream_pod_sandbox_stats(v1::StreamPodSandboxStatsRequest::default());
    let streamed = collected(stream.await?, |message| message.pod_sandbox_stats).await?;
    let ids = streamed.iter().flat_map(|stats| &stats.attributes);
    ensure!(ids.map(|of| &of.id).eq([sandbox]), "{streamed:?}");
    for (id, expected) in [(container, 1), ("0123", 0)] {
        let filter = Some(v1::ContainerStatsFilter {
            id: id.to_owned(),
            ..v1::ContainerStatsFilter::default()
        });
        let stream = runtime.stream_container_stats(v1::StreamContainerStatsRequest { filter });
        let streamed = collected(stream.await?, |message| message.container_stats).await?;
        ensure!(streamed.len() == expected, "{id}: {streamed:?}");
    }
    Ok(())
}

/// All items of a stream to its end.
async fn collected<M, T>(
    stream: tonic::Response<tonic::Streaming<M>>,
    items: fn(M) -> Vec<T>,
) -> Result<Vec<T>> {
    let mut stream = stream.into_inner();
    let mut all = Vec::new();
    while let Some(message) = stream.message().await? {
        let items = items(message);
        ensure!(!items.is_empty(), "a message without items");
        all.extend(items);
    }
    Ok(all)
}

async fn listed(cri: &Cri, id: &str) -> Result<Vec<v1::ContainerStats>> {
    let request = v1::ListContainerStatsRequest {
        filter: Some(v1::ContainerStatsFilter {
            id: id.to_owned(),
            ..v1::ContainerStatsFilter::default()
        }),
    };
    let mut runtime = cri.runtime.clone();
    let answer = runtime.list_container_stats(request).await?;
    Ok(answer.into_inner().stats)
}

async fn of_container(cri: &Cri, id: &str) -> Result<v1::ContainerStats> {
    let mut stats = listed(cri, id).await?;
    ensure!(stats.len() == 1, "{} entries", stats.len());
    stats.pop().context("no entry")
}

async fn of_sandbox(cri: &Cri, id: &str) -> Result<v1::PodSandboxStats> {
    let request = v1::PodSandboxStatsRequest {
        pod_sandbox_id: id.to_owned(),
    };
    let mut runtime = cri.runtime.clone();
    let answer = runtime.pod_sandbox_stats(request).await?.into_inner();
    answer.stats.context("no stats")
}

/// Nanocores between two looks that are about a second apart.
async fn rate(cri: &Cri, id: &str) -> Result<u64> {
    let first = of_container(cri, id).await?.cpu.context("no CPU")?;
    let second = eventually(BOOT, "a later look", || async {
        let now = of_container(cri, id).await?.cpu.context("no CPU")?;
        ensure!(now.timestamp > first.timestamp + 800_000_000);
        Ok(now)
    })
    .await?;
    let used = value(second.usage_core_nano_seconds.as_ref())?
        - value(first.usage_core_nano_seconds.as_ref())?;
    ensure!(second.usage_nano_cores.is_some(), "{second:?}");
    let passed = u64::try_from(second.timestamp - first.timestamp)?;
    Ok(used * 1000 / (passed / 1_000_000))
}

/// Bytes that the guest has received and sent.
async fn traffic(cri: &Cri, id: &str) -> Result<(u64, u64)> {
    let linux = of_sandbox(cri, id).await?.linux.context("no figures")?;
    let network = linux.network.context("no network")?;
    let nic = network.default_interface.context("no NIC")?;
    ensure!(nic.name == "eth0", "{nic:?}");
    Ok((value(nic.rx_bytes.as_ref())?, value(nic.tx_bytes.as_ref())?))
}

fn value(value: Option<&v1::UInt64Value>) -> Result<u64> {
    Ok(value.context("no value")?.value)
}

fn pid(stack: &Stack, container: &str) -> Result<i32> {
    let status: serde_json::Value = serde_json::from_str(&stack.crictl(&["inspect", container])?)?;
    let pid = status["info"]["pid"].as_i64().context("no pid")?;
    Ok(i32::try_from(pid)?)
}

/// A cgroup as kubelet makes it for a pod, in every hierarchy; removed when dropped.
struct PodCgroup {
    name: String,
    directories: Vec<(&'static str, PathBuf)>,
    unified: bool,
}

impl PodCgroup {
    fn make(name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let roots: Vec<_> = if unified {
            vec![("", root.to_owned())]
        } else {
            CONTROLLERS.map(|c| (c, root.join(c))).to_vec()
        };
        let mut directories = Vec::new();
        for (controller, root) in roots {
            if !root.is_dir() {
                continue;
            }
            let mut path = root.clone();
            for part in name.split('/').filter(|part| !part.is_empty()) {
                let above = path.clone();
                path.push(part);
                std::fs::create_dir_all(&path)?;
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if controller == "cpuset" {
                        std::fs::write(path.join(file), std::fs::read(above.join(file))?)?;
                    }
                }
            }
            directories.push((controller, path));
        }
        Ok(Self {
            name: name.to_owned(),
            directories,
            unified,
        })
    }

    fn limit_memory(&self, bytes: u64) -> Result<()> {
        let (controller, file) = if self.unified {
            ("", "memory.max")
        } else {
            ("memory", "memory.limit_in_bytes")
        };
        let found = self.directories.iter().find(|(c, _)| *c == controller);
        let (_, directory) = found.context("no memory controller")?;
        Ok(std::fs::write(directory.join(file), bytes.to_string())?)
    }

    /// A process is in the pod's cgroup in every hierarchy.
    fn check_member(&self, pid: i32) -> Result<()> {
        let shown = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        for (controller, _) in &self.directories {
            let of = |line: &&str| {
                let mut fields = line.splitn(3, ':').skip(1);
                fields
                    .next()
                    .is_some_and(|c| c.split(',').any(|c| c == *controller))
            };
            let line = shown.lines().find(of).context("no such hierarchy")?;
            ensure!(line.contains(&self.name), "{controller}: {line}");
        }
        Ok(())
    }
}

impl Drop for PodCgroup {
    fn drop(&mut self) {
        for (_, path) in &self.directories {
            for group in [
                Some(path.join("vmlet").as_path()),
                Some(path),
                path.parent(),
            ] {
                // What is not empty is found by the stack's own check.
                let _ = group.map(std::fs::remove_dir);
            }
        }
    }
}

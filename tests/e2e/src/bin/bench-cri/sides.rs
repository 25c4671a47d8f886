//! The two runtimes of a node, with pods that are alike.
//!
//! Invariant: both get the same requests but for image and command, have the same CNI
//! configuration, and put their pods into the same cgroup.
//! Failure: a runtime that does not answer is named.

use anyhow::{Context, Result, ensure};
use e2e::bench::{PodCgroup, Stack};
use e2e::{Cri, PodOptions, v1};

/// One runtime.
#[derive(Debug)]
pub(crate) struct Side {
    /// Its name in names of samples.
    pub(crate) name: &'static str,
    /// Its client.
    pub(crate) cri: Cri,
    image: String,
    command: &'static [&'static str],
}

/// Both, and the cgroup of their pods.
#[derive(Debug)]
pub(crate) struct Sides {
    /// Ours.
    pub(crate) vmlet: Side,
    /// containerd with runc.
    pub(crate) containerd: Side,
    cgroup: PodCgroup,
}

impl Sides {
    /// Connects to both.
    pub(crate) async fn connect(stack: &Stack, image: &str, tools: &str) -> Result<Self> {
        let vmlet = Side {
            name: "vmlet",
            cri: stack.cri_with_image().await.context("vmlet")?,
            image: image.to_owned(),
            command: &[],
        };
        let socket = stack.path("run/containerd.sock");
        let containerd = Side {
            name: "containerd",
            cri: Cri::connect(&socket).await.context("containerd")?,
            image: tools.to_owned(),
            command: &["sleep", "86400"],
        };
        let images = containerd.cri.image_ids().await.context("containerd")?;
        ensure!(!images.is_empty(), "containerd has no image");
        Ok(Self {
            vmlet,
            containerd,
            cgroup: PodCgroup::make(stack.netns_name())?,
        })
    }

    /// Both; which one is first alternates.
    pub(crate) fn in_turn(&self, number: u32) -> [&Side; 2] {
        if number.is_multiple_of(2) {
            [&self.vmlet, &self.containerd]
        } else {
            [&self.containerd, &self.vmlet]
        }
    }

    /// A pod of this name for either.
    pub(crate) fn pod(&self, stack: &Stack, name: &str) -> Result<PodOptions> {
        let mut pod = stack.pod(name);
        self.cgroup.name().clone_into(&mut pod.cgroup_parent);
        std::fs::create_dir_all(pod.logs.join("vm")).context("make the folder of logs")?;
        Ok(pod)
    }
}

impl Side {
    /// The container of a pod.
    pub(crate) fn container(&self, pod: &PodOptions) -> v1::ContainerConfig {
        let mut container = pod.container(&self.image, 0);
        container.command = self.command.iter().map(|&word| word.to_owned()).collect();
        container
    }

    /// Runs, creates and starts a pod; returns the ids of sandbox and container.
    pub(crate) async fn boot(&self, pod: &PodOptions) -> Result<(String, String)> {
        let sandbox = self.cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
        let container = self.container(pod);
        let created = Box::pin(self.cri.create(&sandbox, container, pod.sandbox())).await;
        let container = created.context("CreateContainer")?;
        self.cri.start(&container).await.context("StartContainer")?;
        Ok((sandbox, container))
    }

    /// Takes a pod away again.
    pub(crate) async fn take_away(&self, sandbox: &str) -> Result<()> {
        self.cri.stop_pod(sandbox).await.context("StopPodSandbox")?;
        let removed = self.cri.remove_pod(sandbox).await;
        removed.context("RemovePodSandbox")
    }
}

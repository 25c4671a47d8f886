//! The stack that is measured, which the caller has brought up.
//!
//! Invariant: reaches only what is below the stack's directory.
//! Failure: what is missing is named.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Cri, NodeApi, PodOptions, v1};
use anyhow::{Context, Result};
use nix::unistd::Pid;

/// Where a stack is, and what it boots.
#[derive(Debug, Clone)]
pub struct Stack {
    dir: PathBuf,
    netns: String,
    image: String,
}

/// A pod with a running machine.
#[derive(Debug)]
pub struct Booted {
    /// The id of its sandbox.
    pub sandbox: String,
    /// The id of its container.
    pub container: String,
}

/// How long the three calls took.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// `RunPodSandbox`.
    pub run: Duration,
    /// `CreateContainer`.
    pub create: Duration,
    /// `StartContainer`.
    pub start: Duration,
}

impl Stack {
    /// The stack in a directory.
    pub fn new(dir: &Path, netns: String, image: String) -> Result<Self> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("no stack in {}", dir.display()))?;
        Ok(Self { dir, netns, image })
    }

    /// A path below the stack's directory.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }

    /// The process id of one of the stack's programs.
    pub fn pid(&self, program: &str) -> Result<Pid> {
        let file = self.path(&format!("{program}.pid"));
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Ok(Pid::from_raw(text.trim().parse()?))
    }

    /// Everything that a program has logged from byte `from` on.
    pub fn log_from(&self, program: &str, from: usize) -> Result<String> {
        let bytes = self.log_bytes(program)?;
        Ok(String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned())
    }

    /// How many bytes a program has logged.
    pub fn log_size(&self, program: &str) -> Result<usize> {
        Ok(self.log_bytes(program)?.len())
    }

    fn log_bytes(&self, program: &str) -> Result<Vec<u8>> {
        let file = self.path(&format!("log/{program}.log"));
        std::fs::read(&file).with_context(|| format!("read {}", file.display()))
    }

    /// The name of the stack's network namespace.
    pub fn netns_name(&self) -> &str {
        &self.netns
    }

    /// A client of the daemon.
    pub async fn cri(&self) -> Result<Cri> {
        Cri::connect(&self.path("run/vmlet.sock")).await
    }

    /// A client of the daemon's node API.
    pub async fn node(&self) -> Result<NodeApi> {
        NodeApi::connect(&self.path("run/node/node.sock")).await
    }

    /// The name of the image that boots.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// A client of a daemon that has the image.
    pub async fn cri_with_image(&self) -> Result<Cri> {
        let cri = self.cri().await?;
        cri.await_ready().await?;
        cri.pull(&self.image).await.context("PullImage")?;
        Ok(cri)
    }

    /// A pod of this name.
    pub fn pod(&self, name: &str) -> PodOptions {
        PodOptions {
            name: name.to_owned(),
            logs: self.path("logs").join(name),
            ..PodOptions::default()
        }
    }

    /// The container of a pod.
    pub fn container(&self, pod: &PodOptions) -> v1::ContainerConfig {
        pod.container(&self.image, 0)
    }

    /// Boots a pod; times each call.
    pub async fn boot(&self, cri: &Cri, pod: &PodOptions) -> Result<(Booted, Calls)> {
        let begun = Instant::now();
        let sandbox = cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
        let run = begun.elapsed();
        let begun = Instant::now();
        let container = self.create(cri, pod, &sandbox).await?;
        let create = begun.elapsed();
        let begun = Instant::now();
        cri.start(&container).await.context("StartContainer")?;
        let start = begun.elapsed();
        Ok((Booted { sandbox, container }, Calls { run, create, start }))
    }

    /// Creates the container of a pod.
    pub async fn create(&self, cri: &Cri, pod: &PodOptions, sandbox: &str) -> Result<String> {
        Box::pin(cri.create(sandbox, self.container(pod), pod.sandbox()))
            .await
            .context("CreateContainer")
    }

    /// Takes a pod away again, whatever its machine does.
    pub async fn remove(&self, cri: &Cri, sandbox: &str) -> Result<()> {
        cri.stop_pod(sandbox).await.context("StopPodSandbox")?;
        cri.remove_pod(sandbox).await.context("RemovePodSandbox")
    }
}

/// A path among the arguments of a command line.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

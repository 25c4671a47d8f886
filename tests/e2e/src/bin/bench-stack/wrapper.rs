//! Measures the cost of vmwrapper: the same program executed directly and through it.
//!
//! Invariant: tokens and descriptors come from the stack's tapmanager, as for a real start; making
//! the token is not part of the time. Kinds of runs take turns.
//! Failure: a run that ended badly, with what it said.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tapmanager::client::Client;
use tapmanager::wire::{StartRequest, start_socket};

use crate::samples::Samples;
use e2e::bench::PodCgroup;
use e2e::bench::{Stack, text};

/// Stands in for QEMU: ends at once whatever its arguments.
const EMULATOR: &str = "/bin/true";
const DEADLINE: Duration = Duration::from_secs(10);

/// `count` runs of each kind: direct, through the wrapper, and also placed in a pod's cgroup.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let pod = stack.pod("wrapper");
    let sandbox = cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
    let cgroup = PodCgroup::make(stack.netns_name())?;
    let runs = Runs::new(stack, &sandbox);
    let mut samples = Samples::default();
    for _ in 0..count {
        samples.time("direct", run(&mut Command::new(EMULATOR))?);
        samples.time("wrapped", runs.through_wrapper("").await?);
        samples.time("wrapped_placed", runs.through_wrapper(cgroup.name()).await?);
    }
    stack.remove(&cri, &sandbox).await?;
    Ok(samples)
}

struct Runs<'a> {
    tapmanager: Client,
    wrapper: PathBuf,
    handoff: PathBuf,
    sandbox: &'a str,
}

impl<'a> Runs<'a> {
    fn new(stack: &Stack, sandbox: &'a str) -> Self {
        Self {
            tapmanager: Client::new(stack.path("run/tapmanager.sock"), DEADLINE),
            wrapper: stack.path("bin/vmwrapper"),
            handoff: stack.path("run/handoff.sock"),
            sandbox,
        }
    }

    async fn through_wrapper(&self, cgroup_parent: &str) -> Result<Duration> {
        let request = StartRequest {
            memory_bytes: 0,
            uid: None,
            id: self.sandbox.to_owned(),
            cgroup_parent: cgroup_parent.to_owned(),
        };
        let permit = self.tapmanager.prepare_start(request).await?;
        let socket = permit.socket.context("the start has no socket")?;
        let mut wrapper = Command::new(&self.wrapper);
        wrapper
            .env("VMLET_EMULATOR", EMULATOR)
            .env(
                "VMLET_HANDOFF_SOCKET",
                text(&start_socket(&self.handoff, &socket))?,
            )
            .env("VMLET_START_TOKEN", permit.token);
        run(&mut wrapper)
    }
}

/// Time from the start of a program to its end.
fn run(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    let output = tokio::task::block_in_place(|| command.output())?;
    let took = begun.elapsed();
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {reported}", output.status);
    Ok(took)
}

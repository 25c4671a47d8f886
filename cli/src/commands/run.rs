//! `run`: a pod from its manifest to its end, as kubelet would do it.
//!
//! sandbox, image, container, start, follow; then stop and remove, whatever happened.
//!
//! Invariant: what this run has made is removed when it fails or ends, unless the user keeps it.
//! Failure: [`RunError`], or the failed step; what could not be removed is named with a command to
//! do so.

mod launch;
mod log_directory;
mod teardown;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use cri_proto::v1::ContainerStatus;

use crate::context::Endpoint;
use crate::interrupt::Interrupts;
use crate::logs::{LogReader, follow};
use crate::manifest::PodManifest;
use crate::runtime::Runtime;
use crate::table::short;
use launch::Launched;

/// Pod to run, and what happens to it afterwards.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Pod manifest in YAML or JSON; - reads standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Leave the pod running and print its name, ID and address.
    #[arg(short, long)]
    detach: bool,
    /// Keep the pod after its VM has ended, for inspection.
    #[arg(long, conflicts_with = "detach")]
    keep: bool,
    /// Remove the pod after its VM has ended (the default).
    #[arg(long, conflicts_with_all = ["detach", "keep"])]
    rm: bool,
    /// Directory for console logs, with a subdirectory for each pod [default: vmlet-logs in the
    /// directory for temporary files].
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
}

/// Why a run ended without a verdict of the guest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("interrupted")]
    Interrupted,
    #[error(
        "pod {namespace}/{name} exists already ({id}, {state}): remove it with `vmletctl rm -f \
         {id}`, or give this one another name"
    )]
    Exists {
        namespace: String,
        name: String,
        id: String,
        state: &'static str,
    },
    #[error("image {0} is not on this node, and imagePullPolicy Never forbids to pull it")]
    NoImage(String),
}

/// One run in the making.
struct Run {
    runtime: Runtime,
    pod: PodManifest,
    log_directory: PathBuf,
    interrupts: Interrupts,
}

pub(crate) async fn run(endpoint: &Endpoint, args: RunArgs) -> anyhow::Result<ExitCode> {
    let pod = PodManifest::load(&args.file)?;
    for warning in &pod.warnings {
        eprintln!("warning: {warning}");
    }
    let runtime = endpoint.connect().await?;
    refuse_second(&runtime, &pod).await?;
    let interrupts = Interrupts::listen().context("listen for signals")?;
    let log_directory = log_directory::create(args.log_dir.as_deref(), &pod)?;
    let mut run = Run {
        runtime,
        pod,
        log_directory,
        interrupts,
    };
    let outcome = run.carry_out(args.detach).await;
    if outcome.is_err() || !(args.detach || args.keep) {
        run.tear_down().await;
    } else if args.keep {
        eprintln!("kept: `vmletctl rm {}` removes the pod", run.pod.name);
    }
    outcome
}

/// The other commands could not distinguish two pods with one name.
async fn refuse_second(runtime: &Runtime, pod: &PodManifest) -> anyhow::Result<()> {
    let others = runtime.sandboxes(crate::request::name_labels(pod)).await?;
    let Some(other) = others.into_iter().next() else {
        return Ok(());
    };
    let other = crate::pods::Pod {
        sandbox: other,
        containers: vec![],
    };
    Err(RunError::Exists {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        id: short(other.id()),
        state: other.state(),
    }
    .into())
}

impl Run {
    async fn carry_out(&mut self, detach: bool) -> anyhow::Result<ExitCode> {
        let started = self.launch().await?;
        if detach {
            let name = &self.pod.name;
            let id = short(&started.sandbox);
            let ip = &started.ip;
            super::print(&format!("pod {name} id {id} ip {ip}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let since = Instant::now();
        let status = self.follow(&started).await?;
        let reason = crate::table::printable(&status.reason);
        let code = status.exit_code;
        let after = since.elapsed().as_secs_f64();
        eprintln!("ended: {reason} (exit code {code}) after {after:.2} s");
        Ok(verdict(&status))
    }

    /// Shows the console until the VM has ended; the first interrupt asks it to, the second kills
    /// it.
    async fn follow(&mut self, started: &Launched) -> anyhow::Result<ContainerStatus> {
        let container = started.container.as_str();
        let mut out = tokio::io::stdout();
        let reader = LogReader::new(&started.log);
        let runtime = self.runtime.clone();
        tokio::select! {
            status = follow(&runtime, container, reader, &mut out) => Ok(status?),
            error = self.stop_on_interrupt(container) => Err(error),
        }
    }

    /// Ends only with an error: that the VM has ended is for its status to say.
    async fn stop_on_interrupt(&mut self, container: &str) -> anyhow::Error {
        self.interrupts.next().await;
        let grace = self.pod.grace;
        eprintln!("stopping, up to {grace} s; Ctrl-C again kills the VM");
        let stopped = tokio::select! {
            stopped = self.runtime.stop_container(container, grace) => stopped,
            () = self.interrupts.next() => {
                eprintln!("killing the VM");
                self.runtime.stop_container(container, 0).await
            }
        };
        match stopped {
            Ok(()) => std::future::pending().await,
            Err(error) => error.into(),
        }
    }
}

/// The guest's outcome as an exit code.
fn verdict(status: &ContainerStatus) -> ExitCode {
    ExitCode::from(u8::try_from(status.exit_code).unwrap_or(1))
}

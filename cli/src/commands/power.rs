//! The verbs of a machine's power: `start`, `stop`, `restart`, `suspend`, `resume`, `pause`,
//! `unpause`.
//!
//! Invariant: a verb writes what was decided from what was read, or nothing: patches test what they
//! replace.
//! Failure: a machine in no state for the verb is a conflict with a reason; the other names are
//! still done.

use std::process::ExitCode;

use clap::Args;
use crds::VirtualMachine;
use kube::api::{Patch, PatchParams};
use lifecycle::verbs::Verb;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::each;
use super::follow::{Goal, Target, follow};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names, seconds};

/// How often a verb is decided again when the machine changed meanwhile.
const ATTEMPTS: u32 = 5;

/// Options of all power commands.
#[derive(Debug, Args)]
pub(crate) struct VerbArgs {
    #[command(flatten)]
    names: Names,
    /// Only validate the change in the cluster; do not make it.
    #[arg(long)]
    dry_run: bool,
    /// Print each step until the machines are as requested. Ctrl-C ends this only.
    #[arg(short, long, alias = "wait", conflicts_with = "dry_run")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// Start with paused vCPUs; `unpause` continues them.
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    verb: VerbArgs,
}

/// Options of `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Power off immediately, without a request to the guest.
    #[arg(long, conflicts_with = "grace_period")]
    force: bool,
    /// Time for the guest to power off before it is forced off, such as 20 (seconds), 20s or 2m
    /// [default: spec.powerOffTimeout].
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    grace_period: Option<u32>,
    #[command(flatten)]
    verb: VerbArgs,
}

/// Options of `restart`.
#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// Power off immediately, without a request to the guest.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    verb: VerbArgs,
}

pub(crate) async fn start(args: &StartArgs) -> anyhow::Result<ExitCode> {
    let paused = args.paused;
    each(&args.verb, Verb::Start { paused }, "start requested").await
}

pub(crate) async fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let grace_seconds = if args.force {
        Some(0)
    } else {
        args.grace_period
    };
    each(&args.verb, Verb::Stop { grace_seconds }, "stop requested").await
}

pub(crate) async fn restart(args: &RestartArgs) -> anyhow::Result<ExitCode> {
    let force = args.force;
    each(&args.verb, Verb::Restart { force }, "restart requested").await
}

pub(crate) async fn suspend(args: &VerbArgs) -> anyhow::Result<ExitCode> {
    each(args, Verb::Suspend, "suspend requested").await
}

pub(crate) async fn resume(args: &VerbArgs) -> anyhow::Result<ExitCode> {
    each(args, Verb::Resume, "resume requested").await
}

pub(crate) async fn pause(args: &VerbArgs) -> anyhow::Result<ExitCode> {
    each(args, Verb::Pause, "pause requested").await
}

pub(crate) async fn unpause(args: &VerbArgs) -> anyhow::Result<ExitCode> {
    each(args, Verb::Unpause, "unpause requested").await
}

async fn each(args: &VerbArgs, verb: Verb, done: &str) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let how = if args.dry_run { " (dry run)" } else { "" };
    let mut targets = Vec::new();
    let ended = each::machine(&args.names, &format!("{done}{how}"), async |name| {
        let before = ask_again(&cluster, name, verb, args.dry_run).await?;
        targets.push(Target::new(&before, goal(verb)));
        Ok(())
    })
    .await;
    if args.watch && !targets.is_empty() {
        let followed = follow(&args.cluster, targets).await;
        if ended.is_err()
            && let Err(error) = &followed
        {
            eprintln!("error: {error:#}");
        }
        return ended.and_then(|code| followed.map(|()| code));
    }
    ended
}

/// What a machine becomes by the verb.
const fn goal(verb: Verb) -> Goal {
    match verb {
        Verb::Start { paused: true } | Verb::Pause => Goal::Paused,
        Verb::Start { paused: false } | Verb::Resume | Verb::Unpause => Goal::Ready,
        Verb::Stop { .. } => Goal::Stopped,
        Verb::Restart { .. } => Goal::Restarted,
        Verb::Suspend => Goal::Suspended,
    }
}

/// The controller writes to the same object: who loses to it reads and decides again, a few times. The
/// machine as it was before.
pub(super) async fn ask_again(
    cluster: &Cluster,
    name: &str,
    verb: Verb,
    dry_run: bool,
) -> Result<VirtualMachine, ClusterError> {
    for _ in 1..ATTEMPTS {
        match request(cluster, name, verb, dry_run).await {
            Err(ClusterError::Raced { .. }) => {}
            answer => return answer,
        }
    }
    request(cluster, name, verb, dry_run).await
}

/// Reads, decides, and writes what was decided. The queue comes first: a start that waits in it
/// would undo a desired state that is "off".
async fn request(
    cluster: &Cluster,
    name: &str,
    verb: Verb,
    dry_run: bool,
) -> Result<VirtualMachine, ClusterError> {
    let found = cluster.find(name).await?;
    let change = found.change(verb)?;
    let api = cluster.machines();
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    let params = PatchParams {
        dry_run,
        field_manager: Some("vmletctl".to_owned()),
        ..PatchParams::default()
    };
    if let Some(patch) = change.status_patch(&found.vm) {
        let patch: Patch<()> = Patch::Json(parsed(patch)?);
        api.patch_status(name, &params, &patch)
            .await
            .map_err(about)?;
    }
    if let Some(patch) = change.object_patch(&found.vm) {
        let patch: Patch<()> = Patch::Json(parsed(patch)?);
        api.patch(name, &params, &patch).await.map_err(about)?;
    }
    Ok(found.vm)
}

fn parsed<T: DeserializeOwned>(patch: Value) -> Result<T, ClusterError> {
    serde_json::from_value(patch)
        .map_err(|error| ClusterError::Other(Box::new(kube::Error::SerdeError(error))))
}

//! `try`: boots a guest as a pod, waits until it is up, and deletes the pod.
//!
//! Invariant: no pod but the one that this command has made, now or in an earlier run that was killed, is
//! deleted; when the command ends by itself, its pod is gone or named.
//! Failure: [`TryError`] with what the pod reports; the cluster's.

mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, LogParams, PostParams, Preconditions};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::verdict::{State, state};
use super::run::RunError;
use crate::cluster::{Cluster, ClusterArgs, ClusterError, seconds};
use crate::interrupt::Interrupts;

/// Time between two looks at the pod.
const TICK: Duration = Duration::from_secs(2);
/// How long a deletion waits for an API server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the guest may take to power off.
const GRACE: u32 = 10;
/// Label of the pods of this command.
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "vmlet-try");
const CONTAINER: &str = "vm";

/// Guest to boot.
#[derive(Debug, Args)]
pub(crate) struct TryArgs {
    /// Image of the guest.
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Text that the guest writes to its console when it is up; without it, a pod that is ready is
    /// enough.
    #[arg(long, value_name = "TEXT")]
    console: Option<String>,
    /// Number of virtual CPUs.
    #[arg(long, value_name = "CPUS", default_value = "1")]
    cpu: String,
    /// Memory of the guest.
    #[arg(long, value_name = "SIZE", default_value = "512Mi")]
    memory: String,
    /// Name of the pod.
    #[arg(long, value_name = "NAME", default_value = "vmlet-try")]
    name: String,
    /// Maximum time until the guest is up, such as 20 (seconds), 20s or 2m.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
    timeout: u32,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Why no guest is up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum TryError {
    #[error("pod {0} exists and was not made by this command: choose another name with --name")]
    Foreign(String),
    #[error("pod {name} ended: {message}")]
    Ended { name: String, message: String },
    #[error("pod {name} was deleted by another client")]
    Deleted { name: String },
    #[error("the guest is not up after {seconds} s: {message}")]
    Late { seconds: u32, message: String },
}

pub(crate) async fn run(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let pods: Api<Pod> = cluster.api();
    let mut interrupts = Interrupts::listen().context("listen for signals")?;
    let begun = Instant::now();
    let outcome = tokio::select! {
        outcome = boot(args, &cluster, begun) => outcome,
        () = interrupts.next() => Err(RunError::Interrupted.into()),
    };
    // What could not be deleted must not hide why no guest is up.
    let deleted = delete(&pods, &cluster, &args.name).await;
    let node = outcome?;
    deleted?;
    let seconds = begun.elapsed().as_secs();
    super::print(&format!(
        "a guest was up on node {node}; its pod is deleted, after {seconds} s\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Boots the guest; returns the name of its node.
async fn boot(args: &TryArgs, cluster: &Cluster, begun: Instant) -> anyhow::Result<String> {
    let pods: Api<Pod> = cluster.api();
    let about = |error| ClusterError::about(&cluster.namespace, &args.name, error);
    delete(&pods, cluster, &args.name).await?;
    let pod = pods.create(&PostParams::default(), &args.pod()?).await;
    pod.map_err(about)?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shown = String::new();
    loop {
        ticks.tick().await;
        let name = args.name.clone();
        let message = match args.look(&pods).await.map_err(about) {
            Ok(None) => return Err(TryError::Deleted { name }.into()),
            Ok(Some(State::Up { node })) => return Ok(node),
            Ok(Some(State::Ended(message))) => return Err(TryError::Ended { name, message }.into()),
            Ok(Some(State::Waits(message))) => message,
            Err(error) if error.is_transient() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if begun.elapsed() > Duration::from_secs(args.timeout.into()) {
            let seconds = args.timeout;
            return Err(TryError::Late { seconds, message }.into());
        }
        if message != shown {
            eprintln!("pod {name}: {message}");
            shown = message;
        }
    }
}

impl TryArgs {
    /// It asks for nothing that the Pod Security Standard `restricted` refuses.
    fn pod(&self) -> serde_json::Result<Pod> {
        let (label, value) = LABEL;
        serde_json::from_value(json!({
            "metadata": { "name": self.name, "labels": { label: value } },
            "spec": {
                "runtimeClassName": crds::names::RUNTIME_CLASS,
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": GRACE,
                "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": CONTAINER,
                    "image": self.image,
                    "resources": { "limits": { "cpu": self.cpu, "memory": self.memory } },
                }],
            },
        }))
    }

    /// The state of the guest; none without its pod.
    async fn look(&self, pods: &Api<Pod>) -> kube::Result<Option<State>> {
        let Some(pod) = pods.get_opt(&self.name).await? else {
            return Ok(None);
        };
        Ok(Some(match state(&pod) {
            State::Up { node } if !self.is_on_console(pods).await? => State::Waits(format!(
                "it runs on node {node}, and its console shows nothing like that yet"
            )),
            state => state,
        }))
    }

    /// Whether the guest has written the text.
    async fn is_on_console(&self, pods: &Api<Pod>) -> kube::Result<bool> {
        let Some(text) = &self.console else {
            return Ok(true);
        };
        let log = pods.logs(&self.name, &LogParams::default()).await?;
        Ok(log.contains(text))
    }
}

/// Deletes the pod of this command, and waits until it no longer exists. An API server that does not
/// answer is asked again for a while.
async fn delete(pods: &Api<Pod>, cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let mut ticks = interval(TICK);
    let mut deleted = None;
    let mut failing = None;
    loop {
        ticks.tick().await;
        match delete_once(pods, name, &mut deleted).await {
            Ok(Progress::Gone) => return Ok(()),
            Ok(Progress::Foreign) => return Err(TryError::Foreign(name.to_owned()).into()),
            Ok(Progress::Leaving) => failing = None,
            Err(error) => {
                let error = ClusterError::about(&cluster.namespace, name, error);
                let since = *failing.get_or_insert_with(Instant::now);
                if !error.is_transient() || since.elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
        }
    }
}

/// How far a deletion is.
enum Progress {
    Gone,
    Leaving,
    /// The pod is not of this command.
    Foreign,
}

/// One request, unless the pod of this UID was deleted before.
async fn delete_once(
    pods: &Api<Pod>,
    name: &str,
    deleted: &mut Option<String>,
) -> kube::Result<Progress> {
    let Some(pod) = pods.get_opt(name).await? else {
        return Ok(Progress::Gone);
    };
    let (label, value) = LABEL;
    if pod.labels().get(label).map(String::as_str) != Some(value) {
        return Ok(Progress::Foreign);
    }
    if *deleted != pod.uid() {
        let this_one = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match pods.delete(name, &this_one).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer?),
        }
        *deleted = pod.uid();
    }
    Ok(Progress::Leaving)
}

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
        let pod = pods.get_opt(&args.name).await.map_err(about)?;
        let name = args.name.clone();
        let pod = pod.ok_or(TryError::Deleted { name: name.clone() })?;
        let message = match state(&pod) {
            State::Up { node } if args.is_on_console(&pods).await.map_err(about)? => {
                return Ok(node);
            }
            State::Up { node } => {
                format!("it runs on node {node}, and its console shows nothing like that yet")
            }
            State::Ended(message) => return Err(TryError::Ended { name, message }.into()),
            State::Waits(message) => message,
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

    /// Whether the guest has written the text.
    async fn is_on_console(&self, pods: &Api<Pod>) -> kube::Result<bool> {
        let Some(text) = &self.console else {
            return Ok(true);
        };
        let log = pods.logs(&self.name, &LogParams::default()).await?;
        Ok(log.contains(text))
    }
}

/// Deletes the pod of this command, and waits until it no longer exists.
async fn delete(pods: &Api<Pod>, cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    let mut ticks = interval(TICK);
    let mut deleted = None;
    loop {
        ticks.tick().await;
        let Some(pod) = pods.get_opt(name).await.map_err(about)? else {
            return Ok(());
        };
        let (label, value) = LABEL;
        if pod.labels().get(label).map(String::as_str) != Some(value) {
            return Err(TryError::Foreign(name.to_owned()).into());
        }
        if deleted != pod.uid() {
            deleted = pod.uid();
            let this_one = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: pod.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match pods.delete(name, &this_one).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => drop(answer.map_err(about)?),
            }
        }
    }
}

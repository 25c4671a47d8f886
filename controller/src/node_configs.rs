//! The status of `NodeConfig` objects: how many nodes match, and what these have made of them.
//!
//! The agents apply the objects; each says on its own Node what came of it. Here that is summarized.
//!
//! Invariant: a status is written only when it changed, at most every [`LEAST`]; heartbeats of nodes
//! cause no pass. Nothing but the status is written.
//! Failure: a write that fails is repeated after a delay that grows to a minute.

mod known;
mod status;

use std::pin::pin;
use std::time::Duration;

use crds::guard::Guarded;
use crds::{NodeConfig, NodeConfigStatus};
use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use service::backoff::Backoff;
use service::telemetry::one_line;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::known::Known;

/// Least time between two passes: many nodes apply an object at the same time.
const LEAST: Duration = Duration::from_secs(2);
/// Longest time between passes when a status cannot be written.
const LONGEST: Duration = Duration::from_secs(60);
/// Longest wait for the API server.
const API: Duration = Duration::from_secs(10);
/// Objects of one page of a list.
const PAGE: u32 = 25;

/// Keeps the statuses true until `stop`.
pub async fn run(client: Client, stop: CancellationToken) {
    let paged = || Config::default().page_size(PAGE);
    let objects = Api::<Guarded<NodeConfig>>::all(client.clone());
    let objects = watcher(objects, paged()).default_backoff();
    let nodes = Api::<Guarded<PartialObjectMeta<Node>>>::all(client.clone());
    let nodes = watcher(nodes, paged()).default_backoff();
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&client, objects, nodes) => {}
    }
}

async fn follow(
    client: &Client,
    objects: impl Stream<Item = Result<Event<Guarded<NodeConfig>>, Error>>,
    nodes: impl Stream<Item = Result<Event<Guarded<PartialObjectMeta<Node>>>, Error>>,
) {
    let mut objects = pin!(objects);
    let mut nodes = pin!(nodes);
    let mut known = Known::default();
    let mut retry = Backoff::new(LEAST, LONGEST);
    // A pass is due, and not before this time.
    let mut due = None::<Instant>;
    let mut last = Instant::now();
    loop {
        let pass = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            event = objects.next() => match event {
                Some(Ok(event)) => known.take_object(event),
                Some(Err(error)) => interrupted("node_configs", &error),
                None => return,
            },
            event = nodes.next() => match event {
                Some(Ok(event)) => known.take_node(event),
                Some(Err(error)) => interrupted("node_settings", &error),
                None => return,
            },
            () = pass, if known.is_complete() => {
                last = Instant::now();
                due = match write_all(client, &mut known).await {
                    Ok(()) => {
                        retry.reset();
                        None
                    }
                    Err(error) => {
                        tracing::warn!(error, "status of a NodeConfig not written");
                        Some(last + retry.failed(last))
                    }
                };
                false
            }
        };
        if changed {
            due = Some(due.unwrap_or(last + LEAST).min(last + LEAST));
        }
    }
}

fn interrupted(kind: &'static str, error: &Error) -> bool {
    tracing::warn!(kind, error = one_line(error), "watch interrupted");
    false
}

/// Writes the statuses that are to change.
async fn write_all(client: &Client, known: &mut Known) -> Result<(), String> {
    let mut failed = Ok(());
    for (name, version, status) in known.changes(&Time(Timestamp::now())) {
        match write(client, &name, version.as_deref(), &status).await {
            Ok(()) => known.wrote(&name, status),
            // Its watch brings what it is now.
            Err(kube::Error::Api(error)) if [404, 409].contains(&error.code) => {}
            Err(error) => failed = Err(format!("{name}: {}", one_line(&error))),
        }
    }
    failed
}

async fn write(
    client: &Client,
    name: &str,
    version: Option<&str>,
    status: &NodeConfigStatus,
) -> Result<(), kube::Error> {
    let api = Api::<NodeConfig>::all(client.clone());
    let patch = Patch::Merge(json!({
        "metadata": { "resourceVersion": version },
        "status": status,
    }));
    let params = PatchParams::default();
    match tokio::time::timeout(API, api.patch_status(name, &params, &patch)).await {
        Ok(written) => written.map(drop),
        Err(elapsed) => Err(kube::Error::Service(Box::new(elapsed))),
    }
}

#[cfg(test)]
mod tests;

//! Brings the `NodeConfig` objects that match this node to the daemon, merged, and says on the Node
//! what the daemon has made of them.
//!
//! Invariant: the daemon always gets all settings. An object that cannot be read counts as it was
//! when it last could; if it never could, what the node has of it stays, unless another object gives that. The
//! Node is written only when the result is another than what it says.
//! Failure: while API server or daemon are away, the daemon works with the last settings, and the
//! next attempt follows. A daemon that knows no such settings is reported on the Node.

mod merge;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::NodeConfig;
use crds::guard::Guarded;
use crds::names::NODE_SETTINGS;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use service::backoff::Backoff;
use service::telemetry::one_line;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use self::merge::Known;
use crate::daemon::{Daemon, status_message};
use crate::metrics::Metrics;

/// The daemon keeps what it gets; this is for a daemon whose state was lost, or that is another
/// version.
const AGAIN: Duration = Duration::from_secs(300);
/// Longest wait for the API server.
const API: Duration = Duration::from_secs(8);
/// What is said of all settings where the daemon knows none.
const OLD_DAEMON: &str =
    "the daemon of this node is too old for settings of NodeConfig objects: update it";

/// What the work takes.
pub(crate) struct Configurator {
    pub(crate) client: kube::Client,
    pub(crate) daemon: Daemon,
    pub(crate) node: String,
    pub(crate) metrics: Arc<Metrics>,
}

/// The Node as the API server has it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    labels: BTreeMap<String, String>,
    /// What it says of its settings.
    report: Option<String>,
}

impl Configurator {
    /// Works until `stop`. `nodes` has this node alone.
    pub(crate) async fn run(
        mut self,
        configs: impl Stream<Item = watcher::Result<Event<Guarded<NodeConfig>>>>,
        nodes: impl Stream<Item = watcher::Result<Event<PartialObjectMeta<Node>>>>,
        stop: CancellationToken,
    ) {
        let mut configs = std::pin::pin!(configs);
        let mut nodes = std::pin::pin!(nodes);
        let mut known = Known::default();
        let mut own = None::<Own>;
        let mut backoff = Backoff::default();
        let mut next = Instant::now();
        let mut was_away = false;
        loop {
            let is_complete = known.is_complete() && own.is_some();
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                event = configs.next() => match event {
                    None => return,
                    Some(event) => heed(event, &mut was_away).is_some_and(|event| {
                        known.apply(event);
                        true
                    }),
                },
                event = nodes.next() => match event {
                    None => return,
                    Some(event) => heed(event, &mut was_away).is_some_and(|event| {
                        let seen = seen(event);
                        let is_other = seen.is_some() && seen != own;
                        own = seen.or(own.take());
                        is_other
                    }),
                },
                () = tokio::time::sleep_until(next), if is_complete => {
                    let Some(own) = &mut own else { continue };
                    let sent = self.send(&known, own).await;
                    let now = Instant::now();
                    next = now + match sent {
                        Ok(()) => {
                            backoff.reset();
                            AGAIN
                        }
                        Err(error) => {
                            tracing::warn!(error, "settings of the node not applied");
                            backoff.failed(now)
                        }
                    };
                    false
                }
            };
            if changed {
                // Events that have come together are one change.
                next = Instant::now();
            }
        }
    }

    async fn send(&mut self, known: &Known, own: &mut Own) -> Result<(), String> {
        let merged = known.merge(&self.node, &own.labels);
        let response = self.daemon.set_node_settings(merged.request()).await;
        let report = match response {
            Ok(response) => report::from_answer(&merged, response.into_inner()),
            Err(status) if status.code() == Code::Unimplemented => {
                report::refused(&merged, OLD_DAEMON)
            }
            Err(status) => return Err(status_message(&status)),
        };
        let report = report.map(crds::node_settings::NodeSettingsReport::text);
        if report == own.report {
            return Ok(());
        }
        let written = self.write(report.as_deref()).await;
        self.metrics.wrote("node", written.is_ok());
        written?;
        tracing::info!(
            objects = merged.observed.len(),
            settings = merged.settings.len(),
            "settings of the node applied"
        );
        own.report = report;
        Ok(())
    }

    async fn write(&self, report: Option<&str>) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({
            "metadata": { "annotations": { NODE_SETTINGS: report } },
        }));
        let params = PatchParams::default();
        let written = nodes.patch_metadata(&self.node, &params, &patch);
        match tokio::time::timeout(API, written).await {
            Ok(written) => written.map(drop).map_err(|error| one_line(&error)),
            Err(_) => Err("the API server did not answer in time".to_owned()),
        }
    }
}

/// The event, or a line in the log when a watch begins to fail.
fn heed<E>(event: watcher::Result<E>, was_away: &mut bool) -> Option<E> {
    match event {
        Ok(event) => {
            *was_away = false;
            Some(event)
        }
        Err(error) => {
            if !std::mem::replace(was_away, true) {
                let error = one_line(&error);
                tracing::warn!(error, "settings of the node not watched");
            }
            None
        }
    }
}

/// The node that an event is about. A node that is deleted is on its way out, or comes back.
fn seen(event: Event<PartialObjectMeta<Node>>) -> Option<Own> {
    let (Event::Apply(node) | Event::InitApply(node)) = event else {
        return None;
    };
    let annotations = node.metadata.annotations.unwrap_or_default();
    Some(Own {
        labels: node.metadata.labels.unwrap_or_default(),
        report: annotations.get(NODE_SETTINGS).cloned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_away_for_a_moment_keeps_what_is_known_of_it() {
        let node = json!({ "metadata": {
            "labels": { "zone": "a" }, "annotations": { NODE_SETTINGS: "x", "other": "y" },
        }});
        let node: PartialObjectMeta<Node> = serde_json::from_value(node).unwrap();
        let expected = Own {
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            report: Some("x".to_owned()),
        };
        let events = [Event::InitApply(node.clone()), Event::Apply(node.clone())];
        for event in events {
            assert_eq!(seen(event).as_ref(), Some(&expected));
        }
        for event in [Event::Init, Event::InitDone, Event::Delete(node)] {
            assert_eq!(seen(event), None);
        }
    }
}

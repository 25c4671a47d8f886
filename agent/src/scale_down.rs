//! Keeps autoscalers of nodes from deleting this node while it has disks of machines.
//!
//! A machine that is off has its disk here and no pod, so that for an autoscaler the node is empty.
//! The agent counts the disks, and annotates its own Node while there are some. A disk counts also when
//! no record of it can be read.
//!
//! Invariant: nothing is concluded from a daemon that does not answer, or that cannot see all disks; a
//! value of an administrator is neither changed nor removed.
//! Failure: logged once, and the next round looks again.

mod decide;

use std::sync::Arc;
use std::time::Duration;

use crds::node_facts::RENEW_SECONDS;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nodeapi::v1::ListDisksRequest;
use serde_json::json;
use service::telemetry::one_line;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, status_message};
use crate::metrics::Metrics;

pub(crate) use decide::DiskCount;

/// Between two counts of the disks: far less than autoscalers wait before they delete a node.
const ROUND: Duration = Duration::from_secs(RENEW_SECONDS as u64);
/// Time after which the Node is read again, although the disks are as they were: it may have been
/// made again, or edited.
const READ_AGAIN: Duration = Duration::from_secs(300);
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(8);

/// Counts the disks and annotates the Node.
pub(crate) struct Keeper {
    pub(crate) client: Client,
    pub(crate) daemon: Daemon,
    pub(crate) node: String,
    /// The number of disks, as soon as it is known; also for the node's facts.
    pub(crate) disks: watch::Sender<Option<DiskCount>>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What the annotations of the Node are for, and since when.
#[derive(Debug, Clone, Copy)]
struct Settled {
    has_disks: bool,
    at: Instant,
}

impl Keeper {
    /// Counts until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // Nothing has to be finished: the next agent begins by reading the Node.
        let _ = stop.run_until_cancelled(self.rounds()).await;
    }

    async fn rounds(mut self) {
        let mut settled: Option<Settled> = None;
        let mut is_complaining = false;
        loop {
            match self.round(settled).await {
                Ok(now) => {
                    settled = Some(now);
                    is_complaining = false;
                }
                Err(error) => {
                    settled = None;
                    if !is_complaining {
                        tracing::warn!(error, "node not kept from autoscalers");
                    }
                    is_complaining = true;
                }
            }
            tokio::time::sleep(ROUND).await;
        }
    }

    async fn round(&mut self, settled: Option<Settled>) -> Result<Settled, String> {
        let count = self.count().await?;
        self.disks.send_replace(Some(count));
        let has_disks = count.all > 0;
        let is_settled =
            |known: &Settled| known.has_disks == has_disks && known.at.elapsed() < READ_AGAIN;
        if let Some(known) = settled.filter(is_settled) {
            return Ok(known);
        }
        self.annotate(has_disks).await?;
        Ok(Settled {
            has_disks,
            at: Instant::now(),
        })
    }

    async fn count(&mut self) -> Result<DiskCount, String> {
        let answer = tokio::time::timeout(ANSWER, self.daemon.list_disks(ListDisksRequest {}));
        let answer = answer.await.map_err(|_| silent("the daemon"))?;
        let answer = answer.map_err(|status| status_message(&status))?;
        Ok(decide::count(&answer.into_inner().disks))
    }

    async fn annotate(&self, has_disks: bool) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = tokio::time::timeout(ANSWER, nodes.get_metadata(&self.node));
        let found = found.await.map_err(|_| silent("the API server"))?;
        let found = found.map_err(|error| one_line(&error))?;
        let changes = decide::changes(found.annotations(), has_disks);
        if changes.is_empty() {
            return Ok(());
        }
        // With the version that was read: an administrator's edit in between is not overwritten.
        let patch = Patch::Merge(json!({ "metadata": {
            "resourceVersion": found.resource_version(),
            "annotations": changes,
        }}));
        let params = PatchParams::default();
        let patched = nodes.patch_metadata(&self.node, &params, &patch);
        let patched = tokio::time::timeout(ANSWER, patched).await;
        let is_written = matches!(patched, Ok(Ok(_)));
        self.metrics.wrote("node", is_written);
        let patched = patched.map_err(|_| silent("the API server"))?;
        patched.map_err(|error| one_line(&error))?;
        tracing::info!(has_disks, "annotations of the node written");
        Ok(())
    }
}

fn silent(who: &str) -> String {
    format!("{who} did not answer in time")
}

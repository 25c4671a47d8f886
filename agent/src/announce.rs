//! Announces what the node has for machines: labels and a condition of its own Node.
//!
//! Invariant: the Node is read and written only when the daemon's answer says something else, and
//! every [`HEARTBEAT`]; only labels of our own domains and our own condition are written.
//! Failure: logged once, and tried again with the daemon's next answer.

mod condition;
mod labels;

use std::sync::Arc;
use std::time::Duration;

use crds::names::NODE_READY;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nodeapi::v1::InfoResponse;
use serde_json::json;
use service::telemetry::one_line;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::condition::Words;
use self::labels::Labels;
use crate::metrics::Metrics;

/// Time after which the condition is renewed although nothing has changed, as kubelet does with
/// its own; edits of labels are mended then.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// Longest wait for the API server.
const API: Duration = Duration::from_secs(8);
/// Answers in a row that fail before the daemon counts as unavailable: a restart takes a second.
const FAILURES: u32 = 2;

/// What the daemon answered, or why it did not.
pub(crate) type Answer = Result<InfoResponse, String>;

/// Writes the Node.
pub(crate) struct Announcer {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) answers: watch::Receiver<Option<Answer>>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What the Node is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Announcement {
    /// As far as they are known.
    labels: Labels,
    condition: Words,
}

/// An announcement, and when it was written.
#[derive(Debug)]
struct Written {
    announcement: Announcement,
    at: Instant,
}

/// The answers so far.
#[derive(Debug, Default)]
struct Course {
    failures: u32,
    last: Option<Announcement>,
}

impl Announcer {
    /// Announces until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // Nothing has to be finished: the next agent begins by reading the Node.
        let _ = stop.run_until_cancelled(self.rounds()).await;
    }

    async fn rounds(mut self) {
        let mut course = Course::default();
        let mut written: Option<Written> = None;
        let mut is_complaining = false;
        while self.answers.changed().await.is_ok() {
            let answer = self.answers.borrow_and_update().clone();
            let Some(announcement) = answer.and_then(|answer| course.next(&answer)) else {
                continue;
            };
            if written.as_ref().is_some_and(|w| w.holds_for(&announcement)) {
                continue;
            }
            let done = self.write(&announcement).await;
            self.metrics.wrote("node", done.is_ok());
            match done {
                Ok(()) => {
                    is_complaining = false;
                    let at = Instant::now();
                    written = Some(Written { announcement, at });
                }
                Err(error) => {
                    if !is_complaining {
                        tracing::warn!(error, "labels and condition of the node not written");
                    }
                    is_complaining = true;
                    written = None;
                }
            }
        }
    }

    async fn write(&self, announcement: &Announcement) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = in_time(nodes.get(&self.node)).await?;
        let params = PatchParams::default();
        let changes = announcement.labels.changes(node.labels());
        if !changes.is_empty() {
            let patch = Patch::Merge(json!({ "metadata": { "labels": changes } }));
            in_time(nodes.patch_metadata(&self.node, &params, &patch)).await?;
            tracing::info!(changed = changes.len(), "labels of the node written");
        }
        let conditions = node.status.and_then(|status| status.conditions);
        let found = conditions.into_iter().flatten();
        let found = found.into_iter().find(|c| c.type_ == NODE_READY);
        let next: NodeCondition = announcement
            .condition
            .after(found.as_ref(), Timestamp::now());
        let patch = Patch::Strategic(json!({ "status": { "conditions": [next] } }));
        in_time(nodes.patch_status(&self.node, &params, &patch)).await?;
        Ok(())
    }
}

impl Course {
    /// What is to be announced after this answer; nothing while a failure may be a restart.
    fn next(&mut self, answer: &Answer) -> Option<Announcement> {
        match answer {
            Ok(info) => {
                self.failures = 0;
                self.last = Some(Announcement {
                    labels: Labels::of(info),
                    condition: condition::of(info),
                });
            }
            Err(message) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES {
                    self.last = Some(Announcement {
                        labels: Labels::default(),
                        condition: condition::unavailable(message),
                    });
                }
            }
        }
        self.last.clone()
    }
}

impl Written {
    fn holds_for(&self, announcement: &Announcement) -> bool {
        self.announcement == *announcement && self.at.elapsed() < HEARTBEAT
    }
}

async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(API, request).await {
        Ok(answer) => answer.map_err(|error| one_line(&error)),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(course: &mut Course, answer: &Answer) -> Option<String> {
        course.next(answer).map(|next| next.condition.reason)
    }

    #[test]
    fn one_failure_is_a_restart_and_two_are_a_daemon_that_is_away() {
        let mut course = Course::default();
        let away: Answer = Err("connection refused".to_owned());
        let there: Answer = Ok(InfoResponse::default());
        assert_eq!(reason(&mut course, &away), None);
        let unavailable = Some("DaemonUnavailable".to_owned());
        assert_eq!(reason(&mut course, &away), unavailable);
        assert_eq!(reason(&mut course, &away), unavailable);
        let said = reason(&mut course, &there);
        assert_ne!(said, unavailable);
        assert_eq!(reason(&mut course, &away), said);
        assert_eq!(reason(&mut course, &there), said);
        assert_eq!(reason(&mut course, &away), said, "not in a row");
        assert_eq!(reason(&mut course, &away), unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_holds_until_it_is_another_or_old() {
        let announcement = |message: &str| Announcement {
            labels: Labels::default(),
            condition: condition::unavailable(message),
        };
        let written = Written {
            announcement: announcement("x"),
            at: Instant::now(),
        };
        assert!(written.holds_for(&announcement("x")));
        assert!(!written.holds_for(&announcement("y")));
        tokio::time::advance(HEARTBEAT).await;
        assert!(!written.holds_for(&announcement("x")));
    }
}

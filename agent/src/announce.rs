//! Announces what the node has for machines: labels and a condition of its own Node.
//!
//! Invariant: the Node is read and written only when the daemon's answer says something else, and
//! every [`HEARTBEAT`]; only labels of our own domains and our own condition are written.
//! Failure: logged once, and tried again after a pause that grows to [`HEARTBEAT`].

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
/// Answers in a row by which machines cannot start before that is written: a restart of the daemon
/// or of libvirtd takes seconds.
const DOUBTS: u32 = 2;
/// The first pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(10);

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
    /// Those that the daemon knows.
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
    doubts: u32,
    last: Option<Announcement>,
}

/// Writes that failed in a row.
#[derive(Debug)]
struct Refusals {
    pause: Duration,
    until: Instant,
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
        let mut refusals: Option<Refusals> = None;
        while self.answers.changed().await.is_ok() {
            let answer = self.answers.borrow_and_update().clone();
            let Some(announcement) = answer.and_then(|answer| course.next(&answer)) else {
                continue;
            };
            let is_written = written.as_ref().is_some_and(|w| w.holds_for(&announcement));
            if is_written || refusals.as_ref().is_some_and(Refusals::hold) {
                continue;
            }
            let done = self.write(&announcement).await;
            self.metrics.wrote("node", done.is_ok());
            match done {
                Ok(()) => {
                    refusals = None;
                    let at = Instant::now();
                    written = Some(Written { announcement, at });
                }
                Err(error) => {
                    if refusals.is_none() {
                        tracing::warn!(error, "labels and condition of the node not written");
                    }
                    refusals = Some(Refusals::after(refusals));
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
    /// What is to be announced after this answer; nothing while a doubt may be a restart.
    fn next(&mut self, answer: &Answer) -> Option<Announcement> {
        let next = match answer {
            Ok(info) => Announcement {
                labels: Labels::from_info(info),
                condition: condition::from_info(info),
            },
            Err(message) => Announcement {
                labels: Labels::default(),
                condition: condition::unavailable(message),
            },
        };
        if next.condition.is_true() {
            self.doubts = 0;
        } else {
            self.doubts = self.doubts.saturating_add(1);
        }
        if self.doubts == 0 || self.doubts >= DOUBTS {
            self.last = Some(next);
        }
        self.last.clone()
    }
}

impl Refusals {
    fn after(before: Option<Self>) -> Self {
        let pause = before.map_or(PAUSE, |before| before.pause.saturating_mul(2));
        let pause = pause.min(HEARTBEAT);
        Self {
            pause,
            until: Instant::now() + pause,
        }
    }

    /// Whether the next write has to wait.
    fn hold(&self) -> bool {
        Instant::now() < self.until
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
    use nodeapi::v1::Host;
    use nodeapi::v1::host::Readiness;

    use super::*;

    fn reason(course: &mut Course, answer: &Answer) -> Option<String> {
        course.next(answer).map(|next| next.condition.reason)
    }

    fn info(readiness: Readiness, reason: &str) -> Answer {
        let host = Host {
            readiness: readiness.into(),
            reason: reason.to_owned(),
            ..Host::default()
        };
        Ok(InfoResponse {
            host: Some(host),
            ..InfoResponse::default()
        })
    }

    /// A daemon that restarts does not answer, then has no report yet; a libvirtd that restarts is
    /// unavailable for a moment.
    #[test]
    fn one_doubt_is_a_restart_and_two_are_a_node_without_machines() {
        let mut course = Course::default();
        let away: Answer = Err("connection refused".to_owned());
        let starts: Answer = Ok(InfoResponse::default());
        let down = info(Readiness::NotReady, "HypervisorUnavailable");
        let there = info(Readiness::Limited, "LandlockMissing");
        assert_eq!(reason(&mut course, &starts), None);
        let limited = Some("LandlockMissing".to_owned());
        for doubt in [&away, &starts, &down] {
            assert_eq!(reason(&mut course, &there), limited);
            assert_eq!(reason(&mut course, doubt), limited, "{doubt:?}");
            assert_eq!(reason(&mut course, &there), limited, "not in a row");
        }
        assert_eq!(reason(&mut course, &down), limited);
        let unavailable = Some("HypervisorUnavailable".to_owned());
        assert_eq!(reason(&mut course, &down), unavailable);
        let unavailable = Some("DaemonUnavailable".to_owned());
        assert_eq!(reason(&mut course, &away), unavailable);
        assert_eq!(reason(&mut course, &there), limited);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_after_refused_writes_grow_to_the_heartbeat() {
        let mut refusals = None;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            let next = Refusals::after(refusals);
            tokio::time::advance(Duration::from_secs(seconds - 1)).await;
            assert!(next.hold(), "{seconds}");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!next.hold(), "{seconds}");
            refusals = Some(next);
        }
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

//! The condition of the Node: whether machines can start there, and what it lacks.
//!
//! Invariant: pure; the time of a transition changes with the status alone.
//! Failure: a daemon that does not say, because it is older or has just started, makes it Unknown.

use crds::names::{NODE_COMPLETE, NODE_READY};
use crds::text::printable;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeapi::v1::InfoResponse;
use nodeapi::v1::host::Readiness;

/// Bytes of a message, and of a reason.
const LONGEST_MESSAGE: usize = 1024;
const LONGEST_REASON: usize = 64;

/// The condition without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    status: &'static str,
    pub(super) reason: String,
    message: String,
}

/// What a daemon says.
pub(super) fn from_info(info: &InfoResponse) -> Words {
    let Some(host) = &info.host else {
        let message = "the daemon does not report what the node has for machines";
        return words("Unknown", "NotReported", message);
    };
    let (status, reason) = match host.readiness() {
        Readiness::Unknown => ("Unknown", host.reason.as_str()),
        Readiness::Ready => ("True", NODE_COMPLETE),
        Readiness::Limited => ("True", host.reason.as_str()),
        Readiness::NotReady => ("False", host.reason.as_str()),
    };
    words(status, reason, &host.message)
}

/// What is said while the daemon does not answer.
pub(super) fn unavailable(message: &str) -> Words {
    let message = format!("the daemon vmlet does not answer: {message}");
    words("False", "DaemonUnavailable", &message)
}

fn words(status: &'static str, reason: &str, message: &str) -> Words {
    let reason = reason.chars().filter(char::is_ascii_alphanumeric);
    let reason: String = reason.take(LONGEST_REASON).collect();
    Words {
        status,
        reason: if reason.is_empty() {
            "NotReported".to_owned()
        } else {
            reason
        },
        message: printable(message, LONGEST_MESSAGE),
    }
}

impl Words {
    /// Whether machines can start.
    pub(super) fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// The condition that follows the one on the Node.
    pub(super) fn after(&self, found: Option<&NodeCondition>, now: Timestamp) -> NodeCondition {
        let same = found.filter(|found| found.status == self.status);
        let since = same.and_then(|found| found.last_transition_time.clone());
        NodeCondition {
            type_: NODE_READY.to_owned(),
            status: self.status.to_owned(),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        }
    }
}

#[cfg(test)]
mod tests {
    use nodeapi::v1::Host;

    use super::*;

    fn said(readiness: Readiness, reason: &str, message: &str) -> Words {
        let host = Host {
            readiness: readiness.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Host::default()
        };
        from_info(&InfoResponse {
            host: Some(host),
            ..InfoResponse::default()
        })
    }

    #[test]
    fn a_node_that_lacks_something_can_still_start_machines() {
        let reason = "LandlockMissing";
        let statuses = [
            (Readiness::Ready, "True", NODE_COMPLETE),
            (Readiness::Limited, "True", reason),
            (Readiness::NotReady, "False", reason),
            (Readiness::Unknown, "Unknown", reason),
        ];
        for (readiness, status, expected) in statuses {
            let words = said(readiness, reason, "no Landlock");
            assert_eq!((words.status, words.reason.as_str()), (status, expected));
        }
        assert_eq!(from_info(&InfoResponse::default()).status, "Unknown");
        assert_eq!(unavailable("x").status, "False");
    }

    #[test]
    fn words_are_bounded_and_printable() {
        let words = said(Readiness::Limited, "a b\u{1b}-", &"x\n".repeat(5000));
        assert_eq!(words.reason, "ab");
        assert_eq!(words.message.len(), LONGEST_MESSAGE);
        assert_eq!(said(Readiness::Limited, "", "").reason, "NotReported");
    }

    #[test]
    fn the_time_of_a_transition_is_that_of_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = unavailable("x").after(None, at(1));
        assert_eq!(first.last_transition_time, Some(Time(at(1))));
        let next = unavailable("y").after(Some(&first), at(2));
        assert_eq!(next.last_transition_time, Some(Time(at(1))));
        assert_eq!(next.last_heartbeat_time, Some(Time(at(2))));
        let next = said(Readiness::Ready, "A", "").after(Some(&next), at(3));
        assert_eq!(next.last_transition_time, Some(Time(at(3))));
    }
}

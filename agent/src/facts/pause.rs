//! Events of a pod whose guest QEMU paused because a disk failed, and of its end.
//!
//! Invariant: the name of an event follows from the condition that it ends, so that another attempt
//! at the same write creates none.
//! Failure: an event that the API server does not take is logged; the condition says the same.

use crds::guest_facts::{GuestFacts, POD_PAUSED, Power};
use crds::names::PAUSED_IO_ERROR;

use super::pod::{Identity, Published};
use crate::event::{self, About, Severity};

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    severity: Severity,
    reason: &'static str,
    key: String,
    text: String,
}

/// What is new compared with what the pod reports.
pub(super) fn news(before: &Published, facts: &GuestFacts) -> Option<News> {
    let was = before.facts.as_ref().is_some_and(is_failed);
    let since = before.since.get(POD_PAUSED).and_then(|(_, at)| at.as_ref());
    let since = since.map_or_else(String::new, |at| at.0.to_string());
    match (was, is_failed(facts), facts.power) {
        (false, true, _) => Some(News {
            severity: Severity::Warning,
            reason: PAUSED_IO_ERROR,
            key: format!("{PAUSED_IO_ERROR} after {since}"),
            text: stands_still(&facts.pause_message),
        }),
        (true, false, Power::On) => Some(News {
            severity: Severity::Normal,
            reason: "Unpaused",
            key: format!("Unpaused after {since}"),
            text: "the guest continues: its disks have space again".to_owned(),
        }),
        _ => None,
    }
}

fn is_failed(facts: &GuestFacts) -> bool {
    facts.power == Power::Paused && facts.pause_reason == PAUSED_IO_ERROR
}

fn stands_still(message: &str) -> String {
    let cause = match message {
        "" => "a disk fails",
        message => message,
    };
    format!("the guest stands still ({cause}): it continues by itself once there is space")
}

impl News {
    pub(super) async fn report(&self, client: kube::Client, node: &str, pod: &Identity) {
        let about = About {
            namespace: &pod.namespace,
            object: event::pod(&pod.namespace, &pod.name, &pod.uid),
            action: "RunGuest",
            reason: self.reason,
            severity: self.severity,
        };
        let reported = event::report_once(client, node, &about, &self.key, &self.text).await;
        if let Err(error) = reported {
            tracing::warn!(pod = pod.uid, error, "pod event not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(power: Power, reason: &str, message: &str) -> GuestFacts {
        GuestFacts {
            power,
            pause_reason: reason.to_owned(),
            pause_message: message.to_owned(),
            ..GuestFacts::default()
        }
    }

    fn reason(before: Option<&GuestFacts>, now: &GuestFacts) -> Option<&'static str> {
        let before = Published {
            facts: before.cloned(),
            ..Published::default()
        };
        news(&before, now).map(|news| news.reason)
    }

    #[test]
    fn a_disk_that_fails_and_its_repair_are_news_once() {
        let runs = facts(Power::On, "", "");
        let full = facts(Power::Paused, PAUSED_IO_ERROR, "disk vdb: no space left");
        let paused = facts(Power::Paused, "PausedByUser", "");
        let off = facts(Power::Off, "", "");
        for before in [None, Some(&runs), Some(&paused)] {
            assert_eq!(reason(before, &full), Some("PausedIOError"));
            assert_eq!(reason(before, &runs), None);
            assert_eq!(reason(before, &paused), None);
        }
        assert_eq!(reason(Some(&full), &full), None);
        assert_eq!(reason(Some(&full), &runs), Some("Unpaused"));
        assert_eq!(
            reason(Some(&full), &off),
            None,
            "its end has a reason of its own"
        );
        let text = news(&Published::default(), &full).unwrap().text;
        assert!(text.contains("disk vdb: no space left"), "{text}");
    }
}

//! Which manifests are to be compared when, and which of them failed: pure.
//!
//! Invariant: a machine that fails is tried again no sooner than [`AGAIN`]; a report is made when it
//! differs from the last one, and from time to time while there is something in it.
//! Failure: a report with more than [`MOST`] machines says one thing of all machines of the node, and so does
//! that of rounds which have stopped early for [`UNANSWERED`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeapi::v1::Disk;
use tokio::time::Instant;

/// Shortest time between two attempts at a manifest that failed.
const AGAIN: Duration = Duration::from_secs(60);
/// How long attempts at a manifest may have no answer, and rounds stop early, until that is reported.
const UNANSWERED: Duration = Duration::from_secs(600);
/// Most machines in a report.
const MOST: usize = 32;
/// Longest message in a report, in bytes.
const MESSAGE: usize = 160;

/// What is kept of a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// This manifest.
    Manifest(String),
    /// No machine has the disk, or the daemon keeps none.
    Nothing,
}

/// A manifest that the daemon has, as far as is known.
#[derive(Debug)]
struct Sent {
    cluster: String,
    text: String,
}

#[derive(Debug)]
struct State {
    sent: Option<Sent>,
    next: Instant,
    /// Since when no attempt has had an answer.
    silent: Option<Instant>,
    failure: Option<String>,
}

/// Rounds that stopped early, one after another.
#[derive(Debug)]
struct Stopped {
    since: Instant,
    /// What is reported of them.
    failure: Option<String>,
}

/// The states of all disks.
#[derive(Debug)]
pub(super) struct Rounds {
    interval: Duration,
    states: BTreeMap<String, State>,
    stopped: Option<Stopped>,
    /// A round of this agent has come to its end.
    has_ended: bool,
    /// None: it is not known what the last agent has reported.
    last: Option<(Option<String>, Instant)>,
}

impl Rounds {
    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            states: BTreeMap::new(),
            stopped: None,
            has_ended: false,
            last: None,
        }
    }

    /// Forgets disks that are gone.
    pub(super) fn retain(&mut self, disks: &[Disk]) {
        let uids: BTreeSet<_> = disks.iter().map(|disk| disk.vm_uid.as_str()).collect();
        self.states.retain(|uid, _| uids.contains(uid.as_str()));
    }

    /// Whether the manifest of a disk is to be compared now.
    pub(super) fn is_due(&self, disk: &Disk, now: Instant) -> bool {
        if !disk.complete || !disk.unreadable.is_empty() {
            return false;
        }
        let Some(state) = self.states.get(&disk.vm_uid) else {
            return true;
        };
        // The daemon may have lost what it was sent.
        let sent = state.sent.as_ref();
        let is_lost = sent.is_some_and(|sent| sent.cluster != disk.cluster_uid);
        // One without an answer waits, or it would stop each round.
        is_lost && state.silent.is_none() || now >= state.next
    }

    /// What was sent last, if it was for this cluster.
    pub(super) fn sent(&self, uid: &str, cluster: &str) -> Option<&str> {
        let sent = self.states.get(uid)?.sent.as_ref();
        let sent = sent.filter(|sent| sent.cluster == cluster)?;
        Some(&sent.text)
    }

    pub(super) fn kept(&mut self, uid: &str, cluster: &str, kept: Kept, now: Instant) {
        let is_first = !self.states.contains_key(uid);
        let (sent, after) = match kept {
            Kept::Manifest(text) => {
                let cluster = cluster.to_owned();
                (Some(Sent { cluster, text }), self.interval)
            }
            // Its machine may be about to be on record.
            Kept::Nothing if is_first => (None, AGAIN.min(self.interval)),
            Kept::Nothing => (None, self.interval),
        };
        let state = State {
            sent,
            next: now + after,
            silent: None,
            failure: None,
        };
        self.states.insert(uid.to_owned(), state);
    }

    pub(super) fn failed(&mut self, uid: &str, text: &str, now: Instant) {
        let is_news = self
            .states
            .get(uid)
            .is_none_or(|state| state.failure.is_none());
        if is_news {
            tracing::warn!(vm = uid, error = text, "manifest not written");
        }
        let state = State {
            sent: None,
            next: now + AGAIN.min(self.interval),
            silent: self.silent_since(uid),
            failure: Some(crds::text::printable(text, MESSAGE)),
        };
        self.states.insert(uid.to_owned(), state);
    }

    /// An attempt had no answer: others have their turn. One that has none for long has failed.
    pub(super) fn passed(&mut self, uid: &str, text: &str, now: Instant) {
        let state = self.states.entry(uid.to_owned());
        let state = state.or_insert_with(|| State {
            sent: None,
            next: now,
            silent: None,
            failure: None,
        });
        state.next = now + AGAIN.min(self.interval);
        let since = *state.silent.get_or_insert(now);
        if now >= since + UNANSWERED.max(self.interval) {
            self.failed(uid, text, now);
        }
    }

    fn silent_since(&self, uid: &str) -> Option<Instant> {
        self.states.get(uid)?.silent
    }

    /// A round came to its end, or stopped early.
    pub(super) fn ended(&mut self, compared: &Result<(), String>, now: Instant) {
        let Err(text) = compared else {
            self.stopped = None;
            self.has_ended = true;
            return;
        };
        let limit = UNANSWERED.max(self.interval);
        let stopped = self.stopped.get_or_insert(Stopped {
            since: now,
            failure: None,
        });
        // The text stays: each report is a write of each machine's condition.
        if stopped.failure.is_none() && now >= stopped.since + limit {
            let text = format!("manifests of the node are not compared: {text}");
            stopped.failure = Some(of_all(&text));
        }
    }

    /// The annotation that is to be written now: the inner `None` removes it. What an earlier agent has
    /// reported stays until a round has come to its end.
    pub(super) fn report(&self, now: Instant) -> Option<Option<String>> {
        let report = self.failures();
        let is_due = match &self.last {
            None => self.has_ended || report.is_some(),
            Some((last, at)) => *last != report || report.is_some() && now >= *at + self.interval,
        };
        is_due.then_some(report)
    }

    pub(super) fn reported(&mut self, now: Instant) {
        self.last = Some((self.failures(), now));
    }

    fn failures(&self) -> Option<String> {
        let stopped = self.stopped.as_ref();
        if let Some(failure) = stopped.and_then(|stopped| stopped.failure.as_ref()) {
            return Some(failure.clone());
        }
        let failed = self.states.iter().filter_map(|(uid, state)| {
            let failure = state.failure.as_deref()?;
            Some((uid.as_str(), failure))
        });
        let all: BTreeMap<_, _> = failed.collect();
        match all.len() {
            0 => None,
            1..=MOST => Some(serde_json::json!(all).to_string()),
            // Their number changes often, and each report is a write of each machine's condition.
            _ => {
                let first = all.values().next().copied().unwrap_or_default();
                Some(of_all(&format!(
                    "many machines of the node have no manifest: {first}"
                )))
            }
        }
    }
}

/// A report on all machines of the node.
fn of_all(text: &str) -> String {
    let text = crds::text::printable(text, MESSAGE);
    serde_json::json!({ "*": text }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "c-1";

    fn disk(uid: &str, cluster: &str) -> Disk {
        Disk {
            vm_uid: uid.to_owned(),
            complete: true,
            cluster_uid: cluster.to_owned(),
            ..Disk::default()
        }
    }

    fn manifest(text: &str) -> Kept {
        Kept::Manifest(text.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_manifest_is_compared_at_once_then_after_the_interval_and_when_it_is_lost() {
        let interval = Duration::from_secs(300);
        let mut rounds = Rounds::new(interval);
        let start = Instant::now();
        let new = disk("a", "");
        assert!(rounds.is_due(&new, start));
        let incomplete = Disk {
            complete: false,
            ..new.clone()
        };
        let unreadable = Disk {
            unreadable: "its record".to_owned(),
            ..new.clone()
        };
        for disk in [incomplete, unreadable] {
            assert!(!rounds.is_due(&disk, start), "{disk:?}");
        }
        rounds.kept("a", CLUSTER, manifest("one"), start);
        assert_eq!(rounds.sent("a", CLUSTER), Some("one"));
        assert_eq!(rounds.sent("a", "c-2"), None);
        let there = disk("a", CLUSTER);
        assert!(!rounds.is_due(&there, start + interval / 2));
        assert!(rounds.is_due(&there, start + interval));
        assert!(rounds.is_due(&new, start + interval / 2), "lost");
        rounds.retain(&[]);
        assert_eq!(rounds.sent("a", CLUSTER), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_without_a_machine_is_looked_at_once_more_soon() {
        let interval = Duration::from_secs(300);
        let mut rounds = Rounds::new(interval);
        let start = Instant::now();
        let new = disk("a", "");
        rounds.kept("a", CLUSTER, Kept::Nothing, start);
        assert!(!rounds.is_due(&new, start));
        assert!(rounds.is_due(&new, start + AGAIN));
        rounds.kept("a", CLUSTER, Kept::Nothing, start + AGAIN);
        assert!(!rounds.is_due(&new, start + AGAIN * 2));
        assert!(rounds.is_due(&new, start + AGAIN + interval));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_reported_once_and_their_end_too() {
        let interval = Duration::from_secs(300);
        let mut rounds = Rounds::new(interval);
        let start = Instant::now();
        // What an earlier agent has reported stays while nothing is known.
        assert_eq!(rounds.report(start), None);
        rounds.ended(&Err("forbidden".to_owned()), start);
        assert_eq!(rounds.report(start), None);
        rounds.ended(&Ok(()), start);
        assert_eq!(rounds.report(start), Some(None));
        rounds.reported(start);
        assert_eq!(rounds.report(start), None);
        rounds.failed("a", "no\nspace", start);
        let expected = r#"{"a":"nospace"}"#.to_owned();
        assert_eq!(rounds.report(start), Some(Some(expected.clone())));
        rounds.reported(start);
        rounds.failed("a", "no\nspace", start + AGAIN);
        assert_eq!(rounds.report(start + AGAIN), None);
        // The lease may have been made again.
        assert_eq!(rounds.report(start + interval), Some(Some(expected)));
        rounds.kept("a", CLUSTER, manifest("one"), start + AGAIN);
        assert_eq!(rounds.report(start + AGAIN), Some(None));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_without_an_answer_for_ten_minutes_are_a_failure() {
        let mut rounds = Rounds::new(AGAIN);
        let start = Instant::now();
        rounds.reported(start);
        let new = disk("a", "");
        rounds.passed("a", "no answer", start);
        assert!(!rounds.is_due(&new, start), "others have their turn");
        assert!(rounds.is_due(&new, start + AGAIN));
        rounds.passed("a", "no answer", start + AGAIN);
        assert_eq!(rounds.report(start + AGAIN), None);
        rounds.passed("a", "no answer", start + UNANSWERED);
        let expected = r#"{"a":"no answer"}"#.to_owned();
        assert_eq!(rounds.report(start + UNANSWERED), Some(Some(expected)));
        let later = start + UNANSWERED + AGAIN;
        rounds.passed("a", "no answer", later);
        assert_eq!(rounds.report(later), rounds.report(start + UNANSWERED));
        rounds.kept("a", CLUSTER, manifest("one"), later);
        rounds.passed("a", "no answer", later + AGAIN);
        assert_eq!(rounds.sent("a", CLUSTER), Some("one"));
        assert_eq!(rounds.report(later + AGAIN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_that_stop_early_for_ten_minutes_are_a_failure_of_all_machines() {
        let mut rounds = Rounds::new(AGAIN);
        let start = Instant::now();
        let stopped = |text: &str| Err(text.to_owned());
        rounds.failed("a", "no space", start);
        rounds.ended(&stopped("forbidden"), start);
        let late = start + UNANSWERED;
        rounds.ended(&stopped("forbidden"), late.checked_sub(AGAIN).unwrap());
        let own = Some(Some(r#"{"a":"no space"}"#.to_owned()));
        assert_eq!(rounds.report(start), own);
        rounds.ended(&stopped("forbidden"), late);
        let text = r#"{"*":"manifests of the node are not compared: forbidden"}"#;
        assert_eq!(rounds.report(late), Some(Some(text.to_owned())));
        rounds.reported(late);
        // Another text would be a write of each machine.
        rounds.ended(&stopped("unavailable"), late);
        assert_eq!(rounds.report(late), None);
        rounds.ended(&Ok(()), late);
        assert_eq!(rounds.report(late), own);
        // The time begins again.
        rounds.ended(&stopped("forbidden"), late);
        assert_eq!(rounds.report(late), own);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_manifest_without_an_answer_does_not_stop_each_round() {
        let mut rounds = Rounds::new(AGAIN);
        let start = Instant::now();
        let lost = disk("a", "");
        rounds.kept("a", CLUSTER, manifest("one"), start);
        assert!(rounds.is_due(&lost, start));
        rounds.passed("a", "no answer", start);
        assert!(!rounds.is_due(&lost, start));
        assert!(rounds.is_due(&lost, start + AGAIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_many_failures_stays_short() {
        let mut rounds = Rounds::new(AGAIN);
        let start = Instant::now();
        for n in 0..=MOST {
            rounds.failed(&format!("vm-{n}"), &"x".repeat(1000), start);
        }
        let report = rounds.report(start).unwrap().unwrap();
        assert!(report.starts_with("{\"*\":\"many machines"), "{report}");
        assert!(report.len() < 200, "{report}");
    }
}

//! Decides about disks without a machine: pure, from when each was first found.
//!
//! Invariant: when a round finds that a suspect has a machine, its time starts from zero. A clock
//! that is set back delays reports and removals, and never brings them forward.
//! Failure: a record that cannot be read counts as none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

/// Most disks that are kept recorded.
const MOST: usize = 200;

/// When to look, and what follows when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Between two looks.
    pub(crate) sweep: Duration,
    /// From the first look to the report.
    pub(crate) confirm: Duration,
    /// From the first look to the removal; none: it stays.
    pub(crate) remove_after: Option<Duration>,
}

/// What to do about a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet, or nothing more.
    Wait,
    /// Say so, and when it is removed.
    Report(Option<Timestamp>),
    /// Remove it.
    Remove,
}

/// Disks without a machine, by UID.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Suspects {
    since: BTreeMap<String, Timestamp>,
    reported: BTreeSet<String>,
}

impl Suspects {
    /// Stores the findings of a round; true when they changed.
    pub(super) fn found<'a>(
        &mut self,
        uids: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) -> bool {
        let found: BTreeSet<&str> = uids.take(MOST).collect();
        let before = self.since.len();
        self.since.retain(|uid, _| found.contains(uid.as_str()));
        self.reported.retain(|uid| found.contains(uid.as_str()));
        let mut is_news = self.since.len() != before;
        for uid in found {
            if !self.since.contains_key(uid) {
                self.since.insert(uid.to_owned(), now);
                is_news = true;
            }
        }
        is_news
    }

    pub(super) fn judge(&self, uid: &str, times: &Times, now: Timestamp) -> Verdict {
        let Some(since) = self.since.get(uid) else {
            return Verdict::Wait;
        };
        let age = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        if age < times.confirm {
            return Verdict::Wait;
        }
        if !self.reported.contains(uid) {
            let removal = times
                .remove_after
                .and_then(|after| since.checked_add(after).ok());
            return Verdict::Report(removal);
        }
        match times.remove_after {
            Some(after) if age >= after => Verdict::Remove,
            _ => Verdict::Wait,
        }
    }

    pub(super) fn reported(&mut self, uid: &str) {
        self.reported.insert(uid.to_owned());
    }

    pub(super) fn from_json(text: &str) -> Self {
        let since: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
        let since = since.into_iter().take(MOST);
        let since = since.filter_map(|(uid, at)| Some((uid, at.parse().ok()?)));
        Self {
            since: since.collect(),
            reported: BTreeSet::new(),
        }
    }

    /// None when there are none.
    pub(super) fn to_json(&self) -> Option<String> {
        let since = self.since.iter().map(|(uid, at)| (uid, at.to_string()));
        let since: BTreeMap<_, _> = since.collect();
        (!since.is_empty()).then(|| serde_json::json!(since).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn times(days: Option<u64>) -> Times {
        Times {
            sweep: Duration::from_secs(600),
            confirm: Duration::from_secs(3600),
            remove_after: days.map(|days| Duration::from_secs(days * 86_400)),
        }
    }

    #[test]
    fn a_disk_is_reported_after_an_hour_and_removed_after_days() {
        let mut suspects = Suspects::default();
        assert!(suspects.found(["a"].into_iter(), at(0)));
        assert!(!suspects.found(["a"].into_iter(), at(600)));
        let week = times(Some(7));
        assert_eq!(suspects.judge("a", &week, at(HOUR - 1)), Verdict::Wait);
        let report = Verdict::Report(Some(at(7 * 86_400)));
        assert_eq!(suspects.judge("a", &week, at(HOUR)), report);
        // Also when an agent returns much later: its first report brings it.
        assert_eq!(suspects.judge("a", &week, at(9 * 86_400)), report);
        suspects.reported("a");
        assert_eq!(
            suspects.judge("a", &week, at(7 * 86_400 - 1)),
            Verdict::Wait
        );
        assert_eq!(suspects.judge("a", &week, at(7 * 86_400)), Verdict::Remove);
        assert_eq!(
            suspects.judge("a", &times(None), at(99 * 86_400)),
            Verdict::Wait
        );
        assert_eq!(suspects.judge("a", &week, at(-5)), Verdict::Wait);
        assert_eq!(suspects.judge("b", &week, at(HOUR)), Verdict::Wait);
    }

    #[test]
    fn a_disk_with_a_machine_again_resets_its_time() {
        let mut suspects = Suspects::default();
        suspects.found(["a", "b"].into_iter(), at(0));
        suspects.reported("a");
        assert!(suspects.found(["b"].into_iter(), at(600)));
        assert!(suspects.found(["a", "b"].into_iter(), at(1200)));
        assert_eq!(suspects.judge("a", &times(None), at(HOUR)), Verdict::Wait);
        let report = Verdict::Report(None);
        assert_eq!(suspects.judge("a", &times(None), at(HOUR + 1200)), report);
    }

    #[test]
    fn the_record_is_read_as_it_was_written_and_nonsense_as_none() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.to_json(), None);
        suspects.found(["a", "b"].into_iter(), at(0));
        let text = suspects.to_json().unwrap();
        assert_eq!(Suspects::from_json(&text), suspects);
        for text in ["", "[]", "{\"a\": 7}", "{\"a\": \"soon\"}"] {
            assert_eq!(Suspects::from_json(text), Suspects::default(), "{text}");
        }
    }
}

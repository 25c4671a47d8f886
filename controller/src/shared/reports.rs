//! When the status of each group, or of each replica set, was written last.
//!
//! Invariant: a group that is gone has no entry. A restart forgets all of them: the next write is then at
//! once.
//! Failure: none; a clock that was set back delays no write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::stores::Key;

/// By group, in milliseconds since the epoch. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<Mutex<HashMap<Key, i64>>>);

impl Reports {
    /// The status was written at `now`, in milliseconds since the epoch.
    pub fn wrote(&self, group: &Key, now: i64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(group.clone(), now);
    }

    /// What is left of the interval that began with the last write; `None`: it is over.
    #[must_use]
    pub fn rest(&self, group: &Key, interval: Duration, now: i64) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *all.get(group)?;
        let interval = i64::try_from(interval.as_millis()).ok()?;
        let left = last.saturating_add(interval).saturating_sub(now);
        let left = Some(left).filter(|left| (1..=interval).contains(left))?;
        u64::try_from(left).ok().map(Duration::from_millis)
    }

    /// The group is gone.
    pub fn forget(&self, group: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_begins_with_a_write_of_its_group_and_ends_with_a_clock_that_was_set_back() {
        let reports = Reports::default();
        let group = Key::new("ns", "a");
        let rest = |now| reports.rest(&group, Duration::from_secs(2), now);
        assert_eq!(rest(10_000), None);
        reports.wrote(&group, 10_000);
        assert_eq!(rest(10_000), Some(Duration::from_secs(2)));
        assert_eq!(rest(11_999), Some(Duration::from_millis(1)));
        assert_eq!(rest(12_000), None);
        assert_eq!(rest(9_999), None, "set back");
        let other = Key::new("ns", "b");
        assert_eq!(reports.rest(&other, Duration::from_secs(2), 10_000), None);
        reports.forget(&group);
        assert_eq!(rest(10_000), None);
        assert!(reports.0.lock().unwrap().is_empty());
    }
}

//! When a tag or a file is checked.
//!
//! Invariant: pure. What follows from the recorded time of the last check does not depend on a
//! controller that was restarted; a clock that was set back causes one check. There are at least
//! [`LEAST`] seconds between two checks of a schedule.
//! Failure: a schedule that cannot be read, or that has no time, causes no check.

use crds::{ImageUpdate, ImageUpdateStatus};
use jiff::Timestamp;

use super::LIMIT;
use crate::reconcile::cron::next;

/// Seconds between two checks of a schedule.
const LEAST: i64 = 300;
/// Seconds after the first check that failed; they double with each further one.
const FIRST_RETRY: i64 = 60;
/// Longest time after a check that failed.
const LAST_RETRY: i64 = 3600;
/// Seconds by which the clocks of two controllers may differ.
pub(super) const SKEW: i64 = 60;

/// When the next check is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// In seconds since the Unix epoch.
    At(i64),
    OnRequest,
}

impl Due {
    /// The same, or at that time, if that is sooner.
    pub(super) fn or_at(self, second: i64, now: Timestamp) -> Self {
        match self {
            Self::Now => Self::Now,
            Self::At(at) if at <= second => self,
            Self::At(_) | Self::OnRequest if second <= now.as_second() => Self::Now,
            Self::At(_) | Self::OnRequest => Self::At(second),
        }
    }
}

/// The first second at which there may be another check after this one.
pub(super) fn least_after(check: Timestamp) -> i64 {
    check.as_second() + LEAST
}

/// When the next check is due. `busy_until`: no time of the schedule counts before.
pub(super) fn due(
    update: &ImageUpdate,
    known: &ImageUpdateStatus,
    busy_until: Option<i64>,
    now: Timestamp,
) -> Due {
    let Some(last) = &known.last_check_time else {
        return Due::Now;
    };
    let request = update.check_request.as_ref();
    let is_requested = request.is_some() && request != known.observed_check_request.as_ref();
    let list = known.observed_checksum_url.as_ref();
    // A check of an earlier version has none on record.
    let is_of_another_list = list.is_some() && list != update.checksum_url.as_ref();
    let now = now.as_second();
    let last = last.0.as_second();
    if is_requested || is_of_another_list || last > now + SKEW {
        return Due::Now;
    }
    let last = last.min(now);
    let at = if known.failed_checks > 0 {
        Some(last + retry(known.failed_checks))
    } else {
        let schedule = update.schedule.as_deref();
        let next = schedule.and_then(|schedule| next(schedule, last).ok());
        // A clock that was ahead says nothing about the time until then.
        let busy_until = busy_until.filter(|until| *until <= now + LIMIT);
        next.map(|next| next.max(last + LEAST).max(busy_until.unwrap_or(next)))
    };
    match at {
        Some(at) if at <= now => Due::Now,
        Some(at) => Due::At(at),
        None => Due::OnRequest,
    }
}

/// Why the schedule is of no use.
pub(super) fn problem(update: &ImageUpdate) -> Option<String> {
    next(update.schedule.as_deref()?, 0).err()
}

/// Seconds after the last of so many checks that failed.
fn retry(failed: u32) -> i64 {
    let doubled = FIRST_RETRY.checked_shl(failed.saturating_sub(1).min(16));
    doubled.map_or(LAST_RETRY, |seconds| seconds.min(LAST_RETRY))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;

    /// 2027-01-15 08:00:00 UTC.
    const NOW: i64 = 1_800_000_000;
    const HOUR: i64 = 3600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn checked(second: i64, failed: u32) -> ImageUpdateStatus {
        ImageUpdateStatus {
            last_check_time: Some(Time(at(second))),
            failed_checks: failed,
            ..ImageUpdateStatus::default()
        }
    }

    fn scheduled(schedule: &str) -> ImageUpdate {
        ImageUpdate {
            schedule: Some(schedule.to_owned()),
            ..ImageUpdate::default()
        }
    }

    #[rstest]
    #[case::hourly("0 * * * *", NOW, Due::At(NOW + HOUR))]
    #[case::word("@hourly", NOW, Due::At(NOW + HOUR))]
    #[case::daily("30 2 * * *", NOW, Due::At(NOW + 18 * HOUR + HOUR / 2))]
    #[case::past("0 * * * *", NOW - HOUR - 1, Due::Now)]
    #[case::just_now("0 * * * *", NOW - HOUR, Due::Now)]
    #[case::one_that_was_missed_for_days("0 * * * *", NOW - 100 * HOUR, Due::Now)]
    #[case::not_more_often_than_each_five_minutes("* * * * *", NOW - 100, Due::At(NOW + 200))]
    #[case::a_time_just_after_another_check("0 * * * *", NOW - 1, Due::At(NOW + 299))]
    #[case::a_clock_that_was_set_back("0 * * * *", NOW + HOUR, Due::Now)]
    #[case::another_clock("0 * * * *", NOW + 30, Due::At(NOW + HOUR))]
    #[case::no_such_day("0 0 30 2 *", NOW - HOUR, Due::OnRequest)]
    #[case::no_such_minute("61 * * * *", NOW - HOUR, Due::OnRequest)]
    fn a_check_is_due_by_the_recorded_time_of_the_last(
        #[case] schedule: &str,
        #[case] last: i64,
        #[case] expected: Due,
    ) {
        assert_eq!(
            due(&scheduled(schedule), &checked(last, 0), None, at(NOW)),
            expected
        );
    }

    #[rstest]
    #[case(1, 60)]
    #[case(2, 120)]
    #[case(7, 3600)]
    #[case(u32::MAX, 3600)]
    fn a_check_that_failed_is_repeated_ever_later(#[case] failed: u32, #[case] seconds: i64) {
        let known = checked(NOW, failed);
        // Whatever the schedule says, and without one.
        for update in [scheduled("* * * * *"), ImageUpdate::default()] {
            assert_eq!(due(&update, &known, None, at(NOW)), Due::At(NOW + seconds));
            assert_eq!(due(&update, &known, None, at(NOW + seconds)), Due::Now);
        }
    }

    #[test]
    fn a_time_of_the_schedule_waits_for_the_pulls_of_a_version_and_a_request_does_not() {
        let mut update = scheduled("*/5 * * * *");
        let known = checked(NOW - 600, 0);
        let until = |seconds: i64| Some(NOW + seconds);
        assert_eq!(due(&update, &known, None, at(NOW)), Due::Now);
        assert_eq!(
            due(&update, &known, until(100), at(NOW)),
            Due::At(NOW + 100)
        );
        assert_eq!(due(&update, &known, until(-1), at(NOW)), Due::Now);
        let ahead = until(LIMIT + 1);
        assert_eq!(
            due(&update, &known, ahead, at(NOW)),
            Due::Now,
            "a wrong clock"
        );
        update.check_request = Some("a".to_owned());
        assert_eq!(due(&update, &known, until(100), at(NOW)), Due::Now);
    }

    #[test]
    fn another_request_is_due_at_once_and_the_same_one_is_not() {
        let mut update = ImageUpdate::default();
        assert_eq!(
            due(&update, &ImageUpdateStatus::default(), None, at(NOW)),
            Due::Now
        );
        let mut known = checked(NOW, 5);
        known.failed_checks = 0;
        assert_eq!(due(&update, &known, None, at(NOW)), Due::OnRequest);
        update.check_request = Some("a".to_owned());
        assert_eq!(due(&update, &known, None, at(NOW)), Due::Now);
        known.observed_check_request = Some("a".to_owned());
        assert_eq!(due(&update, &known, None, at(NOW)), Due::OnRequest);
    }

    #[test]
    fn another_file_of_checksums_is_due_at_once_and_the_same_one_is_not() {
        let with = |list: &str| ImageUpdate {
            checksum_url: Some(list.to_owned()),
            ..ImageUpdate::default()
        };
        let mut known = checked(NOW, 3);
        assert_eq!(
            due(&with("b"), &known, None, at(NOW)),
            Due::At(NOW + 240),
            "checked by an earlier version"
        );
        known.observed_checksum_url = Some("a".to_owned());
        assert_eq!(due(&with("a"), &known, None, at(NOW)), Due::At(NOW + 240));
        assert_eq!(due(&with("b"), &known, None, at(NOW)), Due::Now);
    }

    #[test]
    fn the_sooner_one_of_two_times_counts() {
        let now = at(NOW);
        assert_eq!(Due::Now.or_at(NOW + 1, now), Due::Now);
        assert_eq!(Due::At(NOW + 1).or_at(NOW + 2, now), Due::At(NOW + 1));
        assert_eq!(Due::At(NOW + 2).or_at(NOW + 1, now), Due::At(NOW + 1));
        assert_eq!(Due::At(NOW + 2).or_at(NOW, now), Due::Now);
        assert_eq!(Due::OnRequest.or_at(NOW + 1, now), Due::At(NOW + 1));
        assert_eq!(least_after(now), NOW + LEAST);
    }

    #[rstest]
    #[case("61 * * * *")]
    #[case("0 0 30 2 *")]
    #[case("@never")]
    #[case("0 0 * * * *")]
    fn a_schedule_without_a_time_has_a_problem(#[case] schedule: &str) {
        let problem = problem(&scheduled(schedule)).unwrap();
        assert!(!problem.is_empty());
    }

    #[test]
    fn a_schedule_of_use_has_no_problem() {
        for schedule in ["*/10 * * * *", "0 4 * * MON-FRI", "@daily"] {
            assert_eq!(problem(&scheduled(schedule)), None, "{schedule}");
        }
        assert_eq!(problem(&ImageUpdate::default()), None);
    }
}

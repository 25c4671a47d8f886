//! Time as kubelet reads it: RFC 3339 in UTC with nanoseconds.
//!
//! Invariant: always nine digits of fraction and a `Z`, so that the texts sort as the times do.
//! Failure: none; a clock before 1970 reads as 1970.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// `2026-02-28T23:59:59.000000001Z`.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / DAY);
    let second = since.as_secs() % DAY;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:09}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_nanos(),
    )
}

/// Year, month and day of a day counted from 1 January 1970, in the Gregorian calendar.
///
/// Years are counted from 1 March, so that the leap day is the last of its year, in eras of 400
/// years, all of the same length.
const fn civil(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468; // from 1 March of year 0
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) = if month_from_march < 10 {
        (month_from_march + 3, 0)
    } else {
        (month_from_march - 9, 1)
    };
    (year_of_era + era * 400 + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    // Expected values: `date -u -d @SECONDS`.
    #[rstest]
    #[case::epoch(0, "1970-01-01T00:00:00.000000007Z")]
    #[case::leap_day_of_a_leap_century(951_782_400, "2000-02-29T00:00:00.000000007Z")]
    #[case::last_second_of_february(1_772_323_199, "2026-02-28T23:59:59.000000007Z")]
    #[case::first_of_march(1_772_323_200, "2026-03-01T00:00:00.000000007Z")]
    #[case::after_32_bits(4_294_967_296, "2106-02-07T06:28:16.000000007Z")]
    #[case::no_leap_day_in_2100(4_107_542_400, "2100-03-01T00:00:00.000000007Z")]
    #[case::new_years_eve(1_798_761_599, "2026-12-31T23:59:59.000000007Z")]
    fn a_time_reads_as_the_calendar_says(#[case] seconds: u64, #[case] expected: &str) {
        let time = UNIX_EPOCH + Duration::new(seconds, 7);
        assert_eq!(rfc3339(time), expected);
    }

    #[test]
    fn days_follow_each_other_for_eight_hundred_years() {
        let length = |year: u64, month| match month {
            2 if year.is_multiple_of(4)
                && (!year.is_multiple_of(100) || year.is_multiple_of(400)) =>
            {
                29
            }
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut expected = (1970, 1, 1);
        for days in 0..292_194 {
            assert_eq!(civil(days), expected, "day {days}");
            let (year, month, day) = expected;
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, d) if d == length(year, month) => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }
}

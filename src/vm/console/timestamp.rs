//! Time as kubelet reads it: RFC 3339 in UTC with nanoseconds.
//!
//! Invariant: always nine digits of fraction and a `Z`, so that the texts sort as the times do.
//! Failure: none; a clock before 1970, or after the year 9999, reads as 1970.

use std::time::SystemTime;

use jiff::Timestamp;

/// `2026-02-28T23:59:59.000000001Z`.
pub(in crate::vm) fn rfc3339(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    format!("{:.9}", time.max(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

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
    fn a_time_is_formatted_with_nine_digits_of_fraction(
        #[case] seconds: u64,
        #[case] expected: &str,
    ) {
        let time = UNIX_EPOCH + Duration::new(seconds, 7);
        assert_eq!(rfc3339(time), expected);
    }
}

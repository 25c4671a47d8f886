//! Times of schedules in the form of cron, in UTC.
//!
//! Invariant: pure; a schedule has the five usual fields, or is a word such as `@daily`.
//! Failure: why a schedule cannot be read, or has no time.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The first time of a schedule after another one, in seconds.
pub(crate) fn next(schedule: &str, after: i64) -> Result<i64, String> {
    let next = parsed(schedule)?.find_next_occurrence(&utc(after)?, false);
    let next = next.map_err(|error| error.to_string())?;
    Ok(next.timestamp().as_second())
}

/// The last time of a schedule that is not after another one, in seconds.
pub(crate) fn last(schedule: &str, until: i64) -> Result<i64, String> {
    let last = parsed(schedule)?.find_previous_occurrence(&utc(until)?, true);
    let last = last.map_err(|error| error.to_string())?;
    Ok(last.timestamp().as_second())
}

fn parsed(schedule: &str) -> Result<Cron, String> {
    let parser = CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build();
    parser.parse(schedule).map_err(|error| error.to_string())
}

fn utc(second: i64) -> Result<jiff::Zoned, String> {
    let at = Timestamp::from_second(second).map_err(|error| error.to_string())?;
    Ok(at.to_zoned(TimeZone::UTC))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15 08:00:00 UTC.
    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_time_is_the_last_one_of_its_schedule_and_not_the_next() {
        assert_eq!(last("0 * * * *", NOW), Ok(NOW));
        assert_eq!(last("0 * * * *", NOW + 3599), Ok(NOW));
        assert_eq!(next("0 * * * *", NOW), Ok(NOW + 3600));
        assert_eq!(last("30 2 * * *", NOW), Ok(NOW - 5 * 3600 - 1800));
        assert!(last("0 0 30 2 *", NOW).is_err());
        assert!(last("61 * * * *", NOW).is_err());
    }
}

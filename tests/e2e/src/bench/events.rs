//! Reads durations from the events that our programs log as text.
//!
//! Invariant: an event is one line that has the ID and the message.
//! Failure: an event or a field that is not there is named.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;

/// The field `name` of the event about `id` with this message.
pub fn field(log: &str, id: &str, message: &str, name: &str) -> Result<Duration> {
    let line = log
        .lines()
        .find(|line| line.contains(id) && line.contains(message))
        .with_context(|| format!("no event {message:?} about {id}"))?;
    let start = format!("{name}=");
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(&start))
        .and_then(duration)
        .with_context(|| format!("no {name} in: {line}"))
}

/// When the event about `id` with this message was logged.
pub fn stamp(log: &str, id: &str, message: &str) -> Result<Timestamp> {
    let line = log
        .lines()
        .find(|line| line.contains(id) && line.contains(message))
        .with_context(|| format!("no event {message:?} about {id}"))?;
    let first = line.split_whitespace().next().unwrap_or_default();
    first.parse().with_context(|| format!("no time in: {line}"))
}

/// Parses what `{:?}` makes of a duration.
fn duration(text: &str) -> Option<Duration> {
    let units = [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (digits, unit) = units
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))?;
    let seconds = digits.parse::<f64>().ok()? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_they_are_shown() {
        for nanos in [0, 999, 12_345, 7_000_000, 310_123_456, 61_000_000_000] {
            let shown = Duration::from_nanos(nanos);
            let read = duration(&format!("{shown:?}")).unwrap();
            assert!(shown.abs_diff(read) < Duration::from_nanos(10), "{read:?}");
        }
        assert_eq!(duration("soon"), None);
    }

    #[test]
    fn a_field_is_read_from_the_event_with_the_id_and_the_message() {
        let log = "t INFO x: container created container=a took=1ms\n\
                   t INFO x: container started container=b took=9ms\n\
                   t INFO x: container started container=a took=2ms start=1.5ms\n";
        let start = field(log, "container=a", "container started", "start").unwrap();
        assert_eq!(start, Duration::from_micros(1500));
        let error = field(log, "container=a", "container started", "define").unwrap_err();
        assert!(error.to_string().contains("no define"), "{error}");
        assert!(field(log, "container=c", "container started", "took").is_err());
        let log = "2026-11-25T07:15:46.340548Z  INFO x: container started container=a\n";
        let at = stamp(log, "container=a", "container started").unwrap();
        assert_eq!(at.as_microsecond() % 1_000_000, 340_548);
    }
}

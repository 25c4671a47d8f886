//! When lost spans are worth a line in the log.
//!
//! Invariant: at most one line about losses in [`PAUSE`], however often the collector comes and
//! goes; a line that exports succeed again follows each of them.
//! Failure: none.

use std::time::{Duration, Instant};

/// Time between two lines about losses.
const PAUSE: Duration = Duration::from_secs(600);

/// What was lost, and what the log says about it.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    lost: usize,
    reported: Option<Instant>,
    open: bool,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Spans are lost.
    Lost,
    /// Exports succeed again; so many were lost since the last line of this kind.
    Resumed { lost: usize },
}

impl Losses {
    /// An export of `count` spans has ended.
    pub(crate) fn exported(&mut self, count: usize, is_ok: bool, now: Instant) -> Option<Report> {
        if is_ok {
            let report = self.open.then_some(Report::Resumed { lost: self.lost })?;
            (self.open, self.lost) = (false, 0);
            return Some(report);
        }
        self.lost += count;
        let is_due = match self.reported {
            None => true,
            Some(reported) => now.saturating_duration_since(reported) >= PAUSE,
        };
        is_due.then(|| {
            (self.reported, self.open) = (Some(now), true);
            Report::Lost
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_in_ten_minutes_and_at_its_end() {
        let mut losses = Losses::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(losses.exported(5, true, at(0)), None);
        assert_eq!(losses.exported(5, false, at(5)), Some(Report::Lost));
        assert_eq!(losses.exported(6, false, at(10)), None);
        let resumed = Some(Report::Resumed { lost: 11 });
        assert_eq!(losses.exported(1, true, at(15)), resumed);
        assert_eq!(losses.exported(1, true, at(20)), None);
        // A collector that comes and goes.
        assert_eq!(losses.exported(3, false, at(25)), None);
        assert_eq!(losses.exported(3, true, at(30)), None);
        assert_eq!(losses.exported(4, false, at(605)), Some(Report::Lost));
        let resumed = Some(Report::Resumed { lost: 7 });
        assert_eq!(losses.exported(1, true, at(610)), resumed);
    }
}

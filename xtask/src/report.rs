//! The table at the end of a command: steps, results, durations.
//!
//! Invariant: rows stand in the order in which the steps ended.
//! Failure: none.

use std::fmt;
use std::time::{Duration, Instant};

/// Steps with their outcomes and times.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    step: String,
    outcome: String,
    took: Duration,
}

impl Report {
    /// Runs a step and notes how long it took, if it succeeds.
    pub(crate) fn step<T, E>(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let done = step()?;
        self.add(name, "done", started.elapsed());
        Ok(done)
    }

    /// Notes a step.
    pub(crate) fn add(&mut self, step: &str, outcome: &str, took: Duration) {
        self.rows.push(Row {
            step: step.to_owned(),
            outcome: outcome.to_owned(),
            took,
        });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Row) -> &str| {
            self.rows
                .iter()
                .map(|row| text(row).len())
                .max()
                .unwrap_or(0)
        };
        let steps = width(|row| &row.step);
        let outcomes = width(|row| &row.outcome);
        let mut total = Duration::ZERO;
        for Row {
            step,
            outcome,
            took,
        } in &self.rows
        {
            total += *took;
            writeln!(
                formatter,
                "  {step:<steps$}  {outcome:<outcomes$}  {:>8.2} s",
                took.as_secs_f64()
            )?;
        }
        write!(
            formatter,
            "  {:<steps$}  {:<outcomes$}  {:>8.2} s",
            "total",
            "",
            total.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_aligned_and_the_times_add_up() {
        let mut report = Report::default();
        report.add("fmt", "1 passed", Duration::from_millis(1500));
        report.add("integration", "failed", Duration::from_secs(61));
        let text = report.to_string();
        let ends: Vec<usize> = text.lines().map(str::len).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
        assert!(text.lines().last().unwrap().contains("62.50 s"), "{text}");
    }

    #[test]
    fn a_failing_step_is_not_noted() {
        let mut report = Report::default();
        assert_eq!(report.step("x", || Err::<(), _>("no")), Err("no"));
        assert!(!report.to_string().contains('x'));
    }
}

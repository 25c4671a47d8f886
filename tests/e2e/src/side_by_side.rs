//! Cases of a test that share one cluster at the same time.
//!
//! Invariant: each case has a thread and a runtime of its own, so that one that waits for kubectl
//! holds up no other; the test goes on after all of them ended.
//! Failure: one error with the name and the causes of each case that failed. A panic of a case
//! becomes that of the test.

use std::future::Future;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::runtime::Builder;

use crate::outcome;

/// A case that runs on the thread that calls it.
type Case<'a> = dyn Fn() -> Result<()> + Sync + 'a;

/// Runs each case on a thread; [`side_by_side!`](crate::side_by_side) calls it.
#[doc(hidden)]
pub fn side_by_side(cases: &[(&str, &Case<'_>)]) -> Result<()> {
    let ends: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = cases
            .iter()
            .map(|&(name, case)| (name, scope.spawn(move || timed(name, case))))
            .collect();
        let joined = running.into_iter().map(|(name, case)| (name, case.join()));
        joined.collect()
    });
    let mut failed = Vec::new();
    for (name, end) in ends {
        match end {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed.push((sentence(name), error)),
            Err(panic) => resume_unwind(panic),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(outcome::joined(&failed))
}

/// Waits for the end of a case; [`side_by_side!`](crate::side_by_side) calls it.
#[doc(hidden)]
pub fn to_its_end(case: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("build a runtime")?.block_on(case)
}

fn timed(name: &str, case: &Case<'_>) -> Result<()> {
    let begun = Instant::now();
    let end = case();
    eprintln!("case: {}: {:.1?}", sentence(name), begun.elapsed());
    end
}

fn sentence(path: &str) -> String {
    path.replace(' ', "").replace('_', " ")
}

/// Runs cases at the same time, each an `async fn` of what is given first; the sentence of a case is
/// its name.
#[macro_export]
macro_rules! side_by_side {
    ($given:expr, [$($case:path),+ $(,)?]) => {
        $crate::side_by_side(&[
            $((stringify!($case), &|| $crate::to_its_end($case($given)))),+
        ])
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::bail;

    use super::*;

    async fn first_of_two(both: &Barrier) -> Result<()> {
        both.wait();
        bail!("no first")
    }

    async fn second_of_two(both: &Barrier) -> Result<()> {
        both.wait();
        bail!("no second")
    }

    async fn never_waits(_: &Barrier) -> Result<()> {
        Ok(())
    }

    /// Were they not at the same time, the first one would wait for the second one without end.
    #[test]
    fn they_run_at_the_same_time_and_each_failure_is_named() {
        let both = Barrier::new(2);
        let error = side_by_side!(&both, [first_of_two, never_waits, second_of_two]);
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("first of two: no first"), "{text}");
        assert!(text.contains("second of two: no second"), "{text}");
        assert!(!text.contains("never"), "{text}");
    }
}

//! Measures the speed of this host, by which the tests' deadlines are scaled.
//!
//! Invariant: the factor is measured before anything else runs, several times: the median counts, so
//! that neither a busy nor a lucky moment of the host decides about the deadlines of a whole run. It is
//! never below [`MARGIN`].
//! Failure: none.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::stamp;

/// The variable by which tests get the factor; `e2e::eventually` multiplies its deadlines by it.
pub(super) const VARIABLE: &str = "VMLET_TEST_SLOWNESS";

/// What the work takes on the machine that the deadlines were chosen on.
const REFERENCE: Duration = Duration::from_millis(120);
/// The measurement is that of a moment: a shared machine may have a third of its speed an hour later. A
/// deadline that is not reached costs no time.
const MARGIN: f64 = 3.0;
/// How often the speed is measured.
const TIMES: usize = 5;
/// Beyond this a run would take hours.
const MOST: f64 = 8.0;

/// The variable with its value, for a test program that no run of the suite starts.
pub(crate) fn variable() -> (&'static str, String) {
    (VARIABLE, format!("{:.2}", factor()))
}

/// How many times slower than the reference this machine is or may become, from 3 to 8.
pub(super) fn factor() -> f64 {
    let block = vec![0x5a; 1 << 20];
    factor_of(&std::array::from_fn(|_| measured(&block)))
}

fn measured(block: &[u8]) -> Duration {
    let work = || {
        for _ in 0..4 {
            black_box(stamp::fnv1a(black_box(block)));
        }
    };
    let begun = Instant::now();
    // Both processors, as tests use them.
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    begun.elapsed()
}

fn factor_of(took: &[Duration; TIMES]) -> f64 {
    let mut took = *took;
    took.sort_unstable();
    let took = took[TIMES / 2];
    (MARGIN * took.as_secs_f64() / REFERENCE.as_secs_f64()).clamp(MARGIN, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_has_a_margin_and_a_bound() {
        let factor = |took| factor_of(&[took; TIMES]);
        assert!((factor(Duration::ZERO) - MARGIN).abs() < f64::EPSILON);
        assert!((factor(REFERENCE * 2) - 6.0).abs() < 0.01);
        assert!((factor(REFERENCE * 100) - MOST).abs() < f64::EPSILON);
    }

    #[test]
    fn one_moment_decides_nothing() {
        let mut took = [REFERENCE * 2; TIMES];
        took[0] = REFERENCE * 100;
        took[1] = REFERENCE * 90;
        took[TIMES - 1] = REFERENCE / 2;
        assert!((factor_of(&took) - MARGIN * 2.0).abs() < 0.01);
    }
}

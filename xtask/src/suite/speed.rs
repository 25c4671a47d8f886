//! Measures the speed of this host, by which the tests' deadlines are scaled.
//!
//! Invariant: the factor is measured once, before anything else runs, and never below [`MARGIN`].
//! Failure: none.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::stamp;

/// The variable by which tests get the factor; `e2e::eventually` multiplies its deadlines by it.
pub(super) const VARIABLE: &str = "VMLET_TEST_SLOWNESS";

/// What the work takes on the machine that the deadlines were chosen on.
const REFERENCE: Duration = Duration::from_millis(120);
/// The measurement is that of a moment: a shared machine may have half of its speed an hour later. A
/// deadline that is not reached costs no time.
const MARGIN: f64 = 2.0;
/// Beyond this a run would take hours.
const MOST: f64 = 8.0;

/// How many times slower than the reference this machine is or may become, from 2 to 8.
pub(super) fn factor() -> f64 {
    let block = vec![0x5a; 1 << 20];
    let work = || {
        for _ in 0..4 {
            black_box(stamp::fnv1a(black_box(&block)));
        }
    };
    let begun = Instant::now();
    // Both processors, as tests use them.
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    factor_of(begun.elapsed())
}

fn factor_of(took: Duration) -> f64 {
    (MARGIN * took.as_secs_f64() / REFERENCE.as_secs_f64()).clamp(MARGIN, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_has_a_margin_and_a_bound() {
        assert!((factor_of(Duration::ZERO) - MARGIN).abs() < f64::EPSILON);
        assert!((factor_of(REFERENCE * 3) - 6.0).abs() < 0.01);
        assert!((factor_of(REFERENCE * 100) - MOST).abs() < f64::EPSILON);
    }
}

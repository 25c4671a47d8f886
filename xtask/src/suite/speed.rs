//! Measures the speed of this host, by which the tests' deadlines are scaled.
//!
//! Invariant: the factor is measured once, before anything else runs, and never below 1.
//! Failure: none.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::stamp;

/// The variable by which tests get the factor; `e2e::eventually` multiplies its deadlines by it.
pub(super) const VARIABLE: &str = "VMLET_TEST_SLOWNESS";

/// What the work takes on the machine that the deadlines were chosen on.
const REFERENCE: Duration = Duration::from_millis(120);
/// Beyond this a run would take hours.
const MOST: f64 = 8.0;

/// How many times slower than the reference this machine is, from 1 to 8.
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
    (took.as_secs_f64() / REFERENCE.as_secs_f64()).clamp(1.0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_never_below_one_nor_without_bound() {
        assert!((factor_of(Duration::ZERO) - 1.0).abs() < f64::EPSILON);
        assert!((factor_of(REFERENCE * 3) - 3.0).abs() < 0.01);
        assert!((factor_of(REFERENCE * 100) - MOST).abs() < f64::EPSILON);
    }
}

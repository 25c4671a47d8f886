//! Failed starts in a row, and how long the next one waits.
//!
//! Invariant: a pod counts once; a run that its owner ended never counts.
//! Failure: none.

use std::time::Duration;

use crds::vm::StartFailure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;

use crate::instance::Instance;

/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(300);
/// A run shorter than this counts like a start that failed.
pub const SHORT_RUN_SECONDS: i64 = 60;
/// A run as long as this makes up for all failures before it.
pub const RESET_SECONDS: i64 = 600;

const FIRST_SECONDS: u64 = 10;

/// A random number from 0 to 1, chosen by the caller for each pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Jitter(f64);

impl Jitter {
    /// Other values are brought into the range.
    #[must_use]
    pub const fn new(fraction: f64) -> Self {
        Self(if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        })
    }
}

/// 10 s × n², up to half of that more by `jitter`, at most 300 s. No failure counts as one.
#[must_use]
pub fn delay(failures: u32, jitter: Jitter) -> Duration {
    let n = u64::from(failures.clamp(1, 100));
    let base = Duration::from_secs(FIRST_SECONDS * n * n);
    let delay = base + base.mul_f64(jitter.0 / 2.0);
    delay.min(LONGEST)
}

/// What is left of a wait, `None` when it is over.
#[must_use]
pub fn left(failure: Option<&StartFailure>, now: &Time) -> Option<Duration> {
    let until = failure?.retry_after_timestamp.as_ref()?;
    let left = until.0.duration_since(now.0);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// The record after a pass that saw `instance`. `is_wanted`: its owner requested its end.
#[must_use]
pub(crate) fn account(
    old: Option<&StartFailure>,
    instance: Option<&Instance>,
    is_wanted: bool,
    now: &Time,
    jitter: Jitter,
) -> Option<StartFailure> {
    let Some(instance) = instance else {
        return old.cloned();
    };
    let ran = instance.ran_seconds(now);
    if ran.is_some_and(|seconds| seconds >= RESET_SECONDS) {
        return None;
    }
    let is_counted = old.is_some_and(|o| o.last_failed_uid.as_deref() == Some(&instance.uid));
    let is_failure = match ran {
        None => true,
        // A user who deletes a machine that has just started to run wants a new instance, not a
        // delay.
        Some(seconds) => seconds < SHORT_RUN_SECONDS && !instance.deleting,
    };
    if !instance.phase.is_final() || is_wanted || is_counted || !is_failure {
        return old.cloned();
    }
    let count = old
        .map_or(0, |o| o.consecutive_fail_count)
        .saturating_add(1);
    let wait = SignedDuration::try_from(delay(count, jitter)).unwrap_or(SignedDuration::ZERO);
    Some(StartFailure {
        consecutive_fail_count: count,
        last_failed_uid: Some(instance.uid.clone()),
        retry_after_timestamp: now.0.checked_add(wait).ok().map(Time),
    })
}

/// How long until a running instance has made up for the failures before it.
pub(crate) fn until_reset(
    failure: Option<&StartFailure>,
    instance: Option<&Instance>,
    now: &Time,
) -> Option<Duration> {
    let ran = instance.filter(|i| i.is_live())?.ran_seconds(now)?;
    let left = RESET_SECONDS.saturating_sub(ran).max(1);
    failure.map(|_| Duration::from_secs(left.unsigned_abs()))
}

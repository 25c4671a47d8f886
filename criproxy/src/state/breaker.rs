//! The circuit breaker: stops calls to a backend that does not respond, and tries it again now and
//! then.
//!
//! ```text
//! closed --N failures in a row--> open --T later, one call--> half open --success--> closed
//!                                   ^-------------------failure---'
//! ```
//!
//! Invariant: while it is not closed at most one call is in progress that it has allowed since it
//! opened. Only the verdicts of calls allowed in the present phase count. A permit dropped without
//! a verdict counts as none.
//! Failure: none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// One backend's breaker; clones share it.
#[derive(Debug, Clone)]
pub struct Breaker {
    inner: Arc<Mutex<Inner>>,
    threshold: u32,
    pause: Duration,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Every call goes through.
    Closed,
    /// No call goes through.
    Open,
    /// One call goes through; its verdict decides.
    HalfOpen,
}

/// The right to make one call. Its holder reports the result; dropping it means that the result is
/// unknown.
#[derive(Debug)]
#[must_use = "a call without a verdict teaches nothing"]
pub struct Permit {
    breaker: Breaker,
    /// The phase that it was given in.
    phase: u64,
}

/// No call now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not asked again for another {} ms after repeated failures", retry_after.as_millis())]
pub struct Refused {
    /// Time until a call may be allowed again; zero while a trial is in progress.
    pub retry_after: Duration,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Grows with every change of the state.
    phase: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen,
}

impl Breaker {
    /// Opens after `threshold` failures in a row (at least one), and allows a trial after each
    /// `pause`.
    pub fn new(threshold: u32, pause: Duration) -> Self {
        let inner = Inner {
            state: State::Closed { failures: 0 },
            phase: 0,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            threshold: threshold.max(1),
            pause,
        }
    }

    /// Requests one call.
    ///
    /// # Errors
    /// [`Refused`] while it is open, or half open with the trial in progress.
    pub fn allow(&self) -> Result<Permit, Refused> {
        let mut inner = self.lock();
        match inner.state {
            State::Closed { .. } => {}
            State::Open { until } => {
                let retry_after = until.saturating_duration_since(Instant::now());
                if !retry_after.is_zero() {
                    return Err(Refused { retry_after });
                }
                inner.go(State::HalfOpen);
            }
            State::HalfOpen => {
                return Err(Refused {
                    retry_after: Duration::ZERO,
                });
            }
        }
        Ok(Permit {
            breaker: self.clone(),
            phase: inner.phase,
        })
    }

    /// What it does at the moment.
    pub fn state(&self) -> BreakerState {
        match self.lock().state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen => BreakerState::HalfOpen,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn go(&mut self, state: State) {
        self.state = state;
        self.phase += 1;
    }
}

impl Permit {
    /// The backend has answered, be it with an error of its own.
    pub fn success(self) {
        let mut inner = self.breaker.lock();
        if inner.phase != self.phase {
            return;
        }
        match &mut inner.state {
            State::Closed { failures } => *failures = 0,
            State::HalfOpen | State::Open { .. } => inner.go(State::Closed { failures: 0 }),
        }
    }

    /// The backend has not answered.
    pub fn failure(self) {
        let open = State::Open {
            until: Instant::now() + self.breaker.pause,
        };
        let mut inner = self.breaker.lock();
        if inner.phase != self.phase {
            return;
        }
        match &mut inner.state {
            State::Closed { failures } if *failures + 1 < self.breaker.threshold => *failures += 1,
            State::Closed { .. } | State::HalfOpen | State::Open { .. } => inner.go(open),
        }
    }
}

impl Drop for Permit {
    /// A trial without a result makes room for the next one at once.
    fn drop(&mut self) {
        let mut inner = self.breaker.lock();
        if inner.phase == self.phase && matches!(inner.state, State::HalfOpen) {
            inner.go(State::Open {
                until: Instant::now(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn opened() -> Breaker {
        let breaker = Breaker::new(1, PAUSE);
        breaker.allow().unwrap().failure();
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_not_after_mixed_ones() {
        let breaker = Breaker::new(3, PAUSE);
        for _ in 0..5 {
            breaker.allow().unwrap().failure();
            breaker.allow().unwrap().failure();
            breaker.allow().unwrap().success();
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        for _ in 0..3 {
            breaker.allow().unwrap().failure();
        }
        assert_eq!(breaker.allow().unwrap_err(), Refused { retry_after: PAUSE });
    }

    #[tokio::test(start_paused = true)]
    async fn one_trial_at_a_time_decides() {
        let breaker = opened();
        tokio::time::advance(PAUSE).await;
        let trial = breaker.allow().unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.allow().is_err());
        trial.failure();
        assert_eq!(breaker.allow().unwrap_err(), Refused { retry_after: PAUSE });
        tokio::time::advance(PAUSE).await;
        breaker.allow().unwrap().success();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_given_up_makes_room_for_another() {
        let breaker = opened();
        tokio::time::advance(PAUSE).await;
        drop(breaker.allow().unwrap());
        breaker.allow().unwrap().success();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn verdicts_of_calls_from_before_it_opened_do_not_count() {
        let breaker = Breaker::new(1, PAUSE);
        let old = breaker.allow().unwrap();
        let older = breaker.allow().unwrap();
        breaker.allow().unwrap().failure();
        old.success();
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::advance(PAUSE).await;
        let trial = breaker.allow().unwrap();
        older.failure();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        trial.success();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}

//! The options of a push, and the configuration of a queue.
//!
//! Invariant: the defaults are those of the published queue, with ageing as the one addition.
//! Failure: none.

use std::time::Duration;

use crate::Limiter;

/// What a push requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A higher priority is dispatched first. A key that is queued already keeps the higher of
    /// both.
    pub priority: i64,
    /// Ready after this time. `None` is "not given"; zero is "at once", also where the back-off
    /// says later.
    pub after: Option<Duration>,
    /// Ready after the key's back-off, which counts one more failure. With `after`: after the
    /// shorter of both.
    pub rate_limited: bool,
    /// Does not end a back-off: a key that failed, or is about to, returns when its delay is over.
    pub quiet: bool,
}

impl Options {
    /// The options of a push at once, with that priority.
    #[must_use]
    pub const fn at(priority: i64) -> Self {
        Self {
            priority,
            after: None,
            rate_limited: false,
            quiet: false,
        }
    }

    /// The same, after `delay`.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// The same, after the key's back-off.
    #[must_use]
    pub const fn rate_limited(mut self) -> Self {
        self.rate_limited = true;
        self
    }

    /// The same, unless the key is in a back-off.
    #[must_use]
    pub const fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }
}

/// What a queue is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Back-off of rate-limited pushes.
    pub limiter: Limiter,
    /// Keeps low priorities from starving; `None`: strict priority.
    pub ageing: Option<Ageing>,
    /// Priorities that metrics name; every other one is counted as custom.
    pub levels: Vec<i64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limiter: Limiter::default(),
            ageing: Some(Ageing::default()),
            levels: Vec::new(),
        }
    }
}

/// When a key precedes others of higher priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ageing {
    /// A key that has been ready for longer is dispatched next.
    pub starvation_after: Duration,
    /// At most one of this many dispatches is of such a key.
    pub every: u32,
}

impl Default for Ageing {
    /// 10 minutes, every eighth dispatch.
    fn default() -> Self {
        Self {
            starvation_after: Duration::from_mins(10),
            every: 8,
        }
    }
}

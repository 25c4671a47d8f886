//! A priority work queue and the workers that it feeds.
//!
//! [`Queue`] is a plain structure: time is an argument, nothing blocks, nothing is spawned.
//! [`Shared`] puts it behind a lock and gives it a clock, so that watches can push into it; [`run`]
//! is the pool of workers.
//!
//! Invariant: a key is handed to at most one worker at a time, and a pushed key is never lost.
//! Failure: none of its own; work that fails returns after a growing delay.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use workqueue::{Config, Options, Queue};
//!
//! let now = Duration::ZERO;
//! let mut queue: Queue<&str> = Queue::new(Config::default());
//! queue.push(now, "routine", Options::at(0));
//! queue.push(now, "requested by a user", Options::at(99));
//! assert_eq!(queue.pop(now).map(|popped| popped.key), Some("requested by a user"));
//! ```

mod limiter;
mod metrics;
mod options;
mod queue;
mod runner;
mod shared;
mod verdict;

pub use self::limiter::Limiter;
pub use self::metrics::{Class, Metrics, Running, Tally};
pub use self::options::{Ageing, Config, Options};
pub use self::queue::{Popped, Queue};
pub use self::runner::{RunConfig, run};
pub use self::shared::Shared;
pub use self::verdict::{Outcome, Verdict};

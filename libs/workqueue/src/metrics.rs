//! What the queue reports about itself.
//!
//! The usual series that a sink makes of it: `workqueue_depth`, `workqueue_adds_total`,
//! `workqueue_retries_total`, `workqueue_queue_duration_seconds`,
//! `workqueue_work_duration_seconds`, `workqueue_unfinished_work_seconds`,
//! `workqueue_longest_running_processor_seconds`, and `reconcile_total{result}`,
//! `reconcile_errors_total`, `terminal_reconcile_errors_total`, `reconcile_panics_total`,
//! `reconcile_timeouts_total`, `reconcile_time_seconds`, `active_workers`.
//!
//! Invariant: the label of a depth comes from a fixed list, so that series neither grow nor drift.
//! Failure: none; a sink must not block, it is called with the queue locked.

use std::time::Duration;

/// Label of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A configured level.
    Level(i64),
    /// Any other priority.
    Custom,
}

/// How a pass over a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tally {
    /// `success`
    Success,
    /// `requeue_after`
    RequeueAfter,
    /// `requeue`
    Requeue,
    /// `error`
    Error,
    /// `error`, and a terminal error.
    Terminal,
    /// `error`, and a panic.
    Panic,
    /// `error`, and a timeout.
    Timeout,
}

impl Tally {
    /// Value of the label `result` of `reconcile_total`.
    #[must_use]
    pub const fn result(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Requeue => "requeue",
            Self::Error | Self::Terminal | Self::Panic | Self::Timeout => "error",
        }
    }
}

/// What is being worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Keys in flight.
    pub count: usize,
    /// How long all of them together have been.
    pub unfinished: Duration,
    /// How long the oldest has been.
    pub longest: Duration,
}

/// Where the numbers go. Every method has an empty default.
#[allow(unused_variables, reason = "the names are for those who implement it")]
pub trait Metrics: Send + 'static {
    /// The number of ready keys of a class changed by `change`.
    fn depth(&mut self, class: Class, change: i64) {}
    /// A key became ready.
    fn added(&mut self) {}
    /// A key was pushed with a delay.
    fn retried(&mut self) {}
    /// A key was handed out; it had been ready for that long.
    fn queued(&mut self, waited: Duration) {}
    /// Like [`Metrics::queued`], with the class, and whether the key was dispatched before others
    /// of higher priority.
    fn dispatched(&mut self, class: Class, waited: Duration, aged: bool) {}
    /// A key returned; it had been handed out for that long.
    fn worked(&mut self, took: Duration) {}
    /// What is in flight; refreshed twice a second while something is.
    fn running(&mut self, running: Running) {}
    /// The handler ended.
    fn reconciled(&mut self, tally: Tally, took: Duration) {}
}

/// No metrics.
impl Metrics for () {}

//! Runs jobs side by side, as many as the machine holds.
//!
//! Invariant: every job has an outcome, in the order in which they ended; each is printed in one
//! line when it ends, with its output when it failed.
//! Failure: a job whose kit cannot be built fails with that reason.

use std::fs;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::job::Job;
use super::kit::Shelf;
use super::outcome::Outcome;
use super::queue::{Capacity, Next, Queue};
use super::weights::Weight;

/// Threads that run jobs; the weights keep most of them waiting.
const LANES: usize = 12;
/// How often a lane that waits looks whether a kit has become ready.
const LOOK: Duration = Duration::from_millis(500);

/// Jobs that run side by side.
#[derive(Debug)]
pub(super) struct Lanes<'a> {
    /// What jobs need.
    pub(super) shelf: &'a Shelf,
    /// What they are given in their environment.
    pub(super) variables: &'a [(&'a str, String)],
    /// Whether what passed is shown with all that it printed.
    pub(super) show: bool,
    /// Gets the time of the first result of a stack.
    pub(super) first_stack: &'a FirstStack,
    /// What the machine holds.
    pub(super) capacity: Capacity,
}

/// How long a developer waits for a result of a real node, API server or cluster.
#[derive(Debug)]
pub(super) struct FirstStack {
    begun: Instant,
    took: OnceLock<Duration>,
}

impl FirstStack {
    /// A wait that begins now.
    pub(super) fn from_now() -> Self {
        Self {
            begun: Instant::now(),
            took: OnceLock::new(),
        }
    }

    /// How long it was; `None` without such a result.
    pub(super) fn seconds(&self) -> Option<u64> {
        self.took.get().map(Duration::as_secs)
    }

    fn ended(&self, job: &Job) {
        if job.part.has_stacks() {
            self.took.get_or_init(|| self.begun.elapsed());
        }
    }
}

impl Lanes<'_> {
    /// Runs all of them.
    pub(super) fn run(&self, jobs: Vec<(Weight, Job)>) -> Vec<(Job, Outcome)> {
        let queue = Mutex::new(Queue::new(self.capacity, jobs));
        let outcomes = Mutex::new(Vec::new());
        let changed = Condvar::new();
        thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    while let Some((job, weight)) = self.next(&queue, &changed) {
                        let outcome = self.one(&job);
                        self.first_stack.ended(&job);
                        self.print_outcome(&job, &outcome);
                        let mut all = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                        all.push((job, outcome));
                        drop(all);
                        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                        queue.ended(&weight);
                        changed.notify_all();
                    }
                });
            }
        });
        outcomes
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, queue: &Mutex<Queue<Job>>, changed: &Condvar) -> Option<(Job, Weight)> {
        let mut locked = queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match locked.take(|job| self.shelf.state(job.kit()).is_some()) {
                Next::Run(job, weight) => return Some((job, weight)),
                Next::Done => return None,
                Next::Wait => {
                    let waited = changed.wait_timeout(locked, LOOK);
                    locked = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn one(&self, job: &Job) -> Outcome {
        match self.shelf.state(job.kit()) {
            Some(Err(error)) => Outcome::not_run(&job.name, job.part, &error),
            _ => job.run(self.variables),
        }
    }

    /// Says what became of a job, in one piece: other lanes print, too.
    fn print_outcome(&self, job: &Job, outcome: &Outcome) {
        let seconds = outcome.took.as_secs();
        let mut text = format!(
            "{:<11} {}: {}, {seconds} s",
            job.part, job.name, outcome.count
        );
        if outcome.count.failed > 0 || self.show {
            let log = fs::read(job.log()).unwrap_or_default();
            text = format!("{text}\n{}\n", String::from_utf8_lossy(&log).trim_end());
            for failure in outcome.failures.iter().filter(|f| f.test.is_empty()) {
                text = format!("{text}{}\n", failure.tail);
            }
            text = format!("{text}-- end of {}", job.name);
        }
        println!("{text}");
    }
}

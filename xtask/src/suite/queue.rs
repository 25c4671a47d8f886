//! Chooses the next job.
//!
//! Invariant: what runs together fits the machine, unless one job alone is larger than it; a job
//! that is to be alone has no other beside it. Of the jobs that are ready and fit, the first in the
//! caller's order starts.
//! Failure: none.

use super::weights::Weight;

/// What the machine can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Percent of one processor.
    pub(super) percent: u64,
    /// Memory.
    pub(super) memory_mib: u64,
}

/// What a lane is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// Run this, and hand its weight back with [`Queue::ended`].
    Run(T, Weight),
    /// Ask again when a job has ended or something became ready.
    Wait,
    /// Nothing is left.
    Done,
}

/// Jobs that wait and the weights of those that run.
#[derive(Debug)]
pub(super) struct Queue<T> {
    capacity: Capacity,
    /// In the order in which they start.
    waiting: Vec<(Weight, T)>,
    running: Vec<Weight>,
}

impl<T> Queue<T> {
    /// All of them wait.
    pub(super) fn new(capacity: Capacity, jobs: Vec<(Weight, T)>) -> Self {
        Self {
            capacity,
            waiting: jobs,
            running: Vec::new(),
        }
    }

    /// Takes the next job, of those that are ready.
    pub(super) fn take(&mut self, is_ready: impl Fn(&T) -> bool) -> Next<T> {
        if self.waiting.is_empty() {
            return Next::Done;
        }
        let found = self
            .waiting
            .iter()
            .position(|(weight, job)| self.fits(weight) && is_ready(job));
        let Some(index) = found else {
            return Next::Wait;
        };
        let (weight, job) = self.waiting.remove(index);
        self.running.push(weight);
        Next::Run(job, weight)
    }

    /// Gives back what a job took.
    pub(super) fn ended(&mut self, weight: &Weight) {
        if let Some(index) = self.running.iter().position(|other| other == weight) {
            self.running.swap_remove(index);
        }
    }

    fn fits(&self, weight: &Weight) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let sum =
            |part: fn(&Weight) -> u64| self.running.iter().map(part).sum::<u64>() + part(weight);
        !weight.alone
            && !self.running.iter().any(|other| other.alone)
            && sum(|w| w.percent) <= self.capacity.percent
            && sum(|w| w.memory_mib) <= self.capacity.memory_mib
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(seconds: u64, percent: u64, memory_mib: u64, alone: bool) -> Weight {
        Weight {
            seconds,
            percent,
            memory_mib,
            alone,
        }
    }

    fn queue(jobs: &[(&'static str, Weight)]) -> Queue<&'static str> {
        let capacity = Capacity {
            percent: 200,
            memory_mib: 1000,
        };
        Queue::new(capacity, jobs.iter().map(|(name, w)| (*w, *name)).collect())
    }

    /// What starts, until one has to wait.
    fn start(queue: &mut Queue<&'static str>) -> Vec<&'static str> {
        let mut started = Vec::new();
        while let Next::Run(job, _) = queue.take(|_| true) {
            started.push(job);
        }
        started
    }

    #[test]
    fn they_start_in_order_and_what_runs_fits() {
        let mut queue = queue(&[
            ("long", weight(9, 100, 10, false)),
            ("middle", weight(5, 100, 10, false)),
            ("short", weight(1, 100, 10, false)),
        ]);
        assert_eq!(start(&mut queue), ["long", "middle"]);
        assert_eq!(queue.take(|_| true), Next::Wait);
        queue.ended(&weight(9, 100, 10, false));
        assert_eq!(start(&mut queue), ["short"]);
        assert_eq!(queue.take(|_| true), Next::Done);
    }

    #[test]
    fn a_shorter_one_goes_first_when_the_longer_is_not_ready_or_does_not_fit() {
        let mut queue = queue(&[
            ("big", weight(9, 10, 900, false)),
            ("bigger", weight(8, 10, 2000, false)),
            ("waits for tools", weight(7, 10, 10, false)),
            ("small", weight(1, 10, 10, false)),
        ]);
        let is_ready = |job: &&str| *job != "waits for tools";
        let big = weight(9, 10, 900, false);
        assert_eq!(queue.take(is_ready), Next::Run("big", big));
        assert!(matches!(queue.take(is_ready), Next::Run("small", _)));
        assert_eq!(queue.take(is_ready), Next::Wait);
        queue.ended(&big);
        queue.ended(&weight(1, 10, 10, false));
        // Larger than the machine: alone it may try.
        assert!(matches!(queue.take(is_ready), Next::Run("bigger", _)));
    }

    #[test]
    fn one_that_is_to_be_alone_is() {
        let alone = weight(9, 10, 10, true);
        let mut queue = queue(&[("alone", alone), ("other", weight(1, 10, 10, false))]);
        assert_eq!(start(&mut queue), ["alone"]);
        queue.ended(&alone);
        assert_eq!(start(&mut queue), ["other"]);
    }
}

//! What no single value shows.
//!
//! Invariant: a configuration that passes can be run.
//! Failure: the first contradiction, as a sentence with the keys' names.

use super::Config;

/// Longest times that make sense, in seconds: beyond them a value is a slip.
const A_DAY: u64 = 86_400;
/// More workers than a cluster's API server would bear.
const MOST_WORKERS: usize = 256;
/// Longest name of a Kubernetes object.
const LONGEST_NAME: usize = 253;
/// Nothing is looked at more often than that only because time passed.
const SHORTEST_LOOK: u64 = 30;

/// Settings contradict each other or are out of range.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Contradiction(pub(super) String);

impl Config {
    pub(super) fn check(&self) -> Result<(), Contradiction> {
        let Self { runner, lease, .. } = self;
        let refuse = |is_bad: bool, words: &str| match is_bad {
            true => Err(Contradiction(words.to_owned())),
            false => Ok(()),
        };
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain)
        };
        refuse(
            !(1..=MOST_WORKERS).contains(&runner.workers),
            "runner.workers must be from 1 to 256",
        )?;
        refuse(
            !(1..=A_DAY).contains(&runner.pass_timeout_secs),
            "runner.pass_timeout_secs must be from 1 to 86400",
        )?;
        refuse(
            !(SHORTEST_LOOK..=A_DAY).contains(&runner.resync_secs),
            "runner.resync_secs must be from 30 to 86400",
        )?;
        refuse(
            !(SHORTEST_LOOK..=A_DAY).contains(&runner.recheck_secs),
            "runner.recheck_secs must be from 30 to 86400",
        )?;
        refuse(
            runner.retry_min_ms == 0 || runner.retry_min_ms > runner.retry_max_ms,
            "runner.retry_min_ms must be from 1 to runner.retry_max_ms",
        )?;
        refuse(
            runner.drain_secs > A_DAY,
            "runner.drain_secs must be at most 86400",
        )?;
        refuse(
            !is_name(&self.namespace),
            "namespace must be a Kubernetes name",
        )?;
        refuse(
            !is_name(&lease.name),
            "lease.name must be a Kubernetes name",
        )?;
        refuse(
            lease.retry_secs == 0
                || lease.retry_secs >= lease.renew_deadline_secs
                || lease.renew_deadline_secs >= lease.duration_secs,
            "lease.retry_secs must be less than lease.renew_deadline_secs, and that less than \
             lease.duration_secs",
        )?;
        refuse(
            u64::from(lease.duration_secs) > A_DAY,
            "lease.duration_secs must be at most 86400",
        )?;
        refuse(
            !["", "direct", "linked"].contains(&self.machines.fast_deploy.as_str()),
            "machines.fast_deploy must be direct, linked or empty",
        )?;
        refuse(
            self.machines.image_caches,
            "machines.image_caches must be false: no controller of this version fills image caches",
        )
    }
}

//! Checks of settings that depend on each other, and of ranges.
//!
//! Invariant: a configuration that passes can be run.
//! Failure: the first contradiction, as a sentence with the keys' names.

use service::settings::Timespan;

use super::Config;

/// Maximum of all durations: a longer one is a mistake.
const A_DAY: Timespan = Timespan::from_secs(86_400);
/// Minimum timeout of a pass.
const A_SECOND: Timespan = Timespan::from_secs(1);
/// Maximum number of workers: more would overload the API server.
const MOST_WORKERS: usize = 256;
/// Longest name of a Kubernetes object.
const LONGEST_NAME: usize = 253;
/// Minimum interval at which objects are reconciled without a change.
const SHORTEST_INTERVAL: Timespan = Timespan::from_secs(30);

/// Settings contradict each other or are out of range.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Contradiction(pub(super) String);

impl Config {
    pub(super) fn refuse_contradictions(&self) -> Result<(), Contradiction> {
        let Self { runner, lease, .. } = self;
        let refuse = |is_bad: bool, words: &str| {
            if is_bad {
                Err(Contradiction(words.to_owned()))
            } else {
                Ok(())
            }
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
            !(A_SECOND..=A_DAY).contains(&runner.pass_timeout),
            "runner.pass_timeout must be from 1s to 24h",
        )?;
        refuse(
            !(SHORTEST_INTERVAL..=A_DAY).contains(&runner.resync),
            "runner.resync must be from 30s to 24h",
        )?;
        refuse(
            !(SHORTEST_INTERVAL..=A_DAY).contains(&runner.recheck),
            "runner.recheck must be from 30s to 24h",
        )?;
        refuse(
            runner.retry_min.is_zero() || runner.retry_min > runner.retry_max,
            "runner.retry_min must be more than 0s and at most runner.retry_max",
        )?;
        refuse(runner.drain > A_DAY, "runner.drain must be at most 24h")?;
        refuse(
            !is_name(&self.namespace),
            "namespace must be a Kubernetes name",
        )?;
        refuse(
            !is_name(&lease.name),
            "lease.name must be a Kubernetes name",
        )?;
        refuse(
            lease.retry.is_zero()
                || lease.retry >= lease.renew_deadline
                || lease.renew_deadline >= lease.duration,
            "lease.retry must be less than lease.renew_deadline, and that less than \
             lease.duration",
        )?;
        refuse(
            lease.duration.get().subsec_nanos() != 0,
            "lease.duration must be in whole seconds",
        )?;
        refuse(lease.duration > A_DAY, "lease.duration must be at most 24h")?;
        refuse(
            !["", "direct", "linked"].contains(&self.machines.fast_deploy.as_str()),
            "machines.fast_deploy must be direct, linked or empty",
        )?;
        refuse(
            self.machines.disk_request_percent > 100,
            "machines.disk_request_percent must be from 0 to 100",
        )?;
        let after = self.machines.online_promotion_after;
        refuse(
            after.is_some_and(|after| after > A_DAY),
            "machines.online_promotion_after must be at most 24h",
        )
    }
}

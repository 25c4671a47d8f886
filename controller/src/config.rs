//! The controller's settings: defaults, then a TOML file, then environment and flags.
//!
//! Invariant: a [`Config`] that [`load`] returns is free of contradictions; unknown keys are refused.
//! Failure: [`Error`] says in a sentence what is wrong, with line and column where the file is.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use service::telemetry::Log;

use crate::priority::{Additions, LevelOverrides, Profile as Rules};

mod check;
mod flags;
mod load;
#[cfg(test)]
mod tests;

pub use check::Contradiction;
pub use flags::{Args, Overrides};
pub use load::{Error, load};

/// Read when no file is named; it need not exist.
pub const DEFAULT_FILE: &str = "/etc/vmlet/controller.toml";

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How the API server is reached; empty: as `KUBECONFIG` says, else from within the cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the controller's own objects, such as its lease.
    pub namespace: String,
    /// Address and port of the HTTP server for health and metrics.
    pub listen: SocketAddr,
    /// How passes are run.
    pub runner: Runner,
    /// Which object is served first.
    pub priority: Priority,
    /// Which of several controllers acts.
    pub lease: Lease,
    /// How machines are made.
    pub machines: Machines,
    /// What is said on standard error.
    pub log: Log,
}

/// How passes are run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runner {
    /// Passes that run at the same time.
    pub workers: usize,
    /// Longest time of a pass, in seconds; then it is given up and repeated.
    pub pass_timeout_secs: u64,
    /// How often every machine is looked at although nothing happened, in seconds.
    pub resync_secs: u64,
    /// How soon a machine that is not made yet is looked at although the event that it waits for did not come, in seconds.
    pub recheck_secs: u64,
    /// First and longest delay before a failed pass is repeated, in milliseconds.
    pub retry_min_ms: u64,
    /// See `retry_min_ms`.
    pub retry_max_ms: u64,
    /// Longest time that passes are given to end when the controller is told to, in seconds.
    pub drain_secs: u64,
}

/// Which object is served first.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Priority {
    /// Numbers that differ from the profile's.
    pub levels: LevelOverrides,
    /// The numbers: `page` (documented) or `parity` (those of the reference implementation's source).
    pub profile: Profile,
    /// Recompute the priority of a machine from its present state when it is put back.
    pub recompute: bool,
    /// Dispatch what has been ready for so long before anything else, in seconds; 0: never.
    pub starvation_after_secs: u64,
    /// Keep a worker free for machines that nobody waits for, from 4 workers on.
    pub reserve_worker: bool,
    /// Changes of other objects take the priority that the machine itself has.
    pub mapped_by_state: bool,
    /// A pod that contradicts the machine's status counts as a change of its power.
    pub pod_contradicts: bool,
}

/// A table of numbers and rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As documented.
    #[default]
    Page,
    /// As the reference implementation's source has it, without any of our additions.
    Parity,
}

/// Which of several controllers acts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// Take the lease before anything is done. Only a controller that is alone may do without.
    pub enabled: bool,
    /// Name of the Lease object.
    pub name: String,
    /// How this process's name begins; empty: with the host's. A random part follows.
    pub identity: String,
    /// How long a lease that is not renewed is still respected, in seconds.
    pub duration_secs: u32,
    /// The holder that could not renew for so long stops, in seconds; less than `duration_secs`.
    pub renew_deadline_secs: u32,
    /// How often it is renewed or asked for, in seconds.
    pub retry_secs: u32,
}

/// How machines are made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// Machines whose root disk is made at the same time; 0: four fifths of the workers, at least 1.
    pub creates: usize,
    /// The same on one node; at least 1.
    pub creates_per_node: usize,
    /// New machines wait until the image cache in `namespace` describes their image. Must be false: no controller of
    /// this version fills image caches.
    pub image_caches: bool,
    /// Facts about guests arrive by watches; without them machines that wait for an address are looked at again.
    pub signals: bool,
    /// Machines that are off, or start, take over the size of a class that they newly name.
    pub resize: bool,
    /// How root disks are made unless the machine says: `direct`, `linked`, or empty for the plain way.
    pub fast_deploy: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespace: "vmlet-system".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 9630)),
            runner: Runner::default(),
            priority: Priority::default(),
            lease: Lease::default(),
            machines: Machines::default(),
            log: Log::default(),
        }
    }
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            workers: 8,
            pass_timeout_secs: 120,
            resync_secs: 30 * 60,
            recheck_secs: 60,
            retry_min_ms: 5,
            retry_max_ms: 1_000_000,
            drain_secs: 10,
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            levels: LevelOverrides::default(),
            profile: Profile::Page,
            recompute: true,
            starvation_after_secs: 600,
            reserve_worker: true,
            mapped_by_state: true,
            pod_contradicts: true,
        }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            enabled: true,
            name: "vmlet-controller".to_owned(),
            identity: String::new(),
            duration_secs: 15,
            renew_deadline_secs: 10,
            retry_secs: 2,
        }
    }
}

impl Default for Machines {
    fn default() -> Self {
        Self {
            creates: 0,
            creates_per_node: 2,
            image_caches: false,
            signals: true,
            resize: true,
            fast_deploy: "linked".to_owned(),
        }
    }
}

impl Config {
    /// How many root disks may be made at the same time; at least 1.
    #[must_use]
    pub fn create_slots(&self) -> usize {
        match self.machines.creates {
            0 => (self.runner.workers * 4 / 5).max(1),
            set => set,
        }
    }
}

impl Priority {
    /// The numbers and rules that this comes to.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let additions = Additions {
            recompute: self.recompute,
            mapped_by_state: self.mapped_by_state,
            pod_contradicts: self.pod_contradicts,
        };
        let mut rules = match self.profile {
            Profile::Page => Rules::page(additions),
            Profile::Parity => Rules::parity(),
        };
        rules.levels = self.levels.apply(rules.levels);
        rules
    }
}

impl Runner {
    /// Longest time of a pass.
    #[must_use]
    pub const fn pass_timeout(&self) -> Duration {
        Duration::from_secs(self.pass_timeout_secs)
    }

    /// How often every machine is looked at although nothing happened.
    #[must_use]
    pub const fn resync(&self) -> Duration {
        Duration::from_secs(self.resync_secs)
    }

    /// How soon a machine that is not made yet is looked at although nothing happened.
    #[must_use]
    pub const fn recheck(&self) -> Duration {
        Duration::from_secs(self.recheck_secs)
    }

    /// Longest time that passes are given to end.
    #[must_use]
    pub const fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_secs)
    }
}

impl Lease {
    /// How long a lease that is not renewed is still respected.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.duration_secs.into())
    }

    /// The holder that could not renew for so long stops.
    #[must_use]
    pub fn renew_deadline(&self) -> Duration {
        Duration::from_secs(self.renew_deadline_secs.into())
    }

    /// How often it is renewed or asked for.
    #[must_use]
    pub fn retry(&self) -> Duration {
        Duration::from_secs(self.retry_secs.into())
    }
}

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
    /// Path to the kubeconfig file. Defaults to the file in `KUBECONFIG` or, without it, the in-cluster
    /// configuration.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the controller's own objects, such as its lease.
    pub namespace: String,
    /// Address and port of the HTTP server for health and metrics.
    pub listen: SocketAddr,
    /// How reconcile passes are run.
    pub runner: Runner,
    /// Which object is reconciled first.
    pub priority: Priority,
    /// Which of several controllers is active.
    pub lease: Lease,
    /// How machines are created.
    pub machines: Machines,
    /// Log output on standard error.
    pub log: Log,
}

/// How reconcile passes are run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runner {
    /// Maximum number of concurrent reconcile passes.
    pub workers: usize,
    /// Timeout of a pass, in seconds. After it, the pass is aborted and repeated.
    pub pass_timeout_secs: u64,
    /// Interval at which every machine is reconciled even without a change, in seconds.
    pub resync_secs: u64,
    /// Delay after which a machine that is not created yet is reconciled even if the event that it waits for has not
    /// arrived, in seconds.
    pub recheck_secs: u64,
    /// Initial delay before a failed pass is repeated, in milliseconds.
    pub retry_min_ms: u64,
    /// Maximum delay before a failed pass is repeated, in milliseconds.
    pub retry_max_ms: u64,
    /// Maximum time for running passes to finish when the controller shuts down, in seconds.
    pub drain_secs: u64,
}

/// Which object is reconciled first.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Priority {
    /// Priorities that differ from the profile.
    pub levels: LevelOverrides,
    /// Profile of priorities: `page` (documented) or `parity` (those in the source of the reference implementation).
    pub profile: Profile,
    /// Recomputes the priority of a machine from its current state when it is requeued.
    pub recompute: bool,
    /// Time after which a ready object is reconciled before all others, in seconds; 0 disables this.
    pub starvation_after_secs: u64,
    /// Reserves one worker for machines with low priority (below 96), from 4 workers on.
    pub reserve_worker: bool,
    /// Changes of other objects use the current priority of the machine.
    pub mapped_by_state: bool,
    /// A pod that contradicts the status of the machine counts as a change of the power state.
    pub pod_contradicts: bool,
}

/// A profile of priorities and rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As documented.
    #[default]
    Page,
    /// As in the source of the reference implementation, without any additions.
    Parity,
}

/// Which of several controllers is active.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// Whether the controller acquires the lease before it starts to reconcile. Disable it only if a single
    /// controller runs.
    pub enabled: bool,
    /// Name of the Lease object.
    pub name: String,
    /// Prefix of this process's identity; empty for the host name. A random suffix is added.
    pub identity: String,
    /// Time for which a lease that is not renewed stays valid, in seconds.
    pub duration_secs: u32,
    /// Time after which a holder that cannot renew the lease stops, in seconds; less than `duration_secs`.
    pub renew_deadline_secs: u32,
    /// Interval at which the lease is renewed or requested, in seconds.
    pub retry_secs: u32,
}

/// How machines are created.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// Root disks that are created concurrently; 0: four fifths of the workers, at least 1.
    pub creates: usize,
    /// Root disks that are created concurrently on one node; at least 1.
    pub creates_per_node: usize,
    /// New machines wait until the image cache in `namespace` describes their image. Must be false: this version has
    /// no controller for image caches.
    pub image_caches: bool,
    /// The controller watches for information about guests. Without it, the controller reconciles machines that wait
    /// for an address at intervals.
    pub signals: bool,
    /// A machine that is off or starts is resized to the class that it newly references.
    pub resize: bool,
    /// How root disks are created if the machine does not specify it: `direct`, `linked`, or empty for the ordinary
    /// way.
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
    /// Root disks that are created concurrently; at least 1.
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
    /// Timeout of a pass.
    #[must_use]
    pub const fn pass_timeout(&self) -> Duration {
        Duration::from_secs(self.pass_timeout_secs)
    }

    /// Interval at which every machine is reconciled even without a change.
    #[must_use]
    pub const fn resync(&self) -> Duration {
        Duration::from_secs(self.resync_secs)
    }

    /// Delay after which a machine that is not created yet is reconciled even without a change.
    #[must_use]
    pub const fn recheck(&self) -> Duration {
        Duration::from_secs(self.recheck_secs)
    }

    /// Maximum time for running passes to finish.
    #[must_use]
    pub const fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_secs)
    }
}

impl Lease {
    /// Time for which a lease that is not renewed stays valid.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.duration_secs.into())
    }

    /// Time after which a holder that cannot renew the lease stops.
    #[must_use]
    pub fn renew_deadline(&self) -> Duration {
        Duration::from_secs(self.renew_deadline_secs.into())
    }

    /// Interval at which the lease is renewed or requested.
    #[must_use]
    pub fn retry(&self) -> Duration {
        Duration::from_secs(self.retry_secs.into())
    }
}

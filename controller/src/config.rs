//! The controller's settings.
//!
//! Invariant: a [`Config`] that was checked is free of contradictions.
//! Failure: [`Contradiction`] names the keys.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::settings::{Problem, Settings, Timespan};
use service::telemetry::Log;

use crate::priority::{Additions, LevelOverrides, Profile as Rules};

mod check;
#[cfg(test)]
mod tests;

pub use check::Contradiction;

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Path to the kubeconfig file. Defaults to the file in `KUBECONFIG` or, without it, the
    /// in-cluster configuration.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the controller's own objects, such as its lease.
    pub namespace: String,
    /// Address and port of the HTTP server for metrics.
    pub listen: SocketAddr,
    /// Address and port of the HTTP server for probes, `/healthz` and `/readyz`.
    pub probe_listen: SocketAddr,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runner {
    /// Maximum number of concurrent reconcile passes.
    pub workers: usize,
    /// Timeout of a pass. After it, the pass is aborted and repeated.
    pub pass_timeout: Timespan,
    /// Interval at which every machine is reconciled even without a change.
    pub resync: Timespan,
    /// Delay after which a machine that is not created yet is reconciled even if the event that it
    /// waits for has not arrived.
    pub recheck: Timespan,
    /// Initial delay before a failed pass is repeated.
    pub retry_min: Timespan,
    /// Maximum delay before a failed pass is repeated.
    pub retry_max: Timespan,
    /// Maximum time for running passes to finish when the controller shuts down.
    pub drain: Timespan,
}

/// Which object is reconciled first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Priority {
    /// Priorities that differ from the profile.
    pub levels: LevelOverrides,
    /// Profile of priorities: `page` (documented) or `parity` (those in the source of the reference
    /// implementation). `parity` disables `recompute`, `mapped_by_state` and `pod_contradicts`.
    pub profile: Profile,
    /// Recomputes the priority of a machine from its current state when it is requeued.
    pub recompute: bool,
    /// Time after which a ready object is reconciled before all others; `0s` disables this.
    pub starvation_after: Timespan,
    /// Reserves one worker for machines with low priority (below 96), from 4 workers on.
    pub reserve_worker: bool,
    /// Changes of other objects use the current priority of the machine.
    pub mapped_by_state: bool,
    /// A pod that contradicts the status of the machine counts as a change of the power state.
    pub pod_contradicts: bool,
}

/// A profile of priorities and rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As documented.
    #[default]
    Page,
    /// As in the source of the reference implementation, without any additions.
    Parity,
}

/// Which of several controllers is active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// Whether the controller acquires the lease before it starts to reconcile. Disable it only if
    /// a single controller runs.
    pub enabled: bool,
    /// Name of the Lease object.
    pub name: String,
    /// Prefix of this process's identity; empty for the host name. A random suffix is added.
    pub identity: String,
    /// Time for which a lease that is not renewed stays valid; whole seconds.
    pub duration: Timespan,
    /// Time after which a holder that cannot renew the lease stops; less than `duration`.
    pub renew_deadline: Timespan,
    /// Interval at which the lease is renewed or requested.
    pub retry: Timespan,
}

/// How machines are created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// Root disks that are created concurrently; 0: four fifths of the workers, at least 1.
    pub creates: usize,
    /// Root disks that are created concurrently on one node; at least 1.
    pub creates_per_node: usize,
    /// The controller keeps a VirtualMachineImageCache for each image: nodes pull the image for machines
    /// that wait for it, placeholders prefer nodes that have it, and machines report the progress of
    /// the pull. Without it, kubelet alone pulls images.
    pub image_caches: bool,
    /// The controller watches for information about guests. Without it, the controller reconciles
    /// machines that wait for an address at intervals.
    pub signals: bool,
    /// A machine that is off or starts is resized to the class that it newly references.
    pub resize: bool,
    /// How root disks are created if the machine does not specify it: `direct`, `linked`, or empty
    /// for the ordinary way.
    pub fast_deploy: String,
    /// Percentage of the size of its root disk that a machine's pods request as ephemeral storage,
    /// if the disk is a file on the node; 0: they request none. Lower it to allow more disks than
    /// the node has space for; set it to 0 where the nodes' disks of machines are on another file
    /// system than kubelet's.
    pub disk_request_percent: u32,
    /// Time for which a machine with `promoteDisksMode: Online` has to be ready before its linked root disk is
    /// flattened while the machine runs. Not set: such disks stay linked, and take the least space.
    pub online_promotion_after: Option<Timespan>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespace: "vmlet-system".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 9630)),
            probe_listen: SocketAddr::from(([127, 0, 0, 1], 9631)),
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
            pass_timeout: Timespan::from_secs(120),
            resync: Timespan::from_secs(30 * 60),
            recheck: Timespan::from_secs(60),
            retry_min: Timespan::from_millis(5),
            retry_max: Timespan::from_millis(1_000_000),
            drain: Timespan::from_secs(10),
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            levels: LevelOverrides::default(),
            profile: Profile::Page,
            recompute: true,
            starvation_after: Timespan::from_secs(600),
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
            duration: Timespan::from_secs(15),
            renew_deadline: Timespan::from_secs(10),
            retry: Timespan::from_secs(2),
        }
    }
}

impl Default for Machines {
    fn default() -> Self {
        Self {
            creates: 0,
            creates_per_node: 2,
            image_caches: true,
            signals: true,
            resize: true,
            fast_deploy: "linked".to_owned(),
            disk_request_percent: 100,
            online_promotion_after: None,
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

impl Lease {
    /// `leaseDurationSeconds` of the Lease object; [`Config::check`] allows whole seconds only.
    pub(crate) fn duration_secs(&self) -> u32 {
        u32::try_from(self.duration.get().as_secs()).unwrap_or(u32::MAX)
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "vmlet-controller";
    const PREFIX: &'static str = "VMLET_CONTROLLER";
    const FILE: &'static str = "/etc/vmlet/controller.toml";

    fn check(&self) -> Result<(), Problem> {
        Ok(self.refuse_contradictions()?)
    }
}

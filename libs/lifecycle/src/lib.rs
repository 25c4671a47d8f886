//! Decides what a virtual machine should do next.
//!
//! Invariant: pure functions; no clock, no I/O. The same objects and the same time give the same
//! answer.
//! Failure: a combination that makes no sense is an answer of its own ([`Decision::failure`]),
//! never a panic.
//!
//! # Example
//!
//! ```
//! use lifecycle::{DesiredState, Strategy};
//! use serde_json::json;
//!
//! let spec = serde_json::from_value(json!({ "className": "small", "runStrategy": "Manual" }))?;
//! let desired = DesiredState::from_spec(&spec)?.ok_or("no desired state")?;
//! assert_eq!(desired.strategy(), Strategy::Manual);
//! assert_eq!(desired.to_string(), "runStrategy=Manual");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod backoff;
pub mod conditions;
mod decision;
mod desired;
pub mod group;
mod instance;
mod phase;
pub mod power;
pub mod printable;
mod record;
pub mod requests;
pub mod revision;
mod rules;
pub mod snapshot;
mod start;
mod strategy;
pub mod verbs;

pub use decision::{Action, Decision, Ending, Failure, Patch, Waiting};
pub use desired::desired;
pub use instance::{EndCause, Instance, NodeState, Unstartable};
pub use phase::Phase;
pub use printable::{View, printable};
pub use start::{desired_power_state, set_to_start};
pub use strategy::{DesiredState, DesiredStateError, Strategy};

use crds::{VirtualMachineSpec, VirtualMachineStatus};

/// One machine as a pass sees it.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// What its owner wants.
    pub spec: &'a VirtualMachineSpec,
    /// What was written last.
    pub status: &'a VirtualMachineStatus,
    /// Facts from its metadata.
    pub meta: &'a Meta,
    /// Its pod, as of the same moment as `status` or later.
    pub instance: Option<&'a Instance>,
    /// What else decides about a start.
    pub preconditions: &'a StartPreconditions,
}

/// What a machine's metadata says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether and how it is being deleted.
    pub deletion: Deletion,
    /// The desired state that a suspended machine returns to: [`DesiredState::remembered`] of its
    /// annotations.
    pub resume: Option<DesiredState>,
    /// The request to resume a guest whose disk failed: its annotation `vmlet.dev/unpause-request`.
    pub unpause: Option<String>,
}

impl Meta {
    /// Whether the guest of this instance is to be resumed once although its disk failed.
    fn unpauses(&self, uid: &str) -> bool {
        let of = self
            .unpause
            .as_deref()
            .and_then(|text| text.split_once('/'));
        of.is_some_and(|(instance, _)| instance == uid)
    }
}

/// Whether a machine is being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// It is not.
    #[default]
    No,
    /// With its instance.
    WithInstance,
    /// Alone: the finalizer `orphan` is there.
    Orphan,
}

/// What decides about a start besides the desired state, and what this process has sent but not
/// observed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPreconditions {
    /// A write whose effect the watch has not shown yet. Nothing is done meanwhile.
    pub pending: Pending,
    /// The disks.
    pub volumes: Volumes,
    /// Something else holds a start back, such as a power-on check; the text names it.
    pub held: Option<String>,
    /// Why the pod that chooses the node cannot start, as long as there is no instance.
    pub provisioner: Option<Unstartable>,
    /// The memory cannot be saved, or the node failed to do it: the guest runs on.
    pub save_failed: bool,
}

/// A write whose effect was not seen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// None.
    #[default]
    Nothing,
    /// The pod was created.
    Create,
    /// The pod was deleted.
    Delete,
}

/// The state of a machine's disks. Only a start waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volumes {
    /// All are there.
    #[default]
    Ready,
    /// A claim does not exist.
    ClaimNotFound,
    /// A data volume failed.
    DataVolumeFailed,
    /// The root disk or a data volume is being made.
    Provisioning,
    /// A claim is not bound.
    Unbound,
}

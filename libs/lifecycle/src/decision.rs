//! The decision of a pass.
//!
//! Invariant: `status` is written before `action` is begun, so that an intent outlives the process
//! that had it; every action may be repeated.
//! Failure: [`Failure`] is for the condition of that name.

use std::time::Duration;

use crds::VirtualMachineStatus;

use crate::strategy::DesiredState;

/// What a pass has to do, in this order: write `status`, do `action`, `release` the pod, return.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write first; equal to the old one when there is nothing to write.
    pub status: VirtualMachineStatus,
    /// What to do then.
    pub action: Action,
    /// The end of the instance is recorded in `status`: its finalizer may go once that is written.
    pub release: bool,
    /// Look again after this time even if nothing happens.
    pub requeue: Option<Duration>,
    /// Nothing can be done until the owner changes something.
    pub failure: Option<Failure>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Nothing now.
    Wait(Waiting),
    /// Create the pod. `restore`: from saved memory.
    Create {
        /// With standing vCPUs.
        paused: bool,
        /// From saved memory.
        restore: bool,
    },
    /// Delete the pod with that UID; when it is being deleted already, leave it less time.
    Delete {
        /// UID, to be given as a precondition.
        uid: String,
        /// Seconds that the guest has.
        grace_seconds: u32,
    },
    /// Request the guest to power off, by a task, and leave the pod alone.
    Shutdown {
        /// UID of the pod.
        uid: String,
        /// Seconds that the guest has.
        timeout_seconds: u32,
    },
    /// Save the memory and end the instance, by a task.
    Save {
        /// UID of the pod.
        uid: String,
    },
    /// Drop the saved memory, by a task; then `status.powerState` becomes `PoweredOff`.
    DiscardSaved,
    /// Stop the vCPUs, by a task.
    Pause {
        /// UID of the pod.
        uid: String,
    },
    /// Let the vCPUs run on, by a task.
    Unpause {
        /// UID of the pod.
        uid: String,
    },
    /// Change the specification.
    Patch(Patch),
    /// Take our finalizer off the machine: no instance is in the way.
    RemoveFinalizer,
}

/// A change of the specification that a request causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Replace the desired state (and remove the remembered one).
    DesiredState(DesiredState),
    /// Set `spec.paused`.
    Paused,
}

/// How an instance is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By deleting the pod with so many seconds of grace; 0 sends the guest no request.
    Delete(u32),
    /// Only by the guest, which has so many seconds.
    Guest(u32),
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The effect of a write that was sent.
    Pending,
    /// The end of a deletion.
    Deletion,
    /// The back-off; [`Decision::requeue`] has its length.
    BackOff,
    /// The disks.
    Volumes,
    /// What [`crate::StartPreconditions::held`] names.
    Held,
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One word.
    pub reason: &'static str,
    /// A sentence that states what to change.
    pub message: String,
}

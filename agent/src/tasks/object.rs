//! A task as the API server has it, reduced to what the agent needs.
//!
//! Invariant: identity is there and whole; what the rest lacks is a sentence, not an error.
//! Failure: an object without identity is none; it cannot come from an API server.

use crds::guard::Guarded;
use crds::{TaskState, VirtualMachineTask, VirtualMachineTaskSpec, VirtualMachineTaskStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::FIELD_MANAGER;

/// Unique for all time.
pub(super) type Uid = String;

/// One task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) uid: Uid,
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the machine that it was made for, if it names one.
    pub(super) machine: Option<String>,
    /// What to do, or why that cannot be read.
    pub(super) spec: Result<VirtualMachineTaskSpec, String>,
    pub(super) status: VirtualMachineTaskStatus,
    /// When it was made, by the API server's clock, in seconds since the epoch.
    pub(super) made: i64,
    /// It has a deletion timestamp.
    pub(super) going: bool,
    /// Its status is of an agent of ours.
    pub(super) ours: bool,
}

impl Object {
    /// What the API server sent.
    pub(super) fn from_api(sent: Guarded<VirtualMachineTask>) -> Option<Self> {
        match sent.0 {
            Ok(task) => Self::new(&task.metadata, Ok(task.spec), task.status),
            Err(invalid) => Self::new(&invalid.metadata, Err(invalid.error), None),
        }
    }

    fn new(
        metadata: &ObjectMeta,
        spec: Result<VirtualMachineTaskSpec, String>,
        status: Option<VirtualMachineTaskStatus>,
    ) -> Option<Self> {
        let status = status.unwrap_or_default();
        let made = metadata.creation_timestamp.as_ref();
        let managers = metadata.managed_fields.iter().flatten();
        let mut managers = managers.filter(|m| m.subresource.as_deref() == Some("status"));
        let ours = managers.any(|m| m.manager.as_deref() == Some(FIELD_MANAGER));
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.kind == "VirtualMachine");
        let owner = owner.map(|owner| owner.uid.clone());
        let labels = metadata.labels.as_ref();
        let label = || labels?.get(crds::names::VM_UID_LABEL).cloned();
        Some(Self {
            machine: owner.or_else(label),
            uid: metadata.uid.clone()?,
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            spec,
            status,
            made: made.map_or(i64::MIN, |at| at.0.as_second()),
            going: metadata.deletion_timestamp.is_some(),
            ours,
        })
    }

    /// Its cancellation was requested.
    pub(super) fn is_cancelled(&self) -> bool {
        self.going || self.spec.as_ref().is_ok_and(|spec| spec.cancel)
    }

    /// The kind of the task, for messages and metrics.
    pub(super) fn kind(&self) -> String {
        self.spec
            .as_ref()
            .map_or_else(|_| "Unknown".to_owned(), |spec| format!("{:?}", spec.kind))
    }
}

/// Whether a status is final.
pub(super) fn is_final(status: &VirtualMachineTaskStatus) -> bool {
    status.state.is_some_and(TaskState::is_final)
}

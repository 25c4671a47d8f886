//! `VirtualMachineTask`: one piece of work on one node, for one machine or one image.
//!
//! Invariant: the spec never changes except for `cancel`; a task runs at most once on its node.
//! Failure: `state: Error` with a message; `transient` says whether a new task may help.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, edit, immutable};

/// Work that the agent of a node does for a machine or an image. Internal: users read it, controllers write it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineTask",
    namespaced,
    derive = "PartialEq",
    status = "VirtualMachineTaskStatus",
    shortname = "vmtask",
    category = "vmlet-all",
    selectable = ".spec.nodeName",
    doc = "Work that the agent of a node does for a machine or an image. Internal: users read it, controllers write it.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmName"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Progress",
        type_ = "integer",
        json_path = ".status.progressPercent"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = immutable("nodeName"),
    validation = immutable("vmName"),
    validation = immutable("vmNamespace"),
    validation = immutable("vmUID"),
    validation = immutable("kind"),
    validation = immutable("image"),
    validation = immutable("imageURL"),
    validation = immutable("sizeBytes"),
    validation = immutable("linked"),
    validation = immutable("timeoutSeconds"),
    validation = immutable("discard"),
    validation = immutable("instanceUID"),
    validation = edit("self.cancel || !oldSelf.cancel", "what was cancelled stays cancelled"),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineTaskSpec {
    /// The node whose agent does it.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub node_name: String,
    /// Name of the machine; InspectImage: of the image.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub vm_name: String,
    /// Namespace of the machine; unset: that of the task. Nothing can be created in a namespace that is being deleted,
    /// so that tasks of its machines are in the controller's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub vm_namespace: Option<String>,
    /// UID of the machine; InspectImage: of the image.
    #[serde(rename = "vmUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub vm_uid: String,
    /// What to do.
    pub kind: TaskKind,
    /// Ask a task that is under way to stop.
    #[serde(default)]
    pub cancel: bool,
    /// Provision, InspectImage: the image's name as a pod would name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Provision, InspectImage: the URL that the name stands for, when it is made of the URL's hash.
    #[serde(rename = "imageURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = rules::WEB_URL))]
    pub image_url: Option<String>,
    /// Provision: virtual size in bytes; empty: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size_bytes: Option<i64>,
    /// Provision: an overlay on the image (true) or a full copy.
    #[serde(default)]
    pub linked: bool,
    /// GuestShutdown, GuestReboot: seconds to wait for the guest. PowerOff: seconds that it has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 604_800))]
    pub timeout_seconds: Option<u32>,
    /// Restore: drop the saved memory instead of resuming it.
    #[serde(default)]
    pub discard: bool,
    /// PowerOff: UID of the pod whose machine is meant; one that runs in another pod is left alone.
    #[serde(
        rename = "instanceUID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub instance_uid: Option<String>,
}

impl VirtualMachineTask {
    /// Its state; none: the agent has not seen it.
    #[must_use]
    pub fn state(&self) -> Option<TaskState> {
        self.status.as_ref().and_then(|status| status.state)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.state().is_some_and(TaskState::is_final)
    }

    /// Namespace of the machine.
    #[must_use]
    pub fn vm_namespace(&self) -> &str {
        let named = self.spec.vm_namespace.as_deref();
        named
            .or(self.metadata.namespace.as_deref())
            .unwrap_or_default()
    }
}

/// What a task does.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema,
)]
#[schemars(transform = crate::schema::without_description)]
pub enum TaskKind {
    /// Make the root disk from an image.
    Provision,
    /// Remove the root disk and saved memory.
    DeleteDisk,
    /// Ask the guest to power off.
    GuestShutdown,
    /// Cut the power, after the time that the guest has left.
    PowerOff,
    /// Ask the guest to reboot.
    GuestReboot,
    /// Press the reset button.
    Reset,
    /// Write the memory beside the disk and end the machine.
    Save,
    /// Let the next start resume the saved memory, or drop it.
    Restore,
    /// Stop the vCPUs.
    Pause,
    /// Let the vCPUs run on.
    Unpause,
    /// Flatten the root disk.
    Promote,
    /// Take a snapshot.
    Snapshot,
    /// Go back to a snapshot.
    Revert,
    /// Remove a snapshot.
    DeleteSnapshot,
    /// Read the first bytes of an image where it comes from.
    InspectImage,
}

/// How a task stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineTaskStatus {
    /// Empty: the agent has not seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Error: trying again with a new task may help.
    #[serde(default)]
    pub transient: bool,
    /// What failed and what to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// 0 to 100.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub progress_percent: u32,
    /// When the node began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended; the object is kept for 10 minutes after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// InspectImage: what the image is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<InspectedImage>,
}

/// What the first bytes of an image say.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InspectedImage {
    /// `qcow2` or `raw`.
    pub format: String,
    /// Size of the disk that a guest sees, in bytes; 0: unknown.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub virtual_bytes: i64,
    /// Size of the file, in bytes; 0: unknown.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub file_bytes: i64,
    /// Whether a raw disk has a boot sector or a partition table; always true for other formats.
    #[serde(default)]
    pub bootable: bool,
}

/// State of a task.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum TaskState {
    /// Waits for others on its node.
    Queued,
    /// Under way.
    Running,
    /// Done.
    Success,
    /// Failed.
    Error,
    /// Stopped on request before it was done.
    Cancelled,
}

impl TaskState {
    /// Whether nothing more will happen.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Error | Self::Cancelled)
    }
}

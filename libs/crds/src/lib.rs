//! The kinds of `vmlet.dev/v1alpha1`: types, schemas and validation rules.
//!
//! Invariant: these types are the only source of the schemas in `deploy/crds/`; a field that a user
//! may set is documented where it is declared.
//! Failure: what a schema or rule forbids is refused by the API server with the sentence given
//! here.
//!
//! # Example
//!
//! ```
//! use crds::{PowerState, VirtualMachine};
//!
//! let vm: VirtualMachine = serde_json::from_value(serde_json::json!({
//!     "apiVersion": "vmlet.dev/v1alpha1",
//!     "kind": "VirtualMachine",
//!     "metadata": { "name": "web" },
//!     "spec": { "className": "small", "imageName": "debian", "powerState": "PoweredOn" },
//! }))?;
//! assert_eq!(vm.spec.power_state, Some(PowerState::PoweredOn));
//! # Ok::<(), serde_json::Error>(())
//! ```

#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function, with its visibility"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column has a type of its own"
)]

pub mod backup;
mod class;
pub mod conditions;
mod group;
pub mod guard;
pub mod guest_facts;
mod image;
mod image_cache;
mod image_mapping;
mod image_update;
pub mod names;
mod node_config;
pub mod node_facts;
mod node_probe;
pub mod node_settings;
mod raw;
mod replica_set;
mod rules;
pub mod schema;
mod snapshot;
mod task;
pub mod text;
pub mod vm;
mod vm_backup;
mod vm_backup_schedule;
mod vmlet;

pub use class::{
    ClassHardware, ClassPolicies, ClassResources, ResourceList, VirtualMachineClass,
    VirtualMachineClassSpec,
};
pub use group::{
    BootTier, GroupMember, GroupMemberKind, GroupMemberStatus, GroupPlacement, GroupPowerChange,
    MemberPlacement, PlacementPolicy, VirtualMachineGroup, VirtualMachineGroupSpec,
    VirtualMachineGroupStatus, WhenUnsatisfiable,
};
pub use image::{
    ClusterVirtualMachineImage, ClusterVirtualMachineImageSpec, HttpSource, ImageDisk, ImageSource,
    IpAssurance, OciSource, PrePull, PrePullStatus, PvcSource, VirtualMachineImage,
    VirtualMachineImageSpec, VirtualMachineImageStatus,
};
pub use image_cache::{
    CacheLocation, CacheLocationStatus, CacheMetadata, CachedFile, CachedFileType, CachedImage,
    VirtualMachineImageCache, VirtualMachineImageCacheSpec, VirtualMachineImageCacheStatus,
};
pub use image_mapping::{
    ImageMapping, ImageMappingSpec, ImageMappingStatus, ImageTranslation, ImageTransport,
    SecretReference, TransportTls,
};
pub use image_update::{ImageUpdate, ImageUpdateStatus, ImageVersion, ImageVersionState};
pub use node_config::{
    AcceleratorSetting, CpuModelSetting, DownloadProtocol, LogLevel, NodeConfig, NodeConfigSpec,
    NodeConfigStatus, NodeSettings,
};
pub use node_probe::{GuestProbe, NodeProbe, ProbeOutcome};
pub use raw::{Raw, RawObject, RawRecord};
pub use replica_set::{
    ClaimRetention, ReplicaClaimTemplate, ReplicaClaimTemplateAccess, ReplicaClaimTemplateMode,
    ReplicaMetadata, ReplicaSelector, ReplicaTemplate, ReplicaUpdateStrategy, ReplicaUpdateType,
    RetentionPolicy, RollingUpdate, VirtualMachineReplicaSet, VirtualMachineReplicaSetSpec,
    VirtualMachineReplicaSetStatus,
};
pub use snapshot::{
    ClaimSnapshot, Quiesce, SnapshotReference, SnapshotReferenceType, SnapshotStorage,
    VirtualMachineSnapshot, VirtualMachineSnapshotSpec, VirtualMachineSnapshotStatus,
};
pub use task::{
    BackupRequest, DiskSource, InspectedImage, SnapshotRequest, TakenBackup, TakenSnapshot,
    TaskKind, TaskState, VirtualMachineTask, VirtualMachineTaskSpec, VirtualMachineTaskStatus,
};
pub use vm::{PowerState, RunStrategy, VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};
pub use vm_backup::{
    BackupDeletionPolicy, BackupMode, BackupPlace, BackupStorage, BackupType, BackupVerification,
    ParentBackup, VirtualMachineBackup, VirtualMachineBackupSpec, VirtualMachineBackupStatus,
};
pub use vm_backup_schedule::{
    BackupRetention, BackupSelector, VirtualMachineBackupSchedule,
    VirtualMachineBackupScheduleSpec, VirtualMachineBackupScheduleStatus,
};
pub use vmlet::{
    ComponentRef, ComponentVersion, Health, NodeProblem, RelatedObject, Vmlet, VmletNodes,
    VmletSpec, VmletStatus, VmletWatch,
};

/// The API group of every kind.
pub const GROUP: &str = "vmlet.dev";
/// The served and stored version.
pub const VERSION: &str = "v1alpha1";

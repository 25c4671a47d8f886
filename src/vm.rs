//! Containers, each of which is a virtual machine, or a process in that of its pod.
//!
//! Invariant: a sandbox has at most one machine that is not EXITED; EXITED is final.
//! Failure: a half-made, half-started or half-removed container is finished or undone by the next
//! request that meets it, or at start-up.

mod answers;
mod backup_claims;
pub mod console;
mod disks;
pub mod domain;
mod error;
pub mod exec;
pub mod file_disks;
mod firmware;
pub(crate) mod fuzzing;
mod hand_off;
mod host;
mod left_alone;
mod lifecycle;
mod missing;
mod model;
mod paths;
mod power;
pub mod process;
mod readiness;
mod recovery;
mod resources;
mod rows;
mod service;
mod settings;
mod shares;
pub mod state;
mod stops;
mod unsupported;
mod users;

pub use backup_claims::BackupClaimError;
pub use domain::xml;
pub use error::{Error, Result};
pub use file_disks::FileDisk;
pub use host::accelerator;
pub use host::equipment::{CgroupVersion, Equipment, Kernel, landlock_version};
pub use host::offer::Offer;
pub use lifecycle::Conflict;
pub use model::{
    BlockDisk, Container, ContainerConfig, ContainerMetadata, Device, Environment, Exit, ImageSpec,
    LinuxResources, Mount, Part, Spec, Unused,
};
pub use paths::Paths;
pub use power::HeldGuest;
pub use readiness::TcpProbe;
pub use resources::{DiskUsage, Facts, details, stats};
pub use service::{Containers, Parts};
pub use settings::{Landlock, Settings, ShareSettings, UnknownImage, Unsupported};
pub use shares::{Protocol, Share, ShareError, ShareUser};
pub use users::{Exhausted, Owner, UidRange};

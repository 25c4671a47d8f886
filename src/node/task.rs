//! The record of a task.
//!
//! ```text
//! Queued ──► Running ──► Success | Error | Cancelled
//!    └──────────────────────────────────────┘
//! ```
//!
//! Invariant: a state that is an end never changes; what a task is to do never changes.
//! Failure: none here.

mod backup;

use podspec::VmUid;
use serde::{Deserialize, Serialize};
use service::telemetry;

use crate::disk::{SnapshotUid, TakenSnapshot};
use crate::image_tls;
use crate::images::{self, Inspected};
use crate::metadata::Record;
use crate::vm::{self, TcpProbe};

pub use backup::{Backup, DoneBackup, StoredBackup};

/// UID of a VirtualMachineTask object; spelt as every UID.
pub type TaskUid = VmUid;

/// Longest message in bytes.
const MESSAGE: usize = 1024;

/// A task and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its name.
    pub uid: TaskUid,
    /// The machine that it is about; the object of the image that is checked or pulled.
    pub vm: VmUid,
    /// What is to be done.
    pub work: Work,
    /// Its state.
    pub state: State,
    /// Its cancellation was requested.
    pub cancelled: bool,
    /// How far it is, in percent.
    pub percent: u8,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// What an image is, once it was checked; none in rows of older versions.
    #[serde(default)]
    pub image: Option<Inspected>,
    /// The snapshot that was taken; none in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<TakenSnapshot>,
    /// The backup that was written or verified; none in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<DoneBackup>,
    /// Tasks of one machine run in this order. Clocks jump, so this is none; 0 in rows of older
    /// versions, which are in the order of `created_at`.
    #[serde(default)]
    pub order: u64,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Nanoseconds since the epoch; 0 until it ran.
    pub started_at: i64,
    /// Nanoseconds since the epoch; 0 until it ended.
    pub completed_at: i64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[strum(serialize_all = "snake_case")]
pub enum Work {
    /// Makes the disk.
    Provision {
        /// The image, as a pod would name it.
        image: String,
        /// The URL that this name refers to, when it is made of one; none in rows of older
        /// versions.
        #[serde(default)]
        url: Option<String>,
        /// Secret with certificates for the server; none in rows of older versions.
        #[serde(default)]
        tls_secret: Option<String>,
        /// Least size in bytes; 0 for the image's.
        size: u64,
        /// An overlay on the image, or a full copy.
        linked: bool,
        /// `namespace/name` of the machine.
        name: String,
    },
    /// Removes the disk.
    DeleteDisk,
    /// Requests the guest to power off.
    GuestShutdown {
        /// How long, in seconds.
        timeout: u32,
    },
    /// Ends the machine of a pod.
    PowerOff {
        /// How long the guest has left, in seconds.
        timeout: u32,
        /// UID of the pod.
        pod: String,
    },
    /// Requests the guest to reboot.
    GuestReboot {
        /// How long, in seconds; 0 in rows of older versions.
        #[serde(default)]
        timeout: u32,
    },
    /// Presses the reset button.
    Reset,
    /// Saves the memory and ends the machine.
    Save,
    /// Checks that there is saved memory, or discards it.
    Restore {
        /// Discards it.
        discard: bool,
    },
    /// Keeps the guest from running.
    Pause,
    /// Lets the guest run.
    Unpause,
    /// Reads the first bytes of an image where it comes from.
    InspectImage {
        /// The image, as a pod would name it.
        image: String,
        /// The URL that this name refers to, when it is made of one.
        #[serde(default)]
        url: Option<String>,
        /// Secret with certificates for the server; none in rows of older versions.
        #[serde(default)]
        tls_secret: Option<String>,
        /// URL of a file of checksums that has the digest of the image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum_url: Option<String>,
    },
    /// Pulls an image into the store.
    PullImage {
        /// The image, as a pod would name it.
        image: String,
        /// The URL that this name refers to, when it is made of one.
        url: Option<String>,
        /// Secret with certificates for the server; none in rows of older versions.
        #[serde(default)]
        tls_secret: Option<String>,
    },
    /// Makes the disk independent of its image.
    Promote {
        /// While the machine runs, by its emulator; false in rows of older versions.
        #[serde(default)]
        online: bool,
    },
    /// Takes a snapshot of the disk.
    Snapshot {
        /// UID of the VirtualMachineSnapshot object.
        snapshot: SnapshotUid,
        /// For how long the guest freezes its file systems at most, in seconds; 0: it does not.
        quiesce: u32,
        /// With the memory of the guest; false in rows of older versions.
        #[serde(default)]
        memory: bool,
    },
    /// Makes the disk what it was at a snapshot.
    Revert {
        /// UID of the VirtualMachineSnapshot object.
        snapshot: SnapshotUid,
        /// The next start resumes from the memory of the snapshot; false in rows of older versions.
        #[serde(default)]
        memory: bool,
    },
    /// Deletes a snapshot of the disk.
    DeleteSnapshot {
        /// UID of the VirtualMachineSnapshot object.
        snapshot: SnapshotUid,
    },
    /// Has the guest freeze its file systems until the task is cancelled.
    Freeze {
        /// UID of the VirtualMachineSnapshot object.
        snapshot: SnapshotUid,
        /// For how long at most, in seconds.
        seconds: u32,
    },
    /// Makes the disk as a copy of another machine's.
    CloneDisk {
        /// The disk that is copied.
        source: VmUid,
        /// UID of the VirtualMachineSnapshot object that is copied; none: the disk as it is.
        #[serde(default)]
        snapshot: Option<SnapshotUid>,
        /// Least size in bytes; 0 for the source's.
        size: u64,
        /// `namespace/name` of the machine.
        name: String,
    },
    /// Writes the disk, or what has changed of it, to a target.
    Backup(Backup),
    /// Compares a backup with its manifest.
    VerifyBackup {
        /// What it is.
        stored: StoredBackup,
    },
    /// Removes a backup.
    DeleteBackup {
        /// What it is.
        stored: StoredBackup,
    },
    /// Makes the disk from a backup.
    RestoreBackup {
        /// What it is; the name is that of the machine that gets the disk.
        stored: StoredBackup,
        /// The machine that was backed up.
        source: VmUid,
        /// Least size in bytes; 0 for the backup's.
        size: u64,
    },
    /// Checks that a machine can take the disk over.
    Adopt {
        /// `namespace/name` of the machine.
        name: String,
    },
    /// Sets the readiness probe of the machine of a pod.
    SetProbe {
        /// UID of the pod.
        pod: String,
        /// The probe; none ends it.
        probe: Option<TcpProbe>,
    },
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// It is being carried out.
    Running,
    /// It is done.
    Success,
    /// It failed.
    Error,
    /// It was stopped.
    Cancelled,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whether trying again may help.
    pub transient: bool,
    /// What failed and what to do, on one line.
    pub message: String,
}

/// Percents of a task in progress.
pub type Progress = tokio::sync::watch::Sender<u8>;

impl State {
    /// Whether it is an end.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Success | Self::Error | Self::Cancelled)
    }
}

impl Work {
    /// The name of the kind: the name of its field in the request.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Whether doing it twice is not the same as doing it once.
    pub const fn is_once(&self) -> bool {
        matches!(self, Self::Reset | Self::Freeze { .. })
    }

    /// Whether libvirt has a part in it.
    pub const fn needs_hypervisor(&self) -> bool {
        !matches!(
            self,
            Self::Provision { .. }
                | Self::Restore { .. }
                | Self::InspectImage { .. }
                | Self::PullImage { .. }
                | Self::SetProbe { .. }
                | Self::Adopt { .. }
                | Self::VerifyBackup { .. }
                | Self::RestoreBackup { .. }
                | Self::CloneDisk {
                    snapshot: Some(_),
                    ..
                }
        )
    }

    /// Whether what it has begun is undone when it fails, or is stopped.
    pub const fn makes_disk(&self) -> bool {
        matches!(
            self,
            Self::Provision { .. } | Self::CloneDisk { .. } | Self::RestoreBackup { .. }
        )
    }
}

impl Work {
    /// Whether it may take hours and affects no other task: others of its machine do not wait for
    /// it.
    pub const fn is_in_background(&self) -> bool {
        self.is_freeze()
            || self.is_of_backup()
            || matches!(self, Self::Promote { .. } | Self::DeleteSnapshot { .. })
    }

    /// Whether a snapshot is taken beside it, and any other task of its machine ends it.
    pub const fn is_freeze(&self) -> bool {
        matches!(self, Self::Freeze { .. })
    }

    /// Whether it is about a backup that is, or will be, in a target.
    const fn is_of_backup(&self) -> bool {
        matches!(
            self,
            Self::Backup(_) | Self::VerifyBackup { .. } | Self::DeleteBackup { .. }
        )
    }

    /// Whether another task of its machine that changes the disk ends it.
    pub const fn makes_way(&self) -> bool {
        self.is_in_background() && !matches!(self, Self::VerifyBackup { .. } | Self::Freeze { .. })
    }

    /// Whether it ends such a task of its machine: both change the disk, or freeze the guest.
    pub const fn needs_whole_disk(&self) -> bool {
        matches!(
            self,
            Self::Provision { .. }
                | Self::CloneDisk { .. }
                | Self::RestoreBackup { .. }
                | Self::DeleteDisk
                | Self::Save
                | Self::Restore { .. }
                | Self::Snapshot { .. }
                | Self::Revert { .. }
                | Self::DeleteSnapshot { .. }
                | Self::Freeze { .. }
        )
    }
}

impl Failure {
    /// A failure that says this sentence.
    pub fn new(message: &str, transient: bool) -> Self {
        let mut message = telemetry::bounded(message);
        message.truncate(message.floor_char_boundary(MESSAGE));
        Self { transient, message }
    }
}

impl From<vm::Error> for Failure {
    fn from(error: vm::Error) -> Self {
        let transient = error.is_transient() || matches!(error, vm::Error::NotRunning(_));
        Self::new(&crate::one_line(&error), transient)
    }
}

impl From<crate::disk::Error> for Failure {
    fn from(error: crate::disk::Error) -> Self {
        Self::new(&crate::one_line(&error), error.is_transient())
    }
}

impl From<crate::backup::Error> for Failure {
    fn from(error: crate::backup::Error) -> Self {
        Self::new(&crate::one_line(&error), error.is_transient())
    }
}

impl From<image_tls::Error> for Failure {
    /// The Secret may be created or changed.
    fn from(error: image_tls::Error) -> Self {
        Self::new(&error.to_string(), true)
    }
}

impl From<images::Error> for Failure {
    fn from(error: images::Error) -> Self {
        Self::new(&crate::one_line(&error), error.is_passing())
    }
}

impl Record for Task {
    type Key = TaskUid;
    const TABLE: &'static str = "node_tasks";

    fn key(&self) -> TaskUid {
        self.uid
    }
}

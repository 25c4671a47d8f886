//! The errors of operations on a machine's disk.
//!
//! Invariant: the variant names the step or the state; the cause is the source.
//! Failure: see the variants.

use std::path::PathBuf;

use podspec::{ContainerId, VmUid};

use super::layers::SnapshotUid;
use super::qemu_img;
use crate::{backup, files, images, metadata};

/// A request about a disk that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no disk.
    #[error(
        "virtual machine {0} has no disk on this node: it is made by a task before the first pod"
    )]
    Missing(VmUid),
    /// It is not complete yet, or not any more.
    #[error("the disk of virtual machine {vm} cannot be used: it is being {doing}")]
    Busy {
        /// The machine.
        vm: VmUid,
        /// `made`, `removed`, `copied`, or what it waits for.
        doing: &'static str,
    },
    /// It is to be exported, and a machine has it.
    #[error(
        "virtual machine {vm} runs (container {holder}), so its disk changes: stop the machine, then export the disk"
    )]
    Running {
        /// The machine.
        vm: VmUid,
        /// Who has it.
        holder: ContainerId,
    },
    /// It is to be exported, and memory that belongs to it is beside it.
    #[error(
        "virtual machine {0} is suspended, and its disk is incomplete without its memory: resume and stop the machine, \
         then export the disk"
    )]
    Suspended(VmUid),
    /// A container has it.
    #[error(
        "the disk of virtual machine {vm} is in use by container {holder}: one machine at a time \
         can run on it"
    )]
    InUse {
        /// The machine.
        vm: VmUid,
        /// Who has it.
        holder: ContainerId,
    },
    /// It was made from another image.
    #[error(
        "the disk of virtual machine {vm} was made from image {made}, and the pod asks for {wanted}"
    )]
    OtherImage {
        /// The machine.
        vm: VmUid,
        /// The image's name when the disk was made.
        made: String,
        /// What the pod reports.
        wanted: String,
    },
    /// It is of a machine of another name.
    #[error(
        "disk {vm} is that of machine {had}, and not of {wanted}: only a machine of the same namespace and name takes a \
         disk over"
    )]
    OtherMachine {
        /// The disk.
        vm: VmUid,
        /// `namespace/name` of its machine.
        had: String,
        /// The one that is to have it.
        wanted: String,
    },
    /// A machine is to be a clone of one of another namespace.
    #[error(
        "failed to clone disk {vm}: it is that of machine {had}, and {requested} is of another namespace; clone a machine \
         or a snapshot of the same namespace"
    )]
    OtherNamespace {
        /// The disk that was to be copied.
        vm: VmUid,
        /// `namespace/name` of its machine.
        had: String,
        /// The one that was to have the copy.
        requested: String,
    },
    /// The header of a disk that is to be cloned has another size than its record.
    #[error(
        "failed to clone disk {vm}: it has {has} bytes by its header, and {recorded} by its record; start the machine of the \
         disk and power it off, or take another snapshot then, and clone that"
    )]
    SizeDiffers {
        /// The disk that was to be copied.
        vm: VmUid,
        /// In its header, in bytes.
        has: u64,
        /// In its record, in bytes.
        recorded: u64,
    },
    /// A clone is to have less room than its source.
    #[error(
        "failed to clone a disk for virtual machine {vm}: its source has {least} bytes, and {requested} are requested; a \
         disk is never made smaller, so request at least the size of the source"
    )]
    SmallerThanSource {
        /// The machine that was to have the clone.
        vm: VmUid,
        /// Size of the source, in bytes.
        least: u64,
        /// Size that was requested, in bytes.
        requested: u64,
    },
    /// The record is there, the file is not.
    #[error("the disk of virtual machine {vm} is recorded, but {} is gone", path.display())]
    Lost {
        /// The machine.
        vm: VmUid,
        /// The file.
        path: PathBuf,
    },
    /// The file is there, the record is not.
    #[error(
        "a disk of virtual machine {vm} is at {} already, and the database does not know it: if the database was lost, \
         put it back; else move the file away, or have the disk deleted",
        path.display()
    )]
    Unrecorded {
        /// The machine.
        vm: VmUid,
        /// The file.
        path: PathBuf,
    },
    /// The image under it no longer exists.
    #[error("the image under the disk of virtual machine {0} is gone from disk")]
    ImageLost(VmUid),
    /// Saved memory is to be resumed, and there is none.
    #[error("no saved memory lies beside the disk of virtual machine {0}: it cannot be resumed")]
    NoMemory(VmUid),
    /// Saved memory is there, and the machine is to boot.
    #[error(
        "saved memory lies beside the disk of virtual machine {0}: resume it (vmlet.dev/restore) \
         or discard it first"
    )]
    Memory(VmUid),
    /// Saved memory is to be discarded, and its guest is just coming back from it.
    #[error(
        "the saved memory of virtual machine {vm} is being taken back by container {holder}: it can no longer be \
         discarded, stop the machine instead"
    )]
    Restoring {
        /// The machine.
        vm: VmUid,
        /// Who takes it.
        holder: ContainerId,
    },
    /// It is to be promoted.
    #[error(
        "the disk of virtual machine {0} has snapshots or backups, which are based on its image: delete them, then promote it"
    )]
    HasSnapshots(VmUid),
    /// It is to be promoted while its machine runs, and it could not be found out whether it has all of its image.
    #[error(
        "failed to promote the disk of virtual machine {vm} while it runs: what the disk has of its image cannot be read;          power the machine off, and promote the disk with promoteDisksMode Offline"
    )]
    NotProvable {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: qemu_img::Failed,
    },
    /// Memory that belongs to the disk as it is lies beside it, and a step of a snapshot would change the disk.
    #[error(
        "virtual machine {0} is suspended, and its memory fits its disk as it is only: resume it, or discard its \
         memory, then repeat the request"
    )]
    MemoryFits(VmUid),
    /// No snapshot has the UID.
    #[error("the disk of virtual machine {vm} has no snapshot {snapshot}")]
    NoSnapshot {
        /// The machine.
        vm: VmUid,
        /// The snapshot.
        snapshot: SnapshotUid,
    },
    /// A machine is to resume from the memory of a snapshot.
    #[error(
        "snapshot {snapshot} of virtual machine {vm} has no memory: revert to it without memory (annotation \
         vmlet.dev/revert-without-memory)"
    )]
    NoSnapshotMemory {
        /// The machine.
        vm: VmUid,
        /// The snapshot.
        snapshot: SnapshotUid,
    },
    /// There are as many as there may be.
    #[error(
        "the disk of virtual machine {0} has 32 snapshots, or layers that wait for a merge: delete snapshots"
    )]
    TooManySnapshots(VmUid),
    /// A snapshot is to be deleted, and the machine has its layer open.
    #[error(
        "virtual machine {vm} runs (container {holder}) on the layers that are to be merged: the snapshot is deleted when \
         the machine is off"
    )]
    LayersInUse {
        /// The machine.
        vm: VmUid,
        /// Who has them.
        holder: ContainerId,
    },
    /// A layer is to be merged or removed, and a reader has it.
    #[error(
        "a snapshot of virtual machine {0} is being copied: its layers are merged when the copy is complete"
    )]
    LayersRead(VmUid),
    /// A disk is to be made from a backup, and that cannot be used.
    #[error(transparent)]
    Backup(#[from] backup::Error),
    /// The disk has not the size that the backup says.
    #[error(
        "failed to read the backup for the disk of virtual machine {vm}: the disk in it has {has} bytes by its header, and \
         {recorded} by the manifest; use another backup"
    )]
    BackupSize {
        /// The machine that was to have the disk, or whose disk is exported.
        vm: VmUid,
        /// In its header, in bytes.
        has: u64,
        /// In the manifest, in bytes.
        recorded: u64,
    },
    /// The header of a disk that is to be backed up has another size than its record.
    #[error(
        "failed to back up the disk of virtual machine {vm}: it has {has} bytes by its header, and {recorded} by its record; \
         the next start of the machine makes them agree"
    )]
    HeaderDiffers {
        /// The machine.
        vm: VmUid,
        /// In its header, in bytes.
        has: u64,
        /// In its record, in bytes.
        recorded: u64,
    },
    /// A disk that is to be backed up says that its data are elsewhere.
    #[error(
        "failed to back up the disk of virtual machine {0}: its header names an external data file, which no program of \
         Vmlet writes; restore the machine from an earlier backup"
    )]
    DataFile(VmUid),
    /// The tables of a layer contradict each other.
    #[error(
        "failed to back up the disk of virtual machine {vm}: {reason}; restore the machine from an earlier backup, or export \
         the disk and repair the copy"
    )]
    Damaged {
        /// The machine.
        vm: VmUid,
        /// What was found.
        reason: String,
    },
    /// The image cannot be had.
    #[error("bring image {image}")]
    Image {
        /// Its name.
        image: String,
        /// The store's reason.
        #[source]
        source: images::Error,
    },
    /// The disk cannot be written.
    #[error(transparent)]
    Write(#[from] qemu_img::Failed),
    /// A file or directory cannot be made, renamed or removed.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// Its record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] metadata::Unreadable),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] metadata::Error),
}

/// Outcome of a request about a disk.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same request may succeed later without a change by a user.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::InUse { .. } | Self::Db(_) | Self::Files(_) => true,
            Self::Write(_) | Self::Restoring { .. } | Self::LayersInUse { .. } => true,
            Self::LayersRead(_) => true,
            // Another version may read it.
            Self::Unreadable(_) => true,
            Self::Image { source, .. } => is_passing(source),
            Self::Backup(error) => error.is_transient(),
            Self::HeaderDiffers { .. } => true,
            _ => false,
        }
    }
}

/// Whether a pull may succeed later.
const fn is_passing(error: &images::Error) -> bool {
    use images::Error as E;
    error.is_passing()
        || matches!(
            error,
            E::NoSpace { .. } | E::Crowded { .. } | E::Interrupted(_) | E::Stopping
        )
}

//! The errors of requests that change the layers of a machine's disk, or its memory beside them: snapshots,
//! merges, promotions, and the resumption from the memory of a snapshot.
//!
//! Invariant: the text says what the guest and the disk are left with, and what to do; the cause is the source.
//! Failure: see the variants.

use podspec::VmUid;

use super::quiesce::FreezeError;
use crate::disk::SnapshotUid;

/// A change of layers, or of the memory beside them, that failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The guest of a snapshot does not freeze its file systems.
    #[error(
        "failed to freeze the file systems in the guest of virtual machine {vm}: install and start \
         vmlet-guest or qemu-guest-agent in it, or take the snapshot without quiesce"
    )]
    NotQuiesced {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: FreezeError,
    },
    /// The guest of a snapshot does not say that it has thawed its file systems.
    #[error(
        "failed to thaw the file systems in the guest of virtual machine {vm}: the request is repeated; reset \
         the machine, or power it off and on, if its guest stays frozen"
    )]
    NotThawed {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The emulator does not write to a new layer.
    #[error(
        "failed to give virtual machine {vm} a new layer while it runs: if an earlier version of Vmlet started the \
         machine, or libvirtd was killed during its last snapshot, restart it by power off and on"
    )]
    NotSwitched {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// A snapshot is to have the memory of a machine, and that could not be saved.
    #[error(
        "failed to save the memory of virtual machine {vm} for a snapshot: there is no snapshot, and its guest is as before; \
         repeat the request, or take the snapshot without memory"
    )]
    MemoryNotSaved {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// A snapshot is to have the memory of a machine that is off.
    #[error(
        "virtual machine {0} is off, and has no memory for a snapshot: start it, or take the snapshot without memory"
    )]
    MemoryOfStopped(VmUid),
    /// A snapshot with memory is to be of a machine with disks that it is not of.
    #[error(
        "virtual machine {0} has claims, which a snapshot on the node does not contain and its memory would not fit later: \
         take the snapshot without memory"
    )]
    DisksNotSaved(VmUid),
    /// A machine is to resume from the memory of a snapshot, and its emulator does not take that.
    #[error(
        "failed to resume virtual machine {vm} from the memory of snapshot {snapshot}: if QEMU or the processor of the node is \
         another one by now, power the machine off, which discards the memory, then start it from the disk of the snapshot"
    )]
    NotResumed {
        /// The machine.
        vm: VmUid,
        /// The snapshot.
        snapshot: SnapshotUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The emulator has not merged the layers of a deleted snapshot.
    #[error(
        "failed to merge the layers of the disk of virtual machine {vm} while it runs: the deletion of the snapshot is \
         repeated, and needs no merge by the emulator once the machine is off"
    )]
    NotMerged {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The image under the disk of a machine that runs was not copied into it.
    #[error(
        "failed to copy the image under the disk of virtual machine {vm} into the disk while the machine runs; the disk \
         stays an overlay on it: repeat the request"
    )]
    NotPulled {
        /// The machine.
        vm: VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The device is not known to have all that was copied.
    #[error(
        "failed to find all of the image in the disk of virtual machine {0} on the device: its emulator has copied it \
         and not written all of it yet; repeat the request, or power the machine off before"
    )]
    NotProved(VmUid),
}

impl LayerError {
    /// Whether the same request may succeed later; nothing is decided by this failure.
    pub(in crate::vm) fn is_transient(&self) -> bool {
        match self {
            Self::NotSwitched { source, .. }
            | Self::MemoryNotSaved { source, .. }
            | Self::NotResumed { source, .. } => source.is_unavailable(),
            Self::NotQuiesced { source, .. } => source.is_transient(),
            Self::NotThawed { .. } | Self::NotMerged { .. } => true,
            Self::NotPulled { .. } | Self::NotProved(_) => true,
            Self::MemoryOfStopped(_) | Self::DisksNotSaved(_) => false,
        }
    }
}

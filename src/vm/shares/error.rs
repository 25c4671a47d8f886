//! The errors of directories and volumes that a guest mounts.
//!
//! Invariant: the text names the path, or the number and its bound; the cause is the source.
//! Failure: see the variants.

use std::io;

use podspec::VmUid;

/// Directories or volumes that do not reach the guest.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// Each directory takes a slot of the machine.
    #[error(
        "the pod mounts {found} directories, and a machine has at most {most} of them: use fewer \
         volumes, or vmlet.dev/shares: off"
    )]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many are possible.
        most: usize,
    },
    /// Each volume is a mount in the guest.
    #[error("the container mounts {found} volumes, and a process has at most {most} of them")]
    TooManyVolumes {
        /// How many there are.
        found: usize,
        /// How many are possible.
        most: usize,
    },
    /// The volumes of processes come and go, which 9p cannot.
    #[error(
        "annotation vmlet.dev/shares: 9p is for pods whose container is a machine: processes of a pod \
         machine have their volumes by virtiofs, or with vmlet.dev/shares: off none"
    )]
    NinePOfProcesses,
    /// The volumes of a process are not mounted.
    #[error("mount the volumes of the container")]
    Volumes {
        /// What the program or the kernel reported.
        #[source]
        source: io::Error,
    },
    /// A directory cannot be shared with the guest.
    #[error("share {path} with the guest")]
    Directory {
        /// Path in the guest.
        path: String,
        /// What the kernel or the process reported.
        #[source]
        source: io::Error,
    },
    /// A part of the machine's state is that of a file system on the node.
    #[error(
        "virtual machine {0} has directories of its pod, whose state cannot be saved: stop it, \
         or start it with vmlet.dev/shares: off"
    )]
    NotSaved(VmUid),
}

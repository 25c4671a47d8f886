//! The errors of files as disks.
//!
//! Invariant: files are named by their path in the pod. The variant states what to do; the cause
//! is the source.
//! Failure: see the variants.

use crate::images::FormatError;

/// A file of a volume that cannot be a disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The annotation names a path at which the container mounts nothing.
    #[error(
        "annotation vmlet.dev/file-disks names the mountPath {0}, at which the container has no volumeMount"
    )]
    NoMount(String),
    /// A device and a file have one path.
    #[error("the pod has two disks with the path {0}: a path is one disk's")]
    TwoDisks(String),
    /// The pod names two root disks.
    #[error(
        "the pod has a file as root disk and vmlet.dev/vm-disk, too: a machine has one root disk"
    )]
    TwoRoots,
    /// The pod may not write to it.
    #[error("the root disk is a file of a read-only volume: a machine needs to write")]
    ReadOnlyRoot,
    /// Containers as processes have one machine.
    #[error(
        "annotation vmlet.dev/file-disks is for pods whose container is a machine: the handler is \
         vmlet-process"
    )]
    Process,
    /// It is not there, and a machine with a read-only volume cannot make it.
    #[error("there is no file {0}, and its volume is read-only")]
    Missing(String),
    /// It is not there, and nothing states what is to be in it.
    #[error("there is no file {0} and the pod names no image: nothing can boot from it")]
    NothingToBoot(String),
    /// It is not there, and nothing states how large it is to be.
    #[error("there is no file {0}: with a size in vmlet.dev/file-disks it is made")]
    NoSize(String),
    /// A directory, a link, or a device.
    #[error("{0} is no plain file: links and devices of volumes are not followed")]
    NotAFile(String),
    /// A raw file that no disk can be.
    #[error("{file} has {bytes} bytes: a raw disk has a multiple of 512, and not none")]
    Sectors {
        /// The file.
        file: String,
        /// Its length.
        bytes: u64,
    },
    /// A qcow2 file that could reach others, or a file of another format.
    #[error("{file} cannot be used")]
    Format {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: FormatError,
    },
    /// No machine boots from a qcow2 file that is taken for a raw one.
    #[error(
        "{0} is a qcow2 file, and vmlet.dev/file-disks states raw as its format, which is the default: \
         state format: qcow2, or convert it with qemu-img convert -O raw"
    )]
    IsQcow2(String),
    /// The node uses raw files only.
    #[error(
        "{0} is a qcow2 file, and this node uses raw files of volumes as disks only: convert it \
         with qemu-img convert -O raw, or set vm.qcow2_file_disks = true on the node if all pods \
         that can write to the volume are trusted"
    )]
    Qcow2Off(String),
    /// The pod states a format that the file does not have.
    #[error("{0} is not qcow2, which vmlet.dev/file-disks states as its format")]
    NotQcow2(String),
    /// Another attempt works on it.
    #[error("{0} is being made by another container")]
    InUse(String),
    /// The pod was stopped meanwhile.
    #[error("the making of {0} was given up: its pod was stopped")]
    Cancelled(String),
    /// It cannot be written.
    #[error("write {file}: {reason}")]
    Write {
        /// The file.
        file: String,
        /// What `qemu-img` reported.
        reason: String,
    },
    /// It cannot be opened, made, read or named.
    #[error("{step} {file}")]
    Io {
        /// What was to be done.
        step: &'static str,
        /// The file.
        file: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The volume does not answer.
    #[error("cannot use {file}")]
    Foreign {
        /// The file.
        file: String,
        /// How long it was waited for.
        #[source]
        source: crate::foreign::Error,
    },
}

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

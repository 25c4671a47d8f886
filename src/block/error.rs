//! The errors of devices as disks.
//!
//! Invariant: the variant names the step or the state, and what to do about it; the cause is the
//! source.
//! Failure: see the variants.

use std::path::PathBuf;

use podspec::ContainerId;

use super::model::Number;
use crate::disk::qemu_img;
use crate::{files, foreign, metadata};

/// A request about a device that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root disk is to be something that is no block device.
    #[error(
        "{} is no block device: the root disk needs a claim with volumeMode Block", .0.display()
    )]
    NotBlock(PathBuf),
    /// The pod may not write to it.
    #[error("the root disk is a device that may only be read: a machine needs to write")]
    ReadOnly,
    /// The pod names two root disks.
    #[error(
        "the pod has a device as root disk and vmlet.dev/vm-disk, too: a machine has one root disk"
    )]
    TwoRoots,
    /// A container has it.
    #[error(
        "device {device} is in use by container {holder}: one machine at a time can have a device, \
         unless all of them only read it"
    )]
    InUse {
        /// The device.
        device: Number,
        /// Who has it.
        holder: ContainerId,
    },
    /// The kernel reports that another user of the node has it.
    #[error(
        "device {0} is busy: it is mounted on the node, part of another device, or an earlier copy \
         still writes to it"
    )]
    Busy(Number),
    /// The file system of our nodes has no devices.
    #[error("devices cannot be opened in {}: it is on a file system mounted with nodev", .0.display())]
    NoDev(PathBuf),
    /// The image does not fit.
    #[error(
        "device {device} is too small: it has {has} bytes, and the image needs {needs} ({image} \
         and 1 MiB for its marker)"
    )]
    TooSmall {
        /// The device.
        device: Number,
        /// Its size in bytes.
        has: u64,
        /// The least size in bytes that would do.
        needs: u64,
        /// Size of the disk in the image in bytes.
        image: u64,
    },
    /// An image is named, and something else is on the device.
    #[error(
        "device {0} holds data that no image of ours was written over before: name no image (vmlet.dev/none) \
         to boot from it as it is, or clear its first and last MiB to have the image written"
    )]
    Foreign(Number),
    /// No image is named, and nothing is on the device.
    #[error("device {0} is empty and the pod names no image: nothing can boot from it")]
    Blank(Number),
    /// No image is named, and the last copy did not get to its end.
    #[error(
        "device {0} holds a part of an image only: name the image, and the node writes it again"
    )]
    Incomplete(Number),
    /// A later version wrote the marker.
    #[error("device {0} was written by a later version: it is not touched")]
    Later(Number),
    /// It was taken back from a container that is to start.
    #[error("device {0} is not the container's any more: make a new one")]
    Lost(Number),
    /// The pod was stopped meanwhile.
    #[error("the copy to device {0} was given up: its pod was stopped")]
    Cancelled(Number),
    /// The pod was stopped before the device was known.
    #[error("the look at device {} was given up: its pod was stopped", .0.display())]
    Stopped(PathBuf),
    /// The image cannot be written.
    #[error(transparent)]
    Write(#[from] qemu_img::Failed),
    /// A device or file cannot be found, made, opened, read, written or removed.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The device does not answer.
    #[error(transparent)]
    Hung(#[from] foreign::Error),
    /// Its record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] metadata::Unreadable),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] metadata::Error),
}

/// Outcome of a request about a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! The errors of requests about a container.
//!
//! Invariant: the variant names the step; the cause is the source.
//! Failure: see the variants.

use std::path::PathBuf;

use podspec::{AnnotationError, ContainerId, SandboxId};

mod class;

use super::console;
use super::lifecycle::Conflict;
use super::power::LayerError;
use super::process::PodMachineError;
use super::shares::ShareError;
use super::state::Phase;
use crate::tasks::Aborted;
use crate::{files, images, metadata};

/// A request about a container that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox does not exist.
    #[error("no sandbox has the id {0}")]
    NoSandbox(SandboxId),
    /// The settings require a confinement that the kernel does not have.
    #[error(
        "vm.landlock is \"require\", and the kernel of this node has no Landlock: boot a kernel with it (5.13 or \
         later), with landlock in its parameter lsm=, or set vm.landlock to true"
    )]
    NoLandlock,
    /// The guest cannot boot by UEFI.
    #[error(transparent)]
    Firmware(#[from] super::firmware::Error),
    /// The container does not exist.
    #[error("no container has the id {0}")]
    NoContainer(ContainerId),
    /// The seccomp profile of a process cannot be applied.
    #[error(transparent)]
    Seccomp(#[from] super::process::SeccompError),
    /// The pod has no claim that can have backups.
    #[error(transparent)]
    BackupClaim(#[from] super::backup_claims::BackupClaimError),
    /// The layers of a disk, or the memory beside them, did not change as requested.
    #[error(transparent)]
    Layers(#[from] LayerError),
    /// Every user for machines has a container.
    #[error(transparent)]
    Users(#[from] super::users::Exhausted),
    /// A record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] metadata::Unreadable),
    /// The sandbox has no network (any more).
    #[error("sandbox {0} is not ready: make a new one")]
    SandboxNotReady(SandboxId),
    /// The pod has no place for the container.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The machine of a pod runs no processes.
    #[error(transparent)]
    PodMachine(#[from] PodMachineError),
    /// A volume of the pod does not answer.
    #[error(transparent)]
    Foreign(#[from] crate::foreign::Error),
    /// The pod was stopped during the copy of its image.
    #[error("the copy of the image was given up: sandbox {0} was stopped")]
    CopyCancelled(SandboxId),
    /// A stop was requested during the start.
    #[error("container {0} was stopped while it started")]
    Stopped(ContainerId),
    /// The container is in a phase that does not allow this.
    #[error("container {id} is {phase}: it cannot be {verb}")]
    Phase {
        /// The container.
        id: ContainerId,
        /// Where it is in its life.
        phase: Phase,
        /// What was to be done with it.
        verb: &'static str,
    },
    /// The container has no guest.
    #[error(
        "container {0} holds the place of a virtual machine that is being made, or has a claim for backups mounted: it has no \
         guest"
    )]
    Placeholder(ContainerId),
    /// An annotation or a resource limit makes no sense.
    #[error(transparent)]
    Machine(#[from] AnnotationError),
    /// Data would be lost.
    #[error(
        "{0}; for a disk of the guest, use a claim with volumeMode: Block in volumeDevices; for a pod that can do without, \
         set vm.unsupported = \"warn\" on the node"
    )]
    Unsupported(String),
    /// A directory or volume does not reach the guest.
    #[error(transparent)]
    Shares(#[from] ShareError),
    /// Memory is kept beside a disk of this node.
    #[error(
        "the root disk of virtual machine {0} is a claim or belongs to its pod, and memory can be \
         saved only beside a disk of the node: stop it instead"
    )]
    RootNotOfNode(podspec::VmUid),
    /// The socket for files of the emulator cannot be made.
    #[error("offer files to the emulator")]
    HandOff(#[source] fdpass::Error),
    /// The node's emulator has no such board.
    #[error(
        "this node's QEMU has no machine type {wanted}: ask for {newest} or an older one, or \
         update QEMU"
    )]
    MachineType {
        /// What the pod requests.
        wanted: podspec::MachineType,
        /// The newest that there is.
        newest: String,
    },
    /// The image is not on this node, or the image store failed.
    #[error(transparent)]
    Image(#[from] images::Error),
    /// The image that the root disk is based on no longer exists on disk.
    #[error("the image under the root disk of sandbox {0} is gone from disk: pull it again")]
    ImageLost(SandboxId),
    /// The root disk could not be made.
    #[error("make root disk {}: {reason}", path.display())]
    Disk {
        /// The disk.
        path: PathBuf,
        /// What `qemu-img` or the kernel reported.
        reason: String,
    },
    /// The disk of the virtual machine cannot be used like this.
    #[error(transparent)]
    VmDisk(#[from] crate::disk::Error),
    /// A device of the node cannot be a disk.
    #[error(transparent)]
    Block(#[from] crate::block::Error),
    /// A file of a volume cannot be used as a disk.
    #[error(transparent)]
    FileDisk(#[from] super::file_disks::Error),
    /// An object that guest data come from could not be had.
    #[error(transparent)]
    Source(#[from] crate::sources::Error),
    /// An object that guest data come from does not hold what is needed.
    #[error(transparent)]
    GuestData(#[from] podspec::GuestDataError),
    /// Files that kubelet has mounted cannot be given to the guest.
    #[error("the mount {path} does not reach the guest: {reason}")]
    Mount {
        /// Path in the container.
        path: String,
        /// What is wrong with it.
        reason: crate::sources::VolumeError,
    },
    /// The image with the guest's data cannot be made.
    #[error("make the seed image")]
    Seed(#[from] cloudinit_image::Error),
    /// Another domain has the machine's disk open, or goes by its UUID.
    #[error("libvirt domain {name} still runs as virtual machine {vm}: it must end first")]
    DomainLives {
        /// The machine.
        vm: podspec::VmUid,
        /// libvirt's name of the domain.
        name: String,
    },
    /// No machine runs for a virtual machine.
    #[error("virtual machine {0} does not run on this node")]
    NotRunning(podspec::VmUid),
    /// A paused guest cannot respond to requests.
    #[error("virtual machine {0} is paused: let it run first")]
    Paused(podspec::VmUid),
    /// QEMU has paused the guest.
    #[error("the guest is paused and cannot run ({0}): free space where its disks lie")]
    DiskFails(String),
    /// A file or directory of the container could not be made or removed.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The console could not be followed.
    #[error("follow the console")]
    Console(#[from] console::Error),
    /// No accelerator can run the machine.
    #[error("choose an accelerator")]
    Accelerator(#[from] super::host::accelerator::Error),
    /// The description of the domain could not be written.
    #[error("describe the domain")]
    Describe(#[source] super::domain::xml::Error),
    /// The tapmanager did not allow a start, or does not know the addresses of the guest.
    #[error("cannot use the network of sandbox {id}")]
    Network {
        /// The sandbox.
        id: SandboxId,
        /// The owner's reason.
        #[source]
        source: tapmanager::client::Error,
    },
    /// libvirt did not do its part.
    #[error("{step} the virtual machine")]
    Hypervisor {
        /// `define`, `start`, `stop` and so on.
        step: &'static str,
        /// libvirt's reason.
        #[source]
        source: libvirt::Error,
    },
    /// A command did not run in the machine.
    #[error(transparent)]
    Exec(#[from] super::exec::error::Error),
    /// The machine cannot be changed like this.
    #[error("{what} of container {id} cannot be changed: {reason}")]
    Resize {
        /// The container.
        id: ContainerId,
        /// What was to be changed.
        what: &'static str,
        /// Why not, and what to do.
        reason: String,
    },
    /// The machine did not end although it was killed.
    #[error("container {0} was killed, but its end is not confirmed yet: try again")]
    StillRunning(ContainerId),
    /// The row changed under the request.
    #[error(transparent)]
    Table(#[from] metadata::TableError),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] metadata::Error),
    /// The work ended early.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

/// Turns libvirt's error into ours, naming the step.
pub(super) fn hypervisor(step: &'static str) -> impl FnOnce(libvirt::Error) -> Error {
    move |source| Error::Hypervisor { step, source }
}

/// Outcome of a request about a container.
pub type Result<T, E = Error> = std::result::Result<T, E>;

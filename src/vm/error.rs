//! The errors of requests about a container.
//!
//! Invariant: the variant names the step; the cause is the source.
//! Failure: see the variants.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podspec::{AnnotationError, ContainerId, SandboxId};

use super::console;
use super::power::FreezeError;
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
    /// The container does not exist.
    #[error("no container has the id {0}")]
    NoContainer(ContainerId),
    /// The seccomp profile of a process cannot be applied.
    #[error(transparent)]
    Seccomp(#[from] super::process::SeccompError),
    /// The guest of a snapshot does not freeze its file systems.
    #[error(
        "failed to freeze the file systems in the guest of virtual machine {vm}: install and start \
         vmlet-guest or qemu-guest-agent in it, or take the snapshot without quiesce"
    )]
    NotQuiesced {
        /// The machine.
        vm: podspec::VmUid,
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
        vm: podspec::VmUid,
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
        vm: podspec::VmUid,
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
        vm: podspec::VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The same of a machine without any.
    #[error(
        "virtual machine {0} is off, and has no memory for a snapshot: start it, or take the snapshot without memory"
    )]
    MemoryOfStopped(podspec::VmUid),
    /// A snapshot with memory is to be of a machine with disks that it is not of.
    #[error(
        "virtual machine {0} has claims, which a snapshot on the node does not contain and its memory would not fit later: \
         take the snapshot without memory"
    )]
    DisksNotSaved(podspec::VmUid),
    /// A machine is to resume from the memory of a snapshot, and its emulator does not take that.
    #[error(
        "failed to resume virtual machine {vm} from the memory of snapshot {snapshot}: if QEMU or the processor of the node is \
         another one by now, power the machine off, which discards the memory, then start it from the disk of the snapshot"
    )]
    NotResumed {
        /// The machine.
        vm: podspec::VmUid,
        /// The snapshot.
        snapshot: crate::disk::SnapshotUid,
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
        vm: podspec::VmUid,
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
        vm: podspec::VmUid,
        /// Why not.
        #[source]
        source: libvirt::Error,
    },
    /// The device is not known to have all that was copied.
    #[error(
        "failed to find all of the image in the disk of virtual machine {0} on the device: its emulator has copied it \
         and not written all of it yet; repeat the request, or power the machine off before"
    )]
    NotProved(podspec::VmUid),
    /// Every user for machines has a container.
    #[error(transparent)]
    Users(#[from] super::users::Exhausted),
    /// A record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] metadata::Unreadable),
    /// The sandbox has no network (any more).
    #[error("sandbox {0} is not ready: make a new one")]
    SandboxNotReady(SandboxId),
    /// The sandbox has a machine already.
    #[error(
        "pod {pod} has a virtual machine already, container {name} ({phase}): a pod has one \
         container; several are processes of one machine in a pod with the RuntimeClass \
         vmlet-process"
    )]
    Live {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the container that is there.
        name: String,
        /// Its id.
        container: ContainerId,
        /// Where it is in its life.
        phase: Phase,
    },
    /// The sandbox had a machine of another name.
    #[error(
        "container {name} cannot boot the disk of pod {pod}, whose virtual machine is container \
         {machine}: a pod has one container and no init containers; several are processes of one \
         machine in a pod with the RuntimeClass vmlet-process"
    )]
    OtherName {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the container that is refused.
        name: String,
        /// The name of the container that was there first.
        machine: String,
    },
    /// Another container of the pod has the name.
    #[error(
        "container {name} of attempt {attempt} exists already, as {container}: remove it, or \
         request another attempt"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The attempt.
        attempt: u32,
        /// The container that has it.
        container: ContainerId,
    },
    /// All processes of a pod run in one machine, which boots one image.
    #[error(
        "image {image} is not the one that the machine of sandbox {sandbox} boots: containers of \
         a pod with the handler vmlet-process have the same image"
    )]
    OtherImage {
        /// The sandbox.
        sandbox: SandboxId,
        /// The image of the request.
        image: String,
    },
    /// The machine of a VirtualMachine object is the container of its pod.
    #[error(
        "sandbox {0} runs a VirtualMachine object, whose container is the machine: use the handler \
         vmlet, not vmlet-process"
    )]
    VmOfProcesses(SandboxId),
    /// The machine that a process needs does not run.
    #[error("the machine of sandbox {0} does not run: create the container again")]
    NoPodMachine(SandboxId),
    /// The guest boots no `vmlet-guest`.
    #[error(
        "vmlet-guest in the machine of sandbox {0} does not answer within {n} s: containers of a \
         pod with the handler vmlet-process need it in the image", n = .1.as_secs()
    )]
    NoGuestAgent(SandboxId, Duration),
    /// The pod leaves the port of `vmlet-guest` out.
    #[error(
        "sandbox {0} has the annotation vmlet.dev/guest-agent: off, and vmlet-guest runs the \
         containers of a pod with the handler vmlet-process: remove the annotation"
    )]
    NoGuestPort(SandboxId),
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
        "container {0} holds the place of a virtual machine that is being made: it has no guest"
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
    /// Each directory takes a slot of the machine.
    #[error(
        "the pod mounts {found} directories, and a machine has at most {most} of them: use fewer \
         volumes, or vmlet.dev/shares: off"
    )]
    Shares {
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
    /// The volumes of a process are not mounted.
    #[error("mount the volumes of the container")]
    Volumes {
        /// What the program or the kernel reported.
        #[source]
        source: io::Error,
    },
    /// A directory cannot be shared with the guest.
    #[error("share {path} with the guest")]
    Share {
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
    SharesNotSaved(podspec::VmUid),
    /// Memory is kept beside a disk of this node.
    #[error(
        "the root disk of virtual machine {0} is a claim or belongs to its pod, and memory can be \
         saved only beside a disk of the node: stop it instead"
    )]
    RootNotOfNode(podspec::VmUid),
    /// The volumes of processes come and go, which 9p cannot.
    #[error(
        "annotation vmlet.dev/shares: 9p is for pods whose container is a machine: processes of a pod \
         machine have their volumes by virtiofs, or with vmlet.dev/shares: off none"
    )]
    NinePOfProcesses,
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
    /// The tapmanager did not allow the start.
    #[error("prepare the network of sandbox {id} for a start")]
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

impl Error {
    /// Whether the same request may succeed once a helper is back; nothing is decided by this
    /// failure.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Network { source, .. } => {
                !matches!(source, tapmanager::client::Error::Refused(_))
            }
            Self::Hypervisor { source, .. } | Self::NotSwitched { source, .. } => {
                source.is_unavailable()
            }
            Self::MemoryNotSaved { source, .. } | Self::NotResumed { source, .. } => {
                source.is_unavailable()
            }
            Self::NotQuiesced { source, .. } => source.is_transient(),
            Self::NotThawed { .. } | Self::NotMerged { .. } => true,
            Self::NotPulled { .. } | Self::NotProved(_) => true,
            Self::VmDisk(e) => e.is_transient(),
            Self::DomainLives { .. } | Self::Paused(_) | Self::DiskFails(_) => true,
            // Its sandbox may stay: a stop can fail.
            Self::Stopped(_) => true,
            Self::Db(_) | Self::Table(_) | Self::Aborted(_) => true,
            // Another version may read it.
            Self::Unreadable(_) => true,
            _ => false,
        }
    }

    /// Whether the cause is a file system of the node that takes no writes.
    pub fn is_unwritable(&self) -> bool {
        let first: Option<&(dyn std::error::Error + 'static)> = Some(self);
        let mut causes = std::iter::successors(first, |error| error.source());
        causes.any(|error| {
            let by_kernel = error.downcast_ref::<io::Error>();
            let of_images = error.downcast_ref::<Arc<io::Error>>();
            let by_sqlite = error.downcast_ref::<rusqlite::Error>();
            by_kernel.is_some_and(files::is_unwritable)
                || of_images.is_some_and(|error| files::is_unwritable(error))
                || by_sqlite.is_some_and(metadata::is_unwritable)
        })
    }
}

/// Turns libvirt's error into ours, naming the step.
pub(super) fn hypervisor(step: &'static str) -> impl FnOnce(libvirt::Error) -> Error {
    move |source| Error::Hypervisor { step, source }
}

/// Outcome of a request about a container.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use super::*;

    #[test]
    fn only_a_file_system_without_writes_is_unwritable() {
        let path = Path::new("/var/lib/vmlet/pods/x");
        let removal = |error: io::Error| files::failed("remove", path)(error);
        let of = |kind: ErrorKind| removal(kind.into());
        for kind in [ErrorKind::ReadOnlyFilesystem, ErrorKind::StorageFull] {
            assert!(Error::from(of(kind)).is_unwritable(), "{kind}");
            assert!(Error::from(crate::disk::Error::from(of(kind))).is_unwritable());
            assert!(Error::from(crate::block::Error::from(of(kind))).is_unwritable());
        }
        let failing = io::Error::from_raw_os_error(nix::libc::EIO);
        assert!(Error::from(removal(failing)).is_unwritable());
        assert!(!Error::from(of(ErrorKind::PermissionDenied)).is_unwritable());

        let code = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let database = |error| metadata::Error::Statement(code(error));
        let read_only = rusqlite::ffi::SQLITE_READONLY;
        let record = images::Error::Record(Arc::new(database(read_only)));
        assert!(Error::from(record).is_unwritable());
        assert!(Error::from(database(read_only)).is_unwritable());
        assert!(!Error::from(database(rusqlite::ffi::SQLITE_BUSY)).is_unwritable());
        assert!(!Error::NoSandbox(SandboxId::generate()).is_unwritable());
    }
}

//! The parts of a domain, before they become XML.
//!
//! Invariant: plain values that the service has already checked; the description decides nothing
//! that the pod may request, it only fixes what all our domains share.
//! Failure: none here; a text that XML cannot carry is refused where it is written.

use std::fmt;
use std::path::PathBuf;

use podspec::{MachineType, VmUid};
use uuid::Uuid;

pub mod xml;

use super::host::accelerator::Accelerator;
use super::users::Owner;
use crate::block::Extent;

/// Variable with the one-time token by which `vmwrapper` collects its descriptors.
///
/// The domain's XML shows it to all users who may read it: root, and users of libvirt's read-only
/// socket where there is one. It is worth one start, short-lived, and taken only from QEMU's user.
pub const START_TOKEN: &str = "VMLET_START_TOKEN";
/// Variable with the path of the hand-off socket.
pub const HANDOFF_SOCKET: &str = "VMLET_HANDOFF_SOCKET";
/// Variable with the path of the socket at which `vmwrapper` collects the disks that are files of
/// volumes, and the directories that the emulator serves.
pub const DISK_SOCKET: &str = "VMLET_DISK_SOCKET";
/// Variable with the path of the emulator that `vmwrapper` becomes.
pub const EMULATOR: &str = "VMLET_EMULATOR";

/// Variable with the path of the socket at which `vmwrapper` collects the files of the console.
pub const CONSOLE_SOCKET: &str = "VMLET_CONSOLE_SOCKET";

/// Variable with the directory of the layers of the root disk: the emulator may open those that are made
/// while it runs.
pub const LAYERS: &str = "VMLET_LAYERS";

/// libvirt's element for memory that the kernel merges with none.
pub const NO_SHARED_PAGES: &str = "nosharepages";

/// The emulator's name of the device that shows a guest its generation ID.
pub const VM_GENERATION_ID: &str = "vmgenid";

/// Variable with the most bytes of a file of the emulator.
pub const FILE_SIZE: &str = "VMLET_FILE_SIZE";

/// Variable that turns the confinement of `vmwrapper` by Landlock off, with the value `off`, or
/// requires it, with `require`.
pub const LANDLOCK: &str = "VMLET_LANDLOCK";

/// Everything that distinguishes one domain from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainSpec {
    /// libvirt's identity of the domain, and the guest's system UUID unless [`Self::system_uuid`]
    /// is set.
    pub uuid: Uuid,
    /// libvirt's name of the domain; part of file names, so no slash.
    pub name: String,
    /// The container that the domain is.
    pub container: String,
    /// The sandbox that it belongs to.
    pub sandbox: String,
    /// The installation that made it.
    pub installation: String,
    /// The virtual machine whose disk it has open.
    pub vm: Option<VmUid>,
    /// Name of the pod, for people.
    pub pod_name: String,
    /// Namespace of the pod, for people.
    pub pod_namespace: String,
    /// How the guest's instructions are run.
    pub accelerator: Accelerator,
    /// Most translated code that an emulator without hardware virtualisation keeps, in MiB.
    pub translations_mib: u64,
    /// The board.
    pub machine_type: MachineType,
    /// The firmware; a BIOS when `None`.
    pub uefi: Option<Uefi>,
    /// Virtual CPUs, memory, and room for more.
    pub room: Room,
    /// CPUs of the node that they and the emulator may use; all when empty.
    pub cpus: Vec<u32>,
    /// The CPU that the guest sees.
    pub cpu: CpuMode,
    /// The program that libvirt starts: `vmwrapper`.
    pub emulator: PathBuf,
    /// Environment of that program.
    pub environment: Vec<Variable>,
    /// The disk to boot from.
    pub root: Disk,
    /// Further disks, in the order in which the guest finds them.
    pub disks: Vec<Disk>,
    /// Serial port 0.
    pub console: Console,
    /// Where the emulator listens for libvirt's side of the QEMU guest agent, if there is a channel
    /// for it.
    pub guest_agent: Option<PathBuf>,
    /// Where the emulator listens for the host's side of `vmlet-guest`, if there is a port for it.
    pub guest_socket: Option<PathBuf>,
    /// SMBIOS system UUID, if it is not the domain's.
    pub system_uuid: Option<Uuid>,
    /// The kernel may merge pages of the guest with equal ones of other processes.
    pub mergeable: bool,
    /// VM generation ID, if the guest sees one.
    pub generation: Option<Uuid>,
    /// Directories that the guest mounts by virtiofs, in order.
    pub shares: Vec<Share>,
    /// User and group of the emulator and of all its files; libvirt's configured ones when `None`.
    pub owner: Option<Owner>,
}

/// The firmware of a machine that boots by UEFI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uefi {
    /// The program, which all machines read.
    pub code: PathBuf,
    /// What the guest and the firmware keep over restarts.
    pub store: PathBuf,
}

/// Virtual CPUs and memory of a machine, and room for more while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Virtual CPUs at the start, at least one.
    pub vcpus: u16,
    /// The most that can be plugged in; `None`: their number is fixed.
    pub max_vcpus: Option<u16>,
    /// Memory at the start, in MiB.
    pub memory_mib: u64,
    /// What the guest can get on top of that; `None`: its memory is fixed.
    pub spare: Option<Spare>,
}

/// Memory that a guest gets and gives back while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spare {
    /// The most, in MiB.
    pub most_mib: u64,
    /// What the guest is to use of it from the start, in MiB.
    pub requested_mib: u64,
    /// All memory that a resumed guest used when it was saved, in MiB; `None` for one that boots.
    pub used_mib: Option<u64>,
}

/// The CPU that the guest sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuMode {
    /// All that the accelerator can do.
    #[default]
    Default,
    /// The named model nearest to the host's. Software emulation has no such thing and does all it
    /// can.
    HostModel,
}

/// A variable in the environment of the emulator. Values do not appear in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value, which may be a token.
    pub value: String,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// What the guest sees it as.
    pub device: DiskDevice,
    /// Where its bytes are.
    pub source: DiskSource,
    /// How they are arranged.
    pub format: DiskFormat,
    /// Whether space that the guest discards is given back.
    pub discard: bool,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// What the guest sees as the disk's serial number, 20 characters of `[A-Za-z0-9_.+-]`.
    pub serial: Option<String>,
}

/// What a guest sees a disk as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskDevice {
    /// A virtio disk.
    #[default]
    Virtio,
    /// A CD-ROM on SATA, for which every operating system has a driver. At most one.
    CdRom,
}

/// A directory that a process beside the emulator serves by virtiofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// By which the guest mounts it.
    pub tag: String,
    /// Where the process listens.
    pub socket: PathBuf,
}

/// Where a disk's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSource {
    /// In a file.
    File(PathBuf),
    /// In a file that holds only the differences from a base image. The base is read as it is:
    /// libvirt neither probes it nor changes its owner, so QEMU's user must be able to read it.
    Overlay {
        /// The differences.
        path: PathBuf,
        /// The base image.
        base: PathBuf,
        /// How the base is arranged.
        base_format: DiskFormat,
    },
    /// In files each of which holds only the differences from the next one. No other machine has them,
    /// and libvirt hands them to QEMU's user.
    Layers {
        /// What the guest writes to.
        path: PathBuf,
        /// The files below it, the next one first.
        below: Vec<PathBuf>,
        /// The base image under the last one, as of an overlay.
        base: Option<(PathBuf, DiskFormat)>,
    },
    /// On a block device, past the node's cache.
    Block {
        /// The device.
        path: PathBuf,
        /// The part of it that is the disk; all of it when `None`.
        part: Option<Extent>,
    },
}

/// How a disk's bytes are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    /// QEMU's copy-on-write format.
    Qcow2,
    /// Byte by byte.
    Raw,
}

/// Serial port 0 as libvirt describes it: a socket to attach to, and a file that all output is appended
/// to. `vmwrapper` replaces both by files that the daemon has opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    /// Where QEMU listens; its user must be able to write to the directory.
    pub socket: PathBuf,
    /// The destination of the output.
    pub log: PathBuf,
}

impl DomainSpec {
    /// Names the pod, for people; one line.
    pub(super) fn title(&self) -> String {
        let title = format!("{}/{}", self.pod_namespace, self.pod_name);
        // libvirt takes no line breaks here.
        title.replace(|c: char| c.is_control(), " ")
    }
}

impl Variable {
    /// A variable.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=…", self.name)
    }
}

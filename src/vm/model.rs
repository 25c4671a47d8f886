//! The record of a container.
//!
//! Invariant: labels, annotations and metadata are kept byte for byte as the client gave them.
//! Of environment variables names are kept, never values: they may be secrets.
//! Failure: none here; validation happened where the request was decoded.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use podspec::{ContainerId, Instance, Machine, Role, SandboxId, VmUid};
use serde::{Deserialize, Serialize};
use service::boot_clock::Deadline;
use uuid::Uuid;

use super::state::Phase;
use crate::block::Number;
use crate::clock;
use crate::vm::file_disks::FileDisk;
use crate::vm::readiness::TcpProbe;
use crate::vm::shares::{Protocol, Share, ShareUser};

/// Exit code of a container that never ran, as containerd gives it.
pub(super) const NEVER_RAN: i32 = 128;

/// A container and where it is in its life.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// Where it is in its life.
    pub phase: Phase,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Nanoseconds since the epoch; 0 until it ran.
    pub started_at: i64,
    /// Nanoseconds since the epoch; 0 until it ended.
    pub finished_at: i64,
    /// When a stop in progress kills it.
    pub kill_at: Option<Deadline>,
    /// A client has paused its guest: only a request lets it run again.
    pub held: bool,
    /// The readiness probe that the node makes of it.
    pub probe: Option<TcpProbe>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Processes of the pod's cgroup that lack of memory had killed when the machine was started.
    pub oom_kills: i64,
    /// Resources after an update; see [`Self::resources`].
    pub updated: Option<LinuxResources>,
    /// Resources that are being put into force, or that a resumed machine is to get.
    pub wanted: Option<LinuxResources>,
    /// What was requested, and what was made of it.
    pub spec: Spec,
}

impl Container {
    /// A container that is being made now.
    pub fn new(id: ContainerId, sandbox: SandboxId, spec: Spec) -> Self {
        Self {
            id,
            sandbox,
            phase: Phase::Creating,
            created_at: clock::now(),
            started_at: 0,
            finished_at: 0,
            kill_at: None,
            held: false,
            probe: None,
            exit: None,
            oom_kills: 0,
            updated: None,
            wanted: None,
            spec,
        }
    }

    /// The resources in force.
    pub fn resources(&self) -> &LinuxResources {
        self.updated.as_ref().unwrap_or(&self.spec.config.resources)
    }

    /// The UUID of its domain. Containers of one virtual machine share it: what is done by it needs
    /// the machine's disk.
    pub fn domain(&self) -> Uuid {
        let own = self.spec.instance.domain();
        own.unwrap_or_else(|| self.id.domain())
    }

    /// The device that it boots from.
    pub fn root_block(&self) -> Option<&BlockDisk> {
        self.spec.blocks.iter().find(|disk| disk.is_root())
    }

    /// The file of a volume that it boots from.
    pub fn root_file(&self) -> Option<&FileDisk> {
        self.spec.file_disks.iter().find(|disk| disk.is_root())
    }

    /// Whether it is a machine. A container that only holds the place of one, or is a process of
    /// one, boots nothing and has no domain.
    pub fn boots(&self) -> bool {
        self.spec.instance.role == Role::Machine && !self.is_process()
    }

    /// Whether it is a process in the pod machine.
    pub const fn is_process(&self) -> bool {
        matches!(self.spec.part, Part::Process { .. })
    }

    /// Whether clients see it.
    pub const fn is_listed(&self) -> bool {
        self.phase.is_listed() && !matches!(self.spec.part, Part::PodMachine)
    }

    /// The virtual machine whose disk it boots from.
    pub const fn vm(&self) -> Option<VmUid> {
        self.spec.instance.vm
    }
}

/// What a container is in its pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The machine of the pod, or the place of one.
    #[default]
    Machine,
    /// The machine that the containers of the pod are processes of. Clients do not see it.
    PodMachine,
    /// A process in the pod machine.
    Process {
        /// The end of the first client's input is that of the process.
        stdin_once: bool,
        /// Linux's number of the signal that ends it.
        stop_signal: i32,
    },
}

/// The part of a container that never changes once it is CREATED.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// What the client requested.
    pub config: ContainerConfig,
    /// What it is in its pod.
    #[serde(default)]
    pub part: Part,
    /// The machine it describes.
    pub machine: Machine,
    /// Which virtual machine it is.
    #[serde(default)]
    pub instance: Instance,
    /// Devices that it has as disks, in the order of the request.
    #[serde(default)]
    pub blocks: Vec<BlockDisk>,
    /// Files of volumes that it has as disks, in the order of the annotation.
    #[serde(default)]
    pub file_disks: Vec<FileDisk>,
    /// Directories of the node that its guest mounts.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// Whether it finds a seed image beside its root disk.
    #[serde(default)]
    pub seed: bool,
    /// That image is a CD-ROM with the answer files of Windows Setup.
    #[serde(default)]
    pub sysprep: bool,
    /// Its guest boots by UEFI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uefi: bool,
    /// User that its machine runs as; `None`: QEMU's.
    #[serde(default)]
    pub user: Option<u32>,
    /// `sha256:…` of the image that its root disk is based on; empty when it has no disk.
    pub image_digest: String,
    /// Absolute path of the CRI log.
    pub log_path: PathBuf,
    /// What the pod requests and the guest does not get, in sentences.
    #[serde(default)]
    pub unsupported: Vec<String>,
}

impl Spec {
    /// The paths that the pod gave its disks, in the order in which the guest finds them.
    pub fn disk_paths(&self) -> Vec<&str> {
        disk_paths(&self.blocks, &self.file_disks)
    }

    /// The directories that the guest mounts by this protocol.
    pub fn shares_by(&self, protocol: Protocol) -> impl Iterator<Item = &Share> {
        let all = self.shares.iter();
        all.filter(move |share| share.protocol == protocol)
    }
}

/// The paths that a pod gave its devices and files, in the order in which the guest finds them.
pub(super) fn disk_paths<'a>(blocks: &'a [BlockDisk], files: &'a [FileDisk]) -> Vec<&'a str> {
    let blocks = blocks.iter().map(|disk| disk.path.as_str());
    blocks
        .chain(files.iter().map(|disk| disk.path.as_str()))
        .collect()
}

/// A device of the node that is a disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDisk {
    /// The device.
    pub device: Number,
    /// Path that the pod gave it; `/` is the root disk.
    pub path: String,
    /// Whether the guest may not write.
    pub read_only: bool,
}

impl BlockDisk {
    /// Whether the guest boots from it.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// 0 when the guest powered itself off, 137 when it was killed or died, 128 when it never
    /// started, 255 when the node was rebooted under it.
    pub code: i32,
    /// `Completed`, `Saved`, `Provisioned`, `Error`, `OOMKilled`, `StartError` or `Unknown`.
    pub reason: String,
    /// A sentence for people; empty for a power-off.
    pub message: String,
}

impl Exit {
    /// That of a container which never ran.
    pub(super) fn never_ran(message: String) -> Self {
        Self {
            code: NEVER_RAN,
            reason: "StartError".to_owned(),
            message,
        }
    }
}

/// What a client requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// Names of the container.
    pub metadata: ContainerMetadata,
    /// Image to boot.
    pub image: ImageSpec,
    /// Labels, as given.
    pub labels: BTreeMap<String, String>,
    /// Annotations, as given.
    pub annotations: BTreeMap<String, String>,
    /// Mounts, echoed in the status.
    pub mounts: Vec<Mount>,
    /// Devices of the node.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Path of the log below the sandbox's log directory; empty when not given.
    pub log_path: String,
    /// Resources, echoed in the status.
    pub resources: LinuxResources,
    /// Number of the CRI signal, echoed in the status; 0 when not given.
    pub stop_signal: i32,
    /// What a machine has no use for.
    #[serde(default)]
    pub unused: Unused,
    /// Who accesses the directories that the guest mounts.
    #[serde(default)]
    pub share_user: ShareUser,
    /// Environment variables, until they are put where they are used: never in a record.
    #[serde(skip)]
    pub environment: Environment,
}

/// Environment variables, which may be secrets. Debug output shows their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(pub Vec<(String, Vec<u8>)>);

impl Environment {
    /// Whether a shell can have a variable of this name.
    pub fn is_name(name: &str) -> bool {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

/// Parts of a request that are noticed and of which no value is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// Names of environment variables that are not about Services.
    pub variables: Vec<String>,
    /// Whether there is a command, an argument or a working directory.
    pub command: bool,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Fields of the security context that only a process of the node can have.
    #[serde(default)]
    pub security: Vec<String>,
}

/// Names of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMetadata {
    /// Name within the pod.
    pub name: String,
    /// How often the container was created before.
    pub attempt: u32,
}

/// The image of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// Name, digest or id.
    pub image: String,
    /// The text of the pod's specification.
    pub user_specified_image: String,
    /// Annotations, as given.
    pub annotations: BTreeMap<String, String>,
    /// RuntimeClass handler, as given.
    pub runtime_handler: String,
}

impl ImageSpec {
    /// How the pod names the image; of a client that does not say it, what it requests.
    pub fn text(&self) -> &str {
        match self.user_specified_image.as_str() {
            "" => &self.image,
            text => text,
        }
    }
}

/// A mount of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path in the guest.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Whether the guest may not write.
    pub readonly: bool,
    /// Whether SELinux relabelling was requested.
    pub selinux_relabel: bool,
    /// Number of the CRI propagation mode.
    pub propagation: i32,
    /// Whether mounts below are read-only too.
    pub recursive_read_only: bool,
}

impl Mount {
    /// Whether its files may be given to a guest: it is read-only, and not there for the daemon.
    pub fn is_of_the_guest(&self) -> bool {
        self.readonly && !podspec::Source::is_mount_path(&self.container_path)
    }

    /// How many directories its path has: a mount comes after those above it.
    pub fn depth(&self) -> usize {
        Path::new(&self.container_path).components().count()
    }
}

/// A device of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path in the guest; `/` is the root disk.
    pub container_path: String,
    /// Path on the node, which may be a symbolic link.
    pub host_path: String,
    /// Letters of `rwm`, as given.
    pub permissions: String,
}

/// CRI's Linux resources; 0 is "not given".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxResources {
    /// CPU period in microseconds.
    pub cpu_period: i64,
    /// CPU quota in microseconds.
    pub cpu_quota: i64,
    /// CPU shares.
    pub cpu_shares: i64,
    /// Memory limit in bytes.
    pub memory_limit_in_bytes: i64,
    /// OOM score adjustment.
    pub oom_score_adj: i64,
    /// CPUs, as a list such as `0-3,7`.
    pub cpuset_cpus: String,
    /// Memory nodes, as a list.
    pub cpuset_mems: String,
    /// Huge pages: page size and limit in bytes.
    pub hugepage_limits: Vec<(String, u64)>,
    /// cgroup v2 files and values.
    pub unified: BTreeMap<String, String>,
    /// Memory and swap limit in bytes.
    pub memory_swap_limit_in_bytes: i64,
}

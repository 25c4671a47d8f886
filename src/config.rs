//! The daemon's settings.
//!
//! Invariant: a [`Config`] that was checked is complete and valid; nothing outside this module
//! reads the environment or depends on the source of a value.
//! Failure: a sentence that names the keys.

mod addresses;
mod backup;
mod check;
mod images;
mod landlock;
mod shares;
mod tracing;
mod translation;
mod value;

use std::net::SocketAddr;

use podspec::{Mib, Vcpus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::admin_http::Endpoint;
use service::settings::{Problem, Settings, Timespan};
use service::telemetry::Log;

pub use addresses::{AddressRange, PrivateAddresses, RawData};
pub use backup::{Backup, BackupBucket, BackupPlace, BackupTarget, BucketStyle, is_target_name};
pub use images::Images;
pub use landlock::Landlock;
pub use shares::Shares;
pub use tracing::{CollectorUrl, Tracing};
pub use translation::{Pattern, Translation};
pub use value::{
    AbsolutePath, Accelerator, CgroupDriver, ConvertedFormat, Count, CpuModel, Cpus, Memory,
    OptionalPath, Protocol, Size, Text, UnknownId, Unsupported,
};

/// Settings of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Unix socket of the CRI server. Only root and the user of the daemon can connect.
    pub listen: AbsolutePath,
    /// Directory of the database, images, disks and console files.
    pub state_dir: AbsolutePath,
    /// File that contains the boot ID of the node. After a reboot, the daemon treats all recorded
    /// machines and networks as gone. Only tests need a file other than the one of the kernel.
    pub boot_id_file: AbsolutePath,
    /// Metrics.
    pub metrics: Metrics,
    /// Log output of the daemon on standard error.
    pub log: Log,
    /// Export of traces by OpenTelemetry.
    pub tracing: Tracing,
    /// The CRI server.
    pub cri: Cri,
    /// The server of `kubectl exec`, `attach` and `port-forward`.
    pub streaming: Streaming,
    /// The hypervisor.
    pub libvirt: Libvirt,
    /// The node API, which the agent on the node uses.
    pub node: Node,
    /// The pod network.
    pub network: Network,
    /// Virtual machines.
    pub vm: Vm,
    /// Shared directories.
    pub shares: Shares,
    /// The image store.
    pub images: Images,
    /// Backups of disks.
    pub backup: Backup,
    /// Shutdown of the daemon.
    pub shutdown: Shutdown,
}

/// Metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Where `/metrics` is served: a loopback address with a port, or the path of a Unix socket for
    /// root and the user of the daemon; not served if unset.
    pub listen: Option<Endpoint>,
}

/// The CRI server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cri {
    /// cgroup driver that the daemon reports to kubelet: `systemd`, `cgroupfs`, or `auto`, which is
    /// `systemd` on nodes that run it, as seen in `shares.host_root`. It must match the cgroup driver of the other runtime on the
    /// node.
    pub cgroup_driver: CgroupDriver,
    /// Mount point of the cgroup file system. The daemon reads the resource usage of pods there and
    /// writes nothing.
    pub cgroup_root: AbsolutePath,
}

/// The server of `kubectl exec`, `attach` and `port-forward`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Streaming {
    /// Address and port to which kubelet connects for a session; port 0 is any free port. kubelet
    /// runs on the same node: keep a loopback address. Any other needs TLS.
    pub listen: SocketAddr,
    /// Certificate of the server in PEM, followed by those of its authorities; its names have the
    /// address of `listen`. It makes sessions use TLS. A new one serves the
    /// sessions after it, without a restart.
    pub tls_cert: OptionalPath,
    /// Private key of the certificate in PEM.
    pub tls_key: OptionalPath,
}

/// The hypervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Libvirt {
    /// libvirt connection URI.
    pub uri: Text,
    /// Timeout of a call to libvirt, from 1s to 24h. It begins when the call is made: the wait for
    /// earlier calls does not count.
    pub call_timeout: Timespan,
    /// Timeout for libvirt to start an emulator, from 1s to 24h. A call waits at most twice this
    /// time for earlier calls to end.
    pub start_timeout: Timespan,
    /// Concurrent calls to libvirt for each of several kinds (starts, kills, looks at a machine,
    /// requests to emulators, guest agents and so on; half as many save or restore memory); further
    /// calls of the kind wait. Set `max_workers` in `libvirtd.conf` to at least eleven times
    /// this value and three: with fewer workers, machines that hang delay others.
    pub parallel_calls: Count,
}

/// The node API, which the agent on the node uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Unix socket of the node API. The agent mounts its directory, which should contain no other
    /// socket.
    pub endpoint: AbsolutePath,
    /// User ID of the agent. The socket belongs to this user; only this user, root and the user of
    /// the daemon can connect. `0`: the socket belongs to the user of the daemon.
    pub agent_uid: u32,
    /// Disks of virtual machines that are created concurrently; further disks wait.
    pub parallel_provisions: Count,
    /// Disks of virtual machines that are promoted concurrently, that is, made independent of their
    /// images; further disks wait.
    pub parallel_promotions: Count,
    /// How much of its image a machine that is promoted while it runs copies into its disk in a second, at most; 0: as
    /// much as it can.
    pub promotion_rate: Size,
}

/// The pod network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Control socket of `vmlet-tapmanager`.
    pub tapmanager_socket: AbsolutePath,
    /// Socket from which `vmwrapper` fetches tap devices.
    pub handoff_socket: AbsolutePath,
    /// Timeout for the setup or teardown of a pod's network, including CNI plugins, from 1s to 24h.
    pub timeout: Timespan,
}

/// Virtual machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vm {
    /// How guests are executed: `kvm`, `tcg` (software emulation), or `auto`, which is `kvm` if a
    /// guest runs with it.
    pub accelerator: Accelerator,
    /// Path of QEMU.
    pub emulator: AbsolutePath,
    /// Program that libvirt starts instead of QEMU. It fetches tap devices and then executes QEMU.
    pub wrapper: AbsolutePath,
    /// Agent for guests, which the daemon puts on the seed images of pods with cloud-init data.
    pub guest_agent: AbsolutePath,
    /// Directory of QEMU's descriptors of firmware. The first one of UEFI by its name that fits the
    /// board q35 without Secure Boot is that of machines that boot by UEFI; a machine that has a variable store
    /// gets the first one whose store is as long as its own.
    pub firmware: AbsolutePath,
    /// User that runs QEMU; must match the libvirt setup.
    pub user: Text,
    /// First of the user IDs that machines run as, each as one of its own; no account may have one
    /// of them.
    pub first_uid: u32,
    /// Number of these user IDs, which limits the number of containers. 0: all machines run as
    /// `user`, and a QEMU process that its guest has compromised reaches the disks of all.
    pub uid_count: u32,
    /// Whether `vmwrapper` confines each QEMU process to the files of its machine by Landlock, where
    /// the kernel has it. `"require"`: no machine starts on a node whose kernel does not have it. Set
    /// `false` only if a machine does not start because QEMU needs a file that the rules do not
    /// permit.
    pub landlock: Landlock,
    /// Whether a file of a volume in the format qcow2 can be a disk (`vmlet.dev/file-disks`); raw
    /// files always can. The header of a qcow2 file can name other files of the node, and every pod
    /// that has the volume can change it while `qemu-img` or QEMU opens it. Set `true` only if all
    /// pods that can write to such volumes are trusted.
    pub qcow2_file_disks: bool,
    /// Virtual CPUs of a machine whose pod has neither a CPU limit nor an annotation.
    pub default_vcpus: Cpus,
    /// Memory of a machine whose pod has neither a memory limit nor an annotation.
    pub default_memory: Memory,
    /// CPU of a machine whose pod has no annotation for it, where guests run by KVM:
    /// `host-passthrough`, the CPU of the node, or `host-model`, what libvirt makes of it.
    pub cpu_model: CpuModel,
    /// Memory for QEMU itself in a pod that has a memory limit and no RuntimeClass, such as a pod
    /// for Virtlet. The daemon raises the limit of the pod's cgroup by this amount. For other pods,
    /// the overhead of the RuntimeClass does this and informs the scheduler.
    pub memory_overhead: Size,
    /// Maximum sum of the virtual sizes of all root disks in files on this node; a machine whose
    /// disk would exceed it is refused. Copies that share blocks count in full. No limit if unset.
    pub disk_budget: Option<Size>,
    /// How the daemon treats a pod with writable mounts that do not reach the guest, so that data
    /// written there would be lost: `refuse` the container, or `warn` with an event on the pod.
    /// Everything else that does not reach the guest is always reported with such an event.
    pub unsupported: Unsupported,
}

/// Shutdown of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// Maximum time for requests in progress to finish. Machines keep running.
    pub timeout: Timespan,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: AbsolutePath::usual("/run/vmlet/vmlet.sock"),
            state_dir: AbsolutePath::usual("/var/lib/vmlet"),
            boot_id_file: AbsolutePath::usual("/proc/sys/kernel/random/boot_id"),
            metrics: Metrics::default(),
            log: Log::default(),
            tracing: Tracing::default(),
            cri: Cri::default(),
            streaming: Streaming::default(),
            libvirt: Libvirt::default(),
            node: Node::default(),
            network: Network::default(),
            vm: Vm::default(),
            shares: Shares::default(),
            images: Images::default(),
            backup: Backup::default(),
            shutdown: Shutdown::default(),
        }
    }
}

impl Default for Cri {
    fn default() -> Self {
        Self {
            cgroup_driver: CgroupDriver::default(),
            cgroup_root: AbsolutePath::usual("/sys/fs/cgroup"),
        }
    }
}

impl Default for Streaming {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls_cert: OptionalPath::none(),
            tls_key: OptionalPath::none(),
        }
    }
}

impl Default for Libvirt {
    fn default() -> Self {
        Self {
            uri: Text::usual("qemu:///system"),
            call_timeout: Timespan::from_secs(30),
            start_timeout: Timespan::from_secs(120),
            parallel_calls: Count::usual(4),
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            endpoint: AbsolutePath::usual("/run/vmlet/node/node.sock"),
            agent_uid: service::listener::AGENT_UID,
            parallel_provisions: Count::usual(2),
            parallel_promotions: Count::usual(1),
            promotion_rate: Size::usual(64 << 20),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            tapmanager_socket: AbsolutePath::usual("/run/vmlet/tapmanager.sock"),
            handoff_socket: AbsolutePath::usual("/run/vmlet/handoff.sock"),
            timeout: Timespan::from_secs(90),
        }
    }
}

impl Default for Vm {
    fn default() -> Self {
        Self {
            accelerator: Accelerator::default(),
            emulator: AbsolutePath::usual("/usr/bin/qemu-system-x86_64"),
            wrapper: AbsolutePath::usual("/usr/libexec/vmlet/vmwrapper"),
            guest_agent: AbsolutePath::usual("/usr/libexec/vmlet/vmlet-guest"),
            firmware: AbsolutePath::usual("/usr/share/qemu/firmware"),
            user: Text::usual("libvirt-qemu"),
            first_uid: 1_900_000_000,
            uid_count: 65_536,
            landlock: Landlock::default(),
            qcow2_file_disks: false,
            default_vcpus: Cpus::usual(Vcpus::ONE),
            default_memory: Memory::usual(Mib::new(1024)),
            cpu_model: CpuModel::default(),
            memory_overhead: Size::usual(160 << 20),
            disk_budget: None,
            unsupported: Unsupported::default(),
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            timeout: Timespan::from_secs(10),
        }
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "vmlet";
    const PREFIX: &'static str = "VMLET";
    const FILE: &'static str = "/etc/vmlet/vmlet.toml";

    fn check(&self) -> Result<(), Problem> {
        check::check(self).map_err(Into::into)
    }

    // The variables of other programs begin with `VMLET_`, too.
    fn owns(variable: &str) -> bool {
        let sections = [
            "LOG",
            "TRACING",
            "METRICS",
            "CRI",
            "STREAMING",
            "LIBVIRT",
            "NODE",
            "NETWORK",
            "VM",
            "SHARES",
            "IMAGES",
            "BACKUP",
            "SHUTDOWN",
        ];
        let rest = variable
            .strip_prefix("VMLET_")
            .and_then(|rest| rest.split_once('_'));
        rest.is_some_and(|(section, _)| sections.contains(&section))
    }
}

#[cfg(test)]
mod tests;

//! The daemon's settings: defaults, then a file, then the environment, then flags.
//!
//! Invariant: a [`Config`] is complete and valid; nothing outside this module reads the environment or
//! knows where a value came from.
//! Failure: [`Error`] names the file with line and column, the variable or the flag, and what is allowed.

mod flags;
mod layer;
mod schema;
mod show;
mod translation;
mod value;

pub use flags::{Args, Command, ConfigCommand};
pub use layer::Source;
pub use schema::{Kind, Setting};
use service::settings;
pub use show::show;
pub use translation::{Pattern, Translation};
pub use value::{
    AbsolutePath, Accelerator, CgroupDriver, Count, Cpus, Memory, OptionalPath, Protocol, Seconds,
    Size, Text, UnknownId, Unsupported,
};

use service::telemetry::{Filter, Format};

use layer::{Effective, Layer};

/// Read when no file is named; it need not exist.
pub const DEFAULT_FILE: &str = "/etc/vmlet/vmlet.toml";

/// Longest path of a Unix socket that the kernel takes, in bytes.
const LONGEST_SOCKET: usize = 107;

schema::settings! {
    {
        /// Unix socket of the CRI server. Only root and the user of the daemon can connect.
        listen: AbsolutePath = "/run/vmlet/vmlet.sock";
        /// Directory of the database, images, disks and console files.
        state_dir: AbsolutePath = "/var/lib/vmlet";
        /// File that contains the boot ID of the node. After a reboot, the daemon treats all recorded machines and
        /// networks as gone. Only tests need a file other than the one of the kernel.
        boot_id_file: AbsolutePath = "/proc/sys/kernel/random/boot_id";
    }

    /// Log output of the daemon on standard error.
    log: Log, PartialLog {
        /// Minimum severity that is logged: `error`, `warn`, `info`, `debug` or `trace`; also per module, such as
        /// `info,daemon::vm=debug`. The transport libraries (`h2`, `hyper`, `tonic` and so on) stay at `info` unless
        /// they are named.
        level: Filter = "info";
        /// Log format: `text` for people, `json` for log collectors.
        format: Format = "text";
    }

    /// The CRI server.
    cri: Cri, PartialCri {
        /// cgroup driver that the daemon reports to kubelet: `systemd`, `cgroupfs`, or `auto`, which is `systemd` on
        /// nodes that run it. It must match the cgroup driver of the other runtime on the node.
        cgroup_driver: CgroupDriver = "auto";
        /// Mount point of the cgroup file system. The daemon reads the resource usage of pods there and writes
        /// nothing.
        cgroup_root: AbsolutePath = "/sys/fs/cgroup";
    }

    /// The hypervisor.
    libvirt: Libvirt, PartialLibvirt {
        /// libvirt connection URI.
        uri: Text = "qemu:///system";
        /// Timeout of a call to libvirt, in seconds.
        call_timeout_secs: Seconds = "30";
        /// Timeout for libvirt to start an emulator, in seconds.
        start_timeout_secs: Seconds = "120";
        /// Concurrent calls to libvirt for each of four kinds (life cycle, ends, agents that answer, other agents);
        /// further calls wait. Keep four times this value below `max_workers` of `libvirtd.conf`, which defaults to
        /// 20.
        parallel_calls: Count = "4";
    }

    /// The node API, which the agent on the node uses.
    node: Node, PartialNode {
        /// Unix socket of the node API. Only root and the user of the daemon can connect.
        endpoint: AbsolutePath = "/run/vmlet/node.sock";
        /// Disks of virtual machines that are created concurrently; further disks wait.
        parallel_provisions: Count = "2";
    }

    /// The pod network.
    network: Network, PartialNetwork {
        /// Control socket of `vmlet-tapmanager`.
        tapmanager_socket: AbsolutePath = "/run/vmlet/tapmanager.sock";
        /// Socket from which `vmwrapper` fetches tap devices.
        handoff_socket: AbsolutePath = "/run/vmlet/handoff.sock";
        /// Timeout for the setup or teardown of a pod's network, including CNI plugins, in seconds.
        timeout_secs: Seconds = "90";
    }

    /// Virtual machines.
    vm: Vm, PartialVm {
        /// How guests are executed: `kvm`, `tcg` (software emulation), or `auto`, which is `kvm` if a guest runs with
        /// it.
        accelerator: Accelerator = "auto";
        /// Path of QEMU.
        emulator: AbsolutePath = "/usr/bin/qemu-system-x86_64";
        /// Program that libvirt starts instead of QEMU. It fetches tap devices and then executes QEMU.
        wrapper: AbsolutePath = "/usr/libexec/vmlet/vmwrapper";
        /// User that runs QEMU; must match the libvirt setup.
        user: Text = "libvirt-qemu";
        /// Virtual CPUs of a machine whose pod has neither a CPU limit nor an annotation.
        default_vcpus: Cpus = "1";
        /// Memory of a machine whose pod has neither a memory limit nor an annotation.
        default_memory: Memory = "1Gi";
        /// Memory for QEMU itself in a pod that has a memory limit and no RuntimeClass, such as a pod for Virtlet.
        /// The daemon raises the limit of the pod's cgroup by this amount. For other pods, the overhead of the
        /// RuntimeClass does this and informs the scheduler.
        memory_overhead: Size = "160Mi";
        /// How the daemon treats a pod with writable mounts, which do not reach the guest, so that data written there
        /// would be lost: `refuse` the container, or `warn` with an event on the pod. Everything else that does not
        /// reach the guest is always reported with such an event.
        unsupported: Unsupported = "refuse";
    }

    /// The image store.
    images: Images, PartialImages {
        /// Scheme of image names that contain none and match no translation: `https` or `http`.
        protocol: Protocol = "https";
        /// Maximum size of a downloaded image file.
        max_download: Size = "64Gi";
        /// Maximum virtual size of a disk in an image.
        max_virtual_size: Size = "2Ti";
        /// Maximum time without data from a server during a download, in seconds.
        stall_timeout_secs: Seconds = "60";
        /// PEM file with certificate authorities that are trusted in addition to those of the system; empty for none.
        ca_file: OptionalPath = "";
        /// How the daemon treats a container whose image ID is not in this store because another runtime assigned it:
        /// `pull` the image by its name in the pod, or `refuse` the container.
        unknown_id: UnknownId = "pull";
        list {
            /// Image names that are translated to URLs. Each entry has a `url` and either `name`, for this name only,
            /// or `prefix`, for all names below it. An image that is specified by its URL has the name
            /// `host[:port]/path` here.
            translations: Translation;
        }
    }

    /// Shutdown of the daemon.
    shutdown: Shutdown, PartialShutdown {
        /// Maximum time for requests in progress to finish, in seconds. Machines keep running.
        timeout_secs: Seconds = "10";
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not valid.
    #[error(transparent)]
    File(#[from] settings::Error),
    /// A variable, a flag or a default has a bad value: its source, the value, and the allowed values.
    #[error("{0}")]
    Value(String),
    /// No layer gives a value.
    #[error("setting {0} has no value")]
    Missing(&'static str),
    /// Two settings do not go together, or one does not fit its use.
    #[error("{0}")]
    Conflict(String),
}

/// Outcome of loading.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Config {
    /// Checks what no single value shows.
    fn check(&self) -> Result<()> {
        let sockets = [
            ("listen", &self.listen),
            ("node.endpoint", &self.node.endpoint),
            ("network.tapmanager_socket", &self.network.tapmanager_socket),
            ("network.handoff_socket", &self.network.handoff_socket),
        ];
        for (i, (key, path)) in sockets.iter().enumerate() {
            if path.as_os_str().len() > LONGEST_SOCKET {
                let reason = format!("{key} is longer than {LONGEST_SOCKET} bytes: {path}");
                return Err(Error::Conflict(reason));
            }
            if let Some((other, _)) = sockets[..i].iter().find(|(_, p)| p == path) {
                let reason = format!("{other} and {key} are the same socket: {path}");
                return Err(Error::Conflict(reason));
            }
        }
        Ok(())
    }
}

/// Reads all layers; `variable` looks up an environment variable.
pub fn load(
    args: &Args,
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Result<Effective> {
    let effective = Effective::fold(&[
        Layer::defaults()?,
        Layer::file(args.config.as_deref())?,
        Layer::environment(variable)?,
        Layer::flags(&args.settings)?,
    ])?;
    effective.config.check()?;
    Ok(effective)
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

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
        /// Unix socket of the CRI server. Only the daemon's own user and root may connect.
        listen: AbsolutePath = "/run/vmlet/vmlet.sock";
        /// Directory of the database, images, disks and console files.
        state_dir: AbsolutePath = "/var/lib/vmlet";
        /// File that says which boot of the node this is. After another boot nothing of the rows' machines and networks
        /// is believed to be there. Only tests need another file than the kernel's.
        boot_id_file: AbsolutePath = "/proc/sys/kernel/random/boot_id";
    }

    /// What the daemon says on standard error.
    log: Log, PartialLog {
        /// Least severe level that is logged: `error`, `warn`, `info`, `debug` or `trace`; also per module,
        /// such as `info,daemon::vm=debug`. The libraries of the transport (`h2`, `hyper`, `tonic` and so on) stay at
        /// `info` unless they are named.
        level: Filter = "info";
        /// `text` for people, `json` for collectors.
        format: Format = "text";
    }

    /// The CRI server.
    cri: Cri, PartialCri {
        /// cgroup driver that kubelet is told: `systemd`, `cgroupfs`, or `auto`, which is `systemd` where that
        /// runs. It must be the one of the node's other runtime.
        cgroup_driver: CgroupDriver = "auto";
        /// Where cgroups are mounted. What pods use is read there; nothing is written.
        cgroup_root: AbsolutePath = "/sys/fs/cgroup";
    }

    /// The hypervisor.
    libvirt: Libvirt, PartialLibvirt {
        /// libvirt connection URI.
        uri: Text = "qemu:///system";
        /// Longest time for a call to libvirt, in seconds.
        call_timeout_secs: Seconds = "30";
        /// Longest time for libvirt to start an emulator, in seconds.
        start_timeout_secs: Seconds = "120";
        /// Calls to libvirt that run at the same time, of each of four kinds (life cycle, ends, agents that
        /// answer, other agents); others wait. Keep four times this below `max_workers` of `libvirtd.conf`,
        /// which is 20 unless set.
        parallel_calls: Count = "4";
    }

    /// The node API, for the program beside the daemon that talks to Kubernetes.
    node: Node, PartialNode {
        /// Unix socket of the node API. Only the daemon's own user and root may connect.
        endpoint: AbsolutePath = "/run/vmlet/node.sock";
        /// Disks of virtual machines that are made at the same time; others wait.
        parallel_provisions: Count = "2";
    }

    /// The pod network.
    network: Network, PartialNetwork {
        /// Control socket of `vmlet-tapmanager`.
        tapmanager_socket: AbsolutePath = "/run/vmlet/tapmanager.sock";
        /// Socket where `vmwrapper` fetches tap devices.
        handoff_socket: AbsolutePath = "/run/vmlet/handoff.sock";
        /// Longest time to make or take down a pod's network, CNI plugins included, in seconds.
        timeout_secs: Seconds = "90";
    }

    /// Virtual machines.
    vm: Vm, PartialVm {
        /// `kvm`, `tcg` (software emulation), or `auto`, which is `kvm` where a guest really runs under it.
        accelerator: Accelerator = "auto";
        /// QEMU.
        emulator: AbsolutePath = "/usr/bin/qemu-system-x86_64";
        /// Program that libvirt starts in QEMU's place; it fetches tap devices and becomes QEMU.
        wrapper: AbsolutePath = "/usr/libexec/vmlet/vmwrapper";
        /// User that QEMU runs as; the one of the libvirt set-up.
        user: Text = "libvirt-qemu";
        /// Virtual CPUs of a machine whose pod has neither a CPU limit nor an annotation.
        default_vcpus: Cpus = "1";
        /// Memory of a machine whose pod has neither a memory limit nor an annotation.
        default_memory: Memory = "1Gi";
        /// Memory for QEMU itself in a pod that has a memory limit and no RuntimeClass, as pods for Virtlet: the limit of the
        /// pod's cgroup is raised by so much. A RuntimeClass's overhead does that for other pods, and tells the scheduler.
        memory_overhead: Size = "160Mi";
        /// What becomes of a pod with writable mounts, which do not reach its guest, so that what is written there would be
        /// lost: `refuse` the container, or `warn` by an event of the pod. What else a guest does not get
        /// is always such an event.
        unsupported: Unsupported = "refuse";
    }

    /// The image store.
    images: Images, PartialImages {
        /// Scheme of image names that give none and match no translation: `https` or `http`.
        protocol: Protocol = "https";
        /// Largest image file that is downloaded.
        max_download: Size = "64Gi";
        /// Largest disk that an image may present to a guest.
        max_virtual_size: Size = "2Ti";
        /// Longest time in which a server may send nothing, in seconds.
        stall_timeout_secs: Seconds = "60";
        /// PEM file of certificate authorities that are trusted beside the system's; empty for none.
        ca_file: OptionalPath = "";
        /// What becomes of a container whose image has an id that is not in this store, because another runtime
        /// gave it: `pull` the image by the name in the pod, or `refuse`.
        unknown_id: UnknownId = "pull";
        list {
            /// Image names that stand for a URL. Each has either `name`, for this one name, or `prefix`, for
            /// all names below it, and a `url`. An image that is given by its URL has the name `host[:port]/path`
            /// here.
            translations: Translation;
        }
    }

    /// The end of the daemon.
    shutdown: Shutdown, PartialShutdown {
        /// Longest time that requests in progress are given to end, in seconds. Machines keep running.
        timeout_secs: Seconds = "10";
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not valid.
    #[error(transparent)]
    File(#[from] settings::Error),
    /// A variable, a flag or a default has a bad value: who said it, the value, what is allowed.
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

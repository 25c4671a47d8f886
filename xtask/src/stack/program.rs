//! The programs of a stack: their command lines, the socket that shows that they respond, and how
//! one process turns into them.
//!
//! Invariant: each runs in the stack's network namespace, but libvirtd in one without a network, and
//! in a mount namespace of its own. All carry the stack's directory in their environment, by which `down` recognises them.
//! Failure: a program that cannot be started leaves its reason in its log.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde::{Deserialize, Serialize};

use super::layout::{AGENT_UID, QEMU_USER};
use super::{Layout, cluster, config, libvirtd, netns, registry};
use crate::run;

/// Where distributions put the CNI plugins.
pub(crate) const CNI_BIN_DIR: &str = "/usr/lib/cni";

/// The variable that names the stack of a process.
pub(crate) const OWNER: &str = "VMLET_STACK_DIR";

/// How much free memory the daemon's allocator keeps, which a node sets, too.
const TRIM: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "131072");

/// Programs in Go collect their garbage less often than by default: processor time limits the
/// suite, memory does not.
pub(crate) const COLLECTOR: (&str, &str) = ("GOGC", "400");

/// One supervised program.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// Virtualization daemon.
    Libvirtd,
    /// Manager of the pod networks.
    #[value(alias = "tapmanager")]
    VmletTapmanager,
    /// CRI daemon.
    Vmlet,
    /// Database of the cluster.
    Etcd,
    /// API server of the cluster.
    KubeApiserver,
    /// Controllers of the cluster.
    KubeControllerManager,
    /// Scheduler of the cluster.
    KubeScheduler,
    /// Runtime of ordinary pods.
    Containerd,
    /// CRI proxy that kubelet uses as its runtime.
    #[value(alias = "criproxy")]
    VmletCriproxy,
    /// Node agent of the cluster.
    Kubelet,
    /// Proxy that makes Services reachable on a node.
    KubeProxy,
    /// Controller of virtual machines.
    #[value(alias = "controller")]
    VmletController,
    /// Agent that runs tasks on a node and reports its machines.
    #[value(alias = "agent")]
    VmletAgent,
    /// Registry of images without login.
    Registry,
    /// Registry of images with TLS and login.
    RegistryWithLogin,
}

impl Program {
    /// The name of its log and process id file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Libvirtd => "libvirtd",
            Self::VmletTapmanager => "vmlet-tapmanager",
            Self::Vmlet => "vmlet",
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Containerd => "containerd",
            Self::VmletCriproxy => "vmlet-criproxy",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::VmletController => "vmlet-controller",
            Self::VmletAgent => "vmlet-agent",
            Self::Registry => "registry",
            Self::RegistryWithLogin => "registry-with-login",
        }
    }

    /// How long it may take until it answers.
    pub(crate) fn timeout(self) -> Duration {
        match self {
            // On a machine that is busy with other things it takes a minute and more over its many
            // hooks.
            Self::KubeApiserver => Duration::from_secs(300),
            // The others take their time there, too.
            _ => Duration::from_secs(180),
        }
    }

    /// How long it may take to follow SIGTERM.
    pub(crate) fn grace(self) -> Duration {
        match self {
            // They wait for clients that keep their connections open.
            Self::Etcd | Self::KubeApiserver => Duration::from_secs(1),
            _ => Duration::from_secs(15),
        }
    }

    /// Whether it answers on its socket.
    pub(crate) fn answers(self, layout: &Layout) -> bool {
        match self {
            Self::Libvirtd => {
                UnixStream::connect(layout.path("libvirt/sock/libvirt-sock")).is_ok()
                    && run::output(run::command("virsh").args(["-c", &layout.libvirt_uri(), "uri"]))
                        .is_ok()
            }
            Self::VmletTapmanager => seqpacket_accepts(layout).is_ok(),
            Self::Vmlet => UnixStream::connect(layout.cri_socket()).is_ok(),
            Self::Registry => registry::answers(layout, registry::OPEN),
            Self::RegistryWithLogin => registry::answers(layout, registry::LOGIN),
            other => cluster::answers(layout, other),
        }
    }

    /// Turns this process into the program. Returns only if that fails.
    pub(crate) fn become_it(self, layout: &Layout) -> Result<()> {
        if self == Self::Libvirtd {
            libvirtd::leave_network()?;
            libvirtd::enter_mount_namespace(layout).context("libvirtd's mount namespace")?;
        } else {
            netns::enter(&layout.netns_path())?;
        }
        let mut command = self.command(layout)?;
        // Nothing that cargo or the environment of another stack has set.
        command
            .env_clear()
            .env("PATH", config::search_path(layout))
            .env(OWNER, layout.dir())
            .env("LANG", "C.UTF-8")
            .env(COLLECTOR.0, COLLECTOR.1);
        for name in ["HOME", "RUST_BACKTRACE", "RUST_LOG"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("VMLET_FAULT_DIR", layout.path("faults"))
            .current_dir("/");
        if self == Self::Vmlet {
            command.env(TRIM.0, TRIM.1);
        }
        if self == Self::VmletAgent {
            command.uid(AGENT_UID).gid(AGENT_UID);
        }
        let line = run::describe(&command);
        Err(anyhow!(command.exec()).context(format!("run {line}")))
    }

    fn command(self, layout: &Layout) -> Result<Command> {
        let command = match self {
            Self::Libvirtd => libvirtd::command(layout),
            Self::VmletTapmanager => {
                let mut command = run::command(layout.path("bin/vmlet-tapmanager"));
                command
                    .arg("--control-socket")
                    .arg(layout.path("run/tapmanager.sock"));
                command
                    .arg("--handoff-socket")
                    .arg(layout.path("run/handoff.sock"));
                command.arg("--state-dir").arg(layout.path("state/network"));
                command.arg("--netns-dir").arg(layout.path("netns"));
                command.arg("--cni-conf-dir").arg(layout.path("cni/conf"));
                command.arg("--cni-bin-dir").arg(CNI_BIN_DIR);
                // Plugins of a test.
                command.arg("--cni-bin-dir").arg(layout.path("cni/bin"));
                command.arg("--cni-cache-dir").arg(layout.path("cni/cache"));
                command
                    .arg("--console-dir")
                    .arg(layout.path("state/console"));
                command.arg("--boot-id-file").arg(layout.path("boot-id"));
                command.arg("--qemu-user").arg(QEMU_USER);
                command
            }
            Self::Vmlet => {
                let mut command = run::command(layout.path("bin/vmlet"));
                command.arg("--config").arg(layout.path("vmlet.toml"));
                command
            }
            Self::Registry => registry::command(layout, "open.yml"),
            Self::RegistryWithLogin => registry::command(layout, "login.yml"),
            other => cluster::command(layout, other)?,
        };
        Ok(command)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

fn seqpacket_accepts(layout: &Layout) -> Result<()> {
    let address = UnixAddr::new(&layout.path("run/tapmanager.sock"))?;
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    Ok(connect(socket.as_raw_fd(), &address)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::workspace;

    #[test]
    fn a_node_has_the_allocator_of_the_stacks() {
        let (name, value) = TRIM;
        for (file, line) in [
            (
                "deploy/systemd/vmlet.service",
                format!("Environment={name}={value}"),
            ),
            (
                "deploy/node/daemonset.yaml",
                format!("env: [{{name: {name}, value: \"{value}\"}}]"),
            ),
        ] {
            let text = fs::read_to_string(workspace::root().join(file)).unwrap();
            assert!(text.contains(&line), "{file} has no {line}");
        }
    }
}

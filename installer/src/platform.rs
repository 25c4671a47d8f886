//! What a node runs Kubernetes with, as data, and how it is found.
//!
//! Invariant: only files decide; a node that fits several platforms, or none, is not guessed at.
//! Failure: says what was found and which option to give.

use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::root::Root;

/// The name of a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Name {
    Kubeadm,
    K3s,
    Rke2,
    K0s,
    Microk8s,
}

/// Where kubelet of a platform has its runtime endpoint from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Endpoint {
    /// Files that kubeadm writes.
    Kubeadm,
    /// A folder of configurations that are merged by name, and the file there with the defaults.
    DropIn {
        folder: &'static str,
        defaults: &'static str,
    },
    /// A file with an argument on each line, and the folders behind its variables.
    Arguments {
        file: &'static str,
        variables: &'static [(&'static str, &'static str)],
    },
    /// Arguments in the command of the unit.
    Command,
}

/// What is known of a platform.
#[derive(Debug)]
pub(crate) struct Platform {
    pub(crate) name: Name,
    /// One of these is on each of its nodes.
    evidence: &'static [&'static str],
    /// The unit that runs kubelet is one of these.
    services: &'static [&'static str],
    pub(crate) endpoint: Endpoint,
    /// The socket of the runtime when no file names it.
    pub(crate) socket: &'static str,
    /// What the node pods of Vmlet have to mount, for people.
    pub(crate) kubelet_root: &'static str,
    pub(crate) cni: [&'static str; 2],
}

/// All platforms.
pub(crate) const PLATFORMS: [Platform; 5] = [
    Platform {
        name: Name::Kubeadm,
        evidence: &[
            "/var/lib/kubelet/kubeadm-flags.env",
            "/var/lib/kubelet/config.yaml",
        ],
        services: &["kubelet.service"],
        endpoint: Endpoint::Kubeadm,
        socket: "/run/containerd/containerd.sock",
        kubelet_root: "/var/lib/kubelet",
        cni: ["/etc/cni/net.d", "/opt/cni/bin"],
    },
    Platform {
        name: Name::K3s,
        evidence: &["/var/lib/rancher/k3s/agent"],
        services: &["k3s-agent.service", "k3s.service"],
        endpoint: Endpoint::DropIn {
            folder: "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
            defaults: "00-k3s-defaults.conf",
        },
        socket: "/run/k3s/containerd/containerd.sock",
        kubelet_root: "/var/lib/kubelet",
        cni: [
            "/var/lib/rancher/k3s/agent/etc/cni/net.d",
            "/var/lib/rancher/k3s/data/cni",
        ],
    },
    Platform {
        name: Name::Rke2,
        evidence: &["/var/lib/rancher/rke2/agent"],
        services: &["rke2-agent.service", "rke2-server.service"],
        endpoint: Endpoint::DropIn {
            folder: "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
            defaults: "00-rke2-defaults.conf",
        },
        socket: "/run/k3s/containerd/containerd.sock",
        kubelet_root: "/var/lib/kubelet",
        cni: ["/etc/cni/net.d", "/opt/cni/bin"],
    },
    Platform {
        name: Name::K0s,
        evidence: &["/var/lib/k0s/kubelet"],
        services: &["k0sworker.service", "k0scontroller.service"],
        endpoint: Endpoint::Command,
        socket: "/run/k0s/containerd.sock",
        kubelet_root: "/var/lib/k0s/kubelet",
        cni: ["/etc/cni/net.d", "/opt/cni/bin"],
    },
    Platform {
        name: Name::Microk8s,
        evidence: &["/var/snap/microk8s/current/args/kubelet"],
        services: &[
            "snap.microk8s.daemon-kubelite.service",
            "snap.microk8s.daemon-kubelet.service",
        ],
        endpoint: Endpoint::Arguments {
            file: "/var/snap/microk8s/current/args/kubelet",
            variables: &[
                ("${SNAP_COMMON}", "/var/snap/microk8s/common"),
                ("${SNAP_DATA}", "/var/snap/microk8s/current"),
            ],
        },
        socket: "/var/snap/microk8s/common/run/containerd.sock",
        kubelet_root: "/var/snap/microk8s/common/var/lib/kubelet",
        cni: [
            "/var/snap/microk8s/current/args/cni-network",
            "/var/snap/microk8s/current/opt/cni/bin",
        ],
    },
];

/// Where systemd finds units, in its order.
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// A platform, with the unit that runs kubelet on this node.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) platform: &'static Platform,
    pub(crate) service: String,
}

/// Finds the platform of a node, or checks the one that was named.
pub(crate) fn find(root: &Root, named: Option<Name>) -> Result<Found> {
    let mut candidates = Vec::new();
    for platform in &PLATFORMS {
        if is_there(root, platform)? {
            candidates.push(platform);
        }
    }
    if let Some(name) = named {
        candidates.retain(|platform| platform.name == name);
    }
    match (candidates.as_slice(), named) {
        ([platform], _) => Ok(Found {
            platform,
            service: service(root, platform)?,
        }),
        ([], Some(name)) => {
            let platform = by_name(name);
            bail!(
                "the node does not run {}: none of {} with a unit {} was found",
                title(name),
                platform.evidence.join(", "),
                platform.services.join(" or ")
            )
        }
        ([], None) => bail!(
            "failed to find out what runs kubelet: none of kubeadm, k3s, rke2, k0s and microk8s was found; \
             if the node's root is mounted elsewhere, give it with --root"
        ),
        (several, _) => {
            let names = several.iter().map(|platform| title(platform.name));
            let names: Vec<_> = names.collect();
            bail!(
                "files of several platforms were found: {}; give the one that runs with --platform",
                names.join(", ")
            )
        }
    }
}

/// The file of a unit.
pub(crate) fn unit_file(root: &Root, unit: &str) -> Result<Option<String>> {
    for folder in UNITS {
        if root.has_name(Path::new(folder), unit)? {
            return Ok(Some(format!("{folder}/{unit}")));
        }
    }
    Ok(None)
}

pub(crate) fn by_name(name: Name) -> &'static Platform {
    let [first, rest @ ..] = &PLATFORMS;
    let found = rest.iter().find(|platform| platform.name == name);
    found.unwrap_or(first)
}

/// A name as on the command line.
pub(crate) fn title(name: Name) -> String {
    format!("{name:?}").to_lowercase()
}

fn is_there(root: &Root, platform: &Platform) -> Result<bool> {
    let mut has_files = false;
    for path in platform.evidence {
        has_files |= root.exists(Path::new(path))?;
    }
    Ok(has_files && !units(root, platform)?.is_empty())
}

fn units(root: &Root, platform: &Platform) -> Result<Vec<&'static str>> {
    let mut units = Vec::new();
    for unit in platform.services {
        if unit_file(root, unit)?.is_some() {
            units.push(*unit);
        }
    }
    Ok(units)
}

/// The unit that runs kubelet: of several that are installed, the one that starts with the node.
fn service(root: &Root, platform: &Platform) -> Result<String> {
    let mut units = units(root, platform)?;
    if units.len() > 1 {
        let mut enabled = Vec::new();
        for unit in &units {
            let wants = Path::new("/etc/systemd/system/multi-user.target.wants");
            if root.has_name(wants, unit)? {
                enabled.push(*unit);
            }
        }
        if let [unit] = enabled.as_slice() {
            return Ok((*unit).to_owned());
        }
        bail!(
            "failed to find out which of {} runs kubelet: enable one of them, and disable the others",
            units.join(", ")
        );
    }
    Ok(units.pop().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;

//! A Kubernetes cluster of node stacks: the control plane on the first node, kubelet, containerd
//! and the CRI proxy on each.
//!
//! Invariant: every node has a network namespace, a mount namespace and a cgroup of its own;
//! nothing of a cluster is visible to another one.
//! Failure: a node that does not come up takes the whole cluster down with it; the error names the
//! program.

mod agent;
mod cgroup;
mod commands;
mod configs;
mod drain;
mod forward;
mod images;
mod install;
mod kubeconfig;
mod links;
mod pki;
mod start;
mod view;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::cgroup::create as create_cgroup;
pub(crate) use self::commands::{answers, command};
pub(crate) use self::configs::CGROUP_DRIVER;
pub(crate) use self::drain::drain;
pub(crate) use self::forward::serve as forward;
pub(crate) use self::links::PEER_PREFIX;
pub(crate) use self::start::{boot, bring_up_node, rejoin, wait_until_ready};
pub(crate) use self::view::{enter as enter_view, new_boot_id};

use super::{Layout, Program};

/// The handler and name of the RuntimeClass, and the name of our backend in the proxy.
const RUNTIME: &str = "vmlet";
/// The handler and name of the RuntimeClass of pods whose containers are processes of one machine.
const PROCESSES: &str = "vmlet-process";
/// The label of nodes that run VM pods.
const NODE_LABEL: &str = "vmlet.dev/node=true";
/// Addresses of Services.
const SERVICE_SUBNET: &str = "10.96.0.0/16";
/// Addresses of pods, all nodes together.
const CLUSTER_SUBNET: &str = "10.88.0.0/16";
/// Port of the agent's health endpoint, inside the node's network namespace.
const AGENT_HEALTH_PORT: u16 = 9623;
/// What is mounted over the host's folder of the same name, in `/var/lib`.
pub(crate) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// What a cluster consists of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How many nodes.
    pub(crate) nodes: u8,
    /// Whether our node stack runs on them.
    pub(crate) guests: Guests,
}

/// Whether a node runs our node stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Guests {
    /// libvirtd, vmlet-tapmanager and vmlet run.
    Vmlet,
    /// Only containerd, kubelet and the proxy do; programs deployed by tests listen below
    /// `/run/vmlet`.
    Deployed,
    /// The node stack runs beside containerd and the proxy, but there is no kubelet and no API.
    Runtimes,
    /// There is no node at all, only the API: etcd and the API server. The controller-manager and
    /// the scheduler are started by `restart` when a test needs them.
    NoNode,
}

/// One node's place in its cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Counts from 1; the first one has the control plane.
    pub(crate) number: u8,
    /// The directory of the first node.
    pub(crate) control: PathBuf,
    /// The API server's port, the same inside the first node and on the host's loopback. 0 until
    /// known.
    pub(crate) api_port: u16,
    /// Whether our node stack runs.
    pub(crate) guests: Guests,
}

impl Node {
    /// Its name in the cluster.
    pub(crate) fn name(&self) -> String {
        node_name(self.number)
    }

    /// Its address.
    pub(crate) fn address(&self) -> String {
        node_address(self.number)
    }

    /// The addresses of its pods.
    pub(crate) fn pod_subnet(&self) -> String {
        pod_subnet(self.number)
    }

    /// Whether it has the control plane.
    pub(crate) fn is_control(&self) -> bool {
        self.number == 1 && self.guests != Guests::Runtimes
    }

    /// Whether libvirtd, vmlet-tapmanager and vmlet run as processes.
    pub(crate) fn has_stack(&self) -> bool {
        matches!(self.guests, Guests::Vmlet | Guests::Runtimes)
    }

    /// Whether our controller runs here. Where Vmlet is deployed it is a pod.
    pub(crate) fn has_controller(&self) -> bool {
        self.is_control() && self.guests == Guests::Vmlet
    }

    /// Whether our agent runs here as a process.
    pub(crate) fn has_agent(&self) -> bool {
        self.guests == Guests::Vmlet
    }

    /// A file below the folder of keys and certificates, which the first node has for all.
    pub(crate) fn pki(&self, name: &str) -> PathBuf {
        self.control.join("pki").join(name)
    }

    /// The administrator's access to the cluster, for the host and for the first node.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.control.join("kubeconfig")
    }

    /// The programs of this node, in the order in which they are started.
    pub(crate) fn programs(&self) -> Vec<Program> {
        let mut programs = Vec::new();
        if self.is_control() {
            programs.extend([
                Program::Etcd,
                Program::KubeApiserver,
                Program::KubeControllerManager,
                Program::KubeScheduler,
            ]);
        }
        if self.guests == Guests::NoNode {
            return programs;
        }
        programs.push(Program::Containerd);
        if self.has_stack() {
            programs.extend([Program::Libvirtd, Program::VmletTapmanager, Program::Vmlet]);
        }
        programs.push(Program::VmletCriproxy);
        if self.guests != Guests::Runtimes {
            programs.extend([Program::Kubelet, Program::KubeProxy]);
        }
        if self.has_controller() {
            programs.push(Program::VmletController);
        }
        if self.has_agent() {
            programs.push(Program::VmletAgent);
        }
        programs
    }
}

/// Where the other nodes of a cluster lie; empty for a stack that has none.
pub(crate) fn workers(layout: &Layout) -> Vec<PathBuf> {
    (2..=MAX_NODES)
        .map(|number| worker_dir(layout.dir(), number))
        .filter(|dir| dir.exists())
        .collect()
}

/// The network namespaces of the other nodes, by number.
fn worker_namespaces(control: &Layout) -> Vec<(u8, String)> {
    (2..=MAX_NODES)
        .filter_map(|number| {
            let worker = Layout::existing(&worker_dir(control.dir(), number)).ok()?;
            let ready = worker.netns_path().exists();
            ready.then(|| (number, worker.netns_name()))
        })
        .collect()
}

/// As many as the addresses allow, and more than a machine for tests has room for.
pub(crate) const MAX_NODES: u8 = 9;

fn worker_dir(control: &Path, number: u8) -> PathBuf {
    control.join(node_name(number))
}

fn node_name(number: u8) -> String {
    format!("node{number}")
}

fn node_address(number: u8) -> String {
    format!("10.200.0.{}", 9 + number)
}

fn pod_subnet(number: u8) -> String {
    format!("10.88.{number}.0/24")
}

/// containerd's CRI socket: a link, since the node's own programs look for it in its usual place.
pub(crate) fn containerd_socket(layout: &Layout) -> PathBuf {
    layout.path("run/containerd.sock")
}

/// The proxy's CRI socket, which is kubelet's.
pub(crate) fn proxy_socket(layout: &Layout) -> PathBuf {
    layout.path("run/criproxy.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8, guests: Guests) -> Node {
        Node {
            number,
            control: PathBuf::from("/tmp/c"),
            api_port: 0,
            guests,
        }
    }

    #[test]
    fn the_control_plane_is_on_the_first_node_only() {
        let first = node(1, Guests::Vmlet).programs();
        let second = node(2, Guests::Vmlet).programs();
        assert!(first.contains(&Program::Etcd) && !second.contains(&Program::Etcd));
        assert!(
            second.iter().all(|program| first.contains(program)),
            "{first:?} {second:?}"
        );
    }

    #[test]
    fn a_node_to_deploy_to_runs_nothing_of_the_node_stack() {
        let programs = node(2, Guests::Deployed).programs();
        let rest = [
            Program::Containerd,
            Program::VmletCriproxy,
            Program::Kubelet,
            Program::KubeProxy,
        ];
        assert_eq!(programs, rest);
    }

    #[test]
    fn runtimes_alone_are_a_node_without_kubernetes() {
        let programs = node(1, Guests::Runtimes).programs();
        let expected = [
            Program::Containerd,
            Program::Libvirtd,
            Program::VmletTapmanager,
            Program::Vmlet,
            Program::VmletCriproxy,
        ];
        assert_eq!(programs, expected);
    }

    #[test]
    fn a_cluster_without_nodes_is_its_control_plane() {
        let programs = node(1, Guests::NoNode).programs();
        assert!(node(1, Guests::Vmlet).programs().starts_with(&programs));
        assert_eq!(programs.last(), Some(&Program::KubeScheduler));
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let all: std::collections::BTreeSet<_> = (1..=MAX_NODES)
            .flat_map(|number| [node_address(number), pod_subnet(number), node_name(number)])
            .collect();
        assert_eq!(all.len(), 3 * usize::from(MAX_NODES));
    }
}

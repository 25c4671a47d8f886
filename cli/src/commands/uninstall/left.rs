//! What is left of virtual machines: pure, from what was listed.
//!
//! Invariant: each object is in one step only, and the steps are in the order of the removal: what
//! a step removes needs the programs of the later ones.
//! Failure: none; what an agent did not report is named as not known.

use std::collections::BTreeSet;

use crds::{
    TaskState, VirtualMachine, VirtualMachineBackup, VirtualMachineReplicaSet, VirtualMachineTask,
    names,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::table::printable;

/// Most objects of a step that are named.
const MOST: usize = 20;

/// Printed when the kinds may be deleted.
pub(super) const ALLOWED: &str = "\
The kinds may be removed now. Until they are, no machine can be created.
  vmletctl uninstall --cancel      takes that back, if Vmlet is to stay
  kubectl delete -k DIRECTORY      the overlay that was applied: agents, controller, DaemonSet, kinds
                                   (of a release of Helm: helm uninstall, then kubectl delete -f CHART/crds)
  kubectl label node --all vmlet.dev/node-
Then point kubelet of each node at its own runtime again: docs/operations.md, Remove.
";

/// Printed when the kinds may no longer be deleted, since something is left.
pub(super) const WITHDRAWN: &str =
    "The removal of the kinds is no longer allowed: machines can be created.\n";

/// Printed when the kinds may no longer be deleted by the choice of the user.
pub(super) fn cancelled(kinds: &[Kind]) -> String {
    let was_allowed = kinds.iter().any(|kind| kind.is_allowed);
    let mut text = if was_allowed {
        "The removal of the kinds is no longer allowed: machines can be created again.\n".to_owned()
    } else {
        "The removal of the kinds was not allowed.\n".to_owned()
    };
    text.push_str(&going(kinds));
    text
}

/// What cannot be taken back.
fn going(kinds: &[Kind]) -> String {
    let going = kinds.iter().filter(|kind| kind.is_going);
    let going: Vec<_> = going.map(|kind| kind.name.as_str()).collect();
    if going.is_empty() {
        return String::new();
    }
    let names = going.join(", ");
    format!(
        "being deleted: {names}. Their objects are deleted, too; those with a finalizer wait \
         for the controller.\n"
    )
}

/// Everything that was listed.
pub(super) struct Seen<'a> {
    pub(super) sets: &'a [VirtualMachineReplicaSet],
    pub(super) machines: &'a [VirtualMachine],
    pub(super) backups: &'a [VirtualMachineBackup],
    pub(super) tasks: &'a [VirtualMachineTask],
    pub(super) pods: &'a [Pod],
    /// Whose pods are virtual machines.
    pub(super) runtime_classes: &'a [String],
    pub(super) nodes: BTreeSet<String>,
    pub(super) agents: Vec<Agent>,
    pub(super) kinds: Vec<Kind>,
    pub(super) now: Timestamp,
}

/// What an agent reported last.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) node: String,
    /// Of its pod.
    pub(super) namespace: String,
    pub(super) is_alive: bool,
    /// Disks of machines on its node, also those whose record cannot be read; none when it did not
    /// count them.
    pub(super) disks: Option<u32>,
    /// Those whose record cannot be read; none when it did not count them.
    pub(super) unreadable: Option<u32>,
}

/// A kind of ours.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    /// Such as `virtualmachines.vmlet.dev`.
    pub(super) name: String,
    pub(super) is_going: bool,
    /// It may be deleted, and no machine can be created.
    pub(super) is_allowed: bool,
}

impl Kind {
    pub(super) fn is(&self, plural: &str) -> bool {
        self.name == format!("{plural}.{}", crds::GROUP)
    }
}

/// What the report is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Check,
    Removal,
    Node(String),
}

/// A line about something that is left, and the node that it is on.
#[derive(Debug, Clone)]
struct Item {
    text: String,
    node: Option<String>,
}

/// Everything that is left, by step.
#[derive(Debug, Default)]
pub(super) struct Left {
    sets: Vec<Item>,
    machines: Vec<Item>,
    backups: Vec<Item>,
    tasks: Vec<Item>,
    pods: Vec<Item>,
    disks: Vec<Item>,
    pub(super) disks_are_kept: bool,
    pub(super) kinds: Vec<Kind>,
}

impl Left {
    pub(super) fn find(seen: &Seen<'_>) -> Self {
        let uids: BTreeSet<_> = seen.machines.iter().filter_map(ResourceExt::uid).collect();
        let tasks = seen.tasks.iter().filter(|task| !has_ended(task));
        Self {
            sets: seen.sets.iter().filter_map(set).collect(),
            machines: seen.machines.iter().map(|vm| machine(vm, seen)).collect(),
            backups: seen.backups.iter().filter_map(backup).collect(),
            tasks: tasks.map(task).collect(),
            pods: seen
                .pods
                .iter()
                .filter_map(|one| pod(one, seen, &uids))
                .collect(),
            disks: seen.agents.iter().filter_map(disks).collect(),
            disks_are_kept: false,
            kinds: seen.kinds.clone(),
        }
    }

    /// Forgets what is on other nodes, or on none.
    pub(super) fn only_on(&mut self, node: &str) {
        for step in [
            &mut self.sets,
            &mut self.machines,
            &mut self.backups,
            &mut self.tasks,
            &mut self.pods,
            &mut self.disks,
        ] {
            step.retain(|item| item.node.as_deref() == Some(node));
        }
    }

    /// Whether the removal has to wait.
    pub(super) fn is_something(&self) -> bool {
        let disks = if self.disks_are_kept {
            0
        } else {
            self.disks.len()
        };
        let objects = self.sets.len() + self.machines.len() + self.backups.len();
        objects + self.tasks.len() + self.pods.len() + disks > 0
    }

    /// Whether a kind may be deleted.
    pub(super) fn is_allowed(&self) -> bool {
        self.kinds.iter().any(|kind| kind.is_allowed)
    }

    /// All of it, for people.
    pub(super) fn report(&self, purpose: &Purpose) -> String {
        let mut text = String::new();
        let disks = if self.disks_are_kept {
            "They are kept."
        } else {
            "A disk without a machine: back it up or remove it (docs/operations.md, Remove), or keep it \
             with --keep-disks. A disk whose record cannot be read counts, too: the log of its node's \
             daemon names it (docs/operations.md, Unreadable records)."
        };
        for (title, items, what_to_do) in [
            (
                "replica sets",
                &self.sets,
                "They would make their machines again. Delete them, and with them their machines and \
                 root disks: kubectl delete vmrs NAME -n NAMESPACE.",
            ),
            (
                "virtual machines",
                &self.machines,
                "Delete them while controller and agents run, and wait: kubectl delete vm NAME -n \
                 NAMESPACE. Their root disks are deleted, also claims NAME-root and those that reverts made of them; other claims stay.",
            ),
            (
                "backups",
                &self.backups,
                "Delete them, and with them their data: kubectl delete vmbackup NAME -n NAMESPACE. To keep the \
                 data, set spec.deletionPolicy to Retain before that.",
            ),
            (
                "tasks of nodes",
                &self.tasks,
                "They end by themselves while the agents run; those of an image end when it is deleted.",
            ),
            (
                "VM pods without a machine",
                &self.pods,
                "Delete what makes them (Deployments, Jobs), or the pods: kubectl delete pod NAME -n NAMESPACE.",
            ),
            ("disks on nodes", &self.disks, disks),
        ] {
            step(&mut text, title, items, what_to_do);
        }
        text.push_str(&going(&self.kinds));
        text.push_str(&self.conclusion(purpose));
        text
    }

    fn conclusion(&self, purpose: &Purpose) -> String {
        let is_left = self.is_something();
        match purpose {
            Purpose::Node(node) if is_left => {
                format!(
                    "Leave Vmlet on node {node}: without its agent none of this can be deleted.\n"
                )
            }
            Purpose::Node(node) => format!(
                "Nothing is left on node {node}. To take Vmlet off it: kubectl cordon {node}; \
                 kubectl label node {node} {}-\n",
                names::NODE_LABEL
            ),
            Purpose::Check if is_left && self.is_allowed() => {
                "The removal of the kinds is allowed, and would delete all this: vmletctl uninstall \
                 --cancel takes that back.\n"
                    .to_owned()
            }
            Purpose::Check | Purpose::Removal if is_left => {
                "Do not remove the kinds, the controller or the agents before that.\n".to_owned()
            }
            Purpose::Check if self.is_allowed() => {
                "Nothing is left, and the removal of the kinds is allowed. Until they are removed no \
                 machine can be created; vmletctl uninstall --cancel takes that back.\n"
                    .to_owned()
            }
            Purpose::Check => {
                "Nothing is left. vmletctl uninstall allows the removal of the kinds.\n".to_owned()
            }
            Purpose::Removal => String::new(),
        }
    }
}

fn step(text: &mut String, title: &str, items: &[Item], what_to_do: &str) {
    if items.is_empty() {
        text.push_str(&format!("{title}: none\n"));
        return;
    }
    text.push_str(&format!("{title}: {}\n", items.len()));
    for item in items.iter().take(MOST) {
        text.push_str(&format!("  {}\n", printable(&item.text)));
    }
    if items.len() > MOST {
        text.push_str(&format!("  and {} more\n", items.len() - MOST));
    }
    text.push_str(&format!("  {what_to_do}\n"));
}

fn named(object: &impl ResourceExt) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// A set that makes machines.
fn set(set: &VirtualMachineReplicaSet) -> Option<Item> {
    let replicas = set.spec.replicas;
    (replicas > 0).then(|| Item {
        text: format!("{} ({replicas} machines)", named(set)),
        node: None,
    })
}

/// A backup that waits for the controller when it is deleted.
fn backup(backup: &VirtualMachineBackup) -> Option<Item> {
    let mut finalizers = backup.finalizers().iter();
    let is_held = finalizers.any(|known| known == names::BACKUP_FINALIZER);
    is_held.then(|| Item {
        text: format!("{} of {}", named(backup), backup.spec.vm_name),
        node: None,
    })
}

fn machine(vm: &VirtualMachine, seen: &Seen<'_>) -> Item {
    let status = vm.status.clone().unwrap_or_default();
    let mut text = named(vm);
    if let Some(word) = status.printable_status {
        text.push_str(&format!(" ({word:?})"));
    }
    if let Some(since) = &vm.metadata.deletion_timestamp {
        let age = seen.now.duration_since(since.0).as_secs().max(0);
        text.push_str(&format!(", being deleted for {age} s"));
    }
    if let Some(node) = &status.node_name {
        text.push_str(&format!(", disk on node {node}"));
        let is_alive = |agent: &Agent| agent.node == *node && agent.is_alive;
        if seen.nodes.contains(node) && !seen.agents.iter().any(is_alive) {
            // An agent that no longer exists may have reported from another namespace, last of all.
            let all = || seen.agents.iter();
            let known = all().find(|a| a.is_alive).or_else(|| all().next());
            let namespace = known.map_or(names::NAMESPACE, |agent| agent.namespace.as_str());
            text.push_str(&format!(
                ", which has no agent that reports: its deletion waits until there is one. Label the \
                 node {}=true, and see kubectl -n {namespace} get pods -o wide; or delete the Node if \
                 it is lost",
                names::NODE_LABEL
            ));
        }
    }
    let finalizers = vm.finalizers().iter();
    let foreign: Vec<_> = finalizers
        .filter(|f| *f != names::FINALIZER)
        .cloned()
        .collect();
    if !foreign.is_empty() {
        text.push_str(&format!(", finalizers of others: {}", foreign.join(", ")));
    }
    Item {
        text,
        node: status.node_name,
    }
}

fn has_ended(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|status| status.state);
    state.is_some_and(TaskState::is_final)
}

fn task(task: &VirtualMachineTask) -> Item {
    let node = &task.spec.node_name;
    Item {
        text: format!("{} ({:?}) on node {node}", named(task), task.spec.kind),
        node: Some(node.clone()),
    }
}

/// A pod that is a virtual machine, or that waits for our controller, and of no machine that is
/// there.
fn pod(pod: &Pod, seen: &Seen<'_>, machines: &BTreeSet<String>) -> Option<Item> {
    let spec = pod.spec.as_ref()?;
    let class = spec.runtime_class_name.as_ref();
    let is_ours = class.is_some_and(|class| seen.runtime_classes.contains(class));
    let waits = pod.finalizers().iter().any(|f| f == names::FINALIZER);
    let of_machine = pod.labels().get(names::VM_UID_LABEL);
    if !(is_ours || waits) || of_machine.is_some_and(|uid| machines.contains(uid)) {
        return None;
    }
    let mut text = named(pod);
    if let Some(node) = &spec.node_name {
        text.push_str(&format!(" on node {node}"));
    }
    if waits {
        text.push_str(", has a finalizer that the controller removes: it must run");
    }
    Some(Item {
        text,
        node: spec.node_name.clone(),
    })
}

fn disks(agent: &Agent) -> Option<Item> {
    let node = &agent.node;
    let silent = if agent.is_alive {
        ""
    } else {
        ", by the last report of its agent, which no longer reports"
    };
    let unreadable = match agent.unreadable {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} of them with a record that cannot be read"),
    };
    let text = match agent.disks {
        Some(0) => return None,
        Some(count) => format!("{node}: {count}{unreadable}{silent}"),
        None if agent.is_alive => {
            format!(
                "{node}: not known: its agent has not counted them; see its log, or upgrade it if it \
                 is of a version that does not count"
            )
        }
        // It never reported a number: machines of this node name it.
        None => return None,
    };
    Some(Item {
        text,
        node: Some(node.clone()),
    })
}

#[cfg(test)]
mod tests;

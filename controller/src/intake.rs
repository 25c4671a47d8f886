//! Converts changes in the stores to keys in the queue.
//!
//! Machines and images wake themselves; every other kind wakes the machines and images that it
//! belongs to ([`Wakes`]). The table of all ways to be woken is in `docs/controller-events.md`.
//!
//! Invariant: a pure function of the change and the stores; each key is named with the priority
//! that the machine's present state deserves, not the changed object's.
//! Failure: none; a change that concerns no machine causes no pass.

mod mappers;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::conditions::{
    self, DISK_PROMOTION_PENDING, DISK_PROMOTION_SYNCED, NOT_IMPLEMENTED, PROBE_UNAVAILABLE, READY,
};
use crds::names::POD_ROLE_LABEL;
use crds::{PowerState, VirtualMachine, VirtualMachineSnapshot};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use lifecycle::{Instance, NodeState};
use workqueue::{Options, Shared};

use crate::metrics::QueueMetrics;
use crate::priority::{Event, Facts, Mapped, Profile, pod_contradicts};
use crate::reconcile::backup::needs_node;
use crate::reconcile::image::cache;
use crate::reconcile::image::object::Object;
use crate::reconcile::vm::is_backup_outdated;
use crate::stores::{Agents, Change, Key, Stores, is_unmade_clone};

pub use mappers::Wakes;

/// The machines' queue.
pub type Queue = Shared<Key, QueueMetrics>;

/// The images' queue.
pub type ImageQueue = Shared<Key, QueueMetrics>;

/// The groups' queue.
pub type GroupQueue = Shared<Key, QueueMetrics>;

/// The replica sets' queue.
pub type ReplicaSetQueue = Shared<Key, QueueMetrics>;

/// The backups' queue.
pub type BackupQueue = Shared<Key, QueueMetrics>;

/// The queue of the schedules of backups.
pub type BackupScheduleQueue = Shared<Key, QueueMetrics>;

/// Fills the queues. Clones fill the same ones.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "stores have none")]
pub struct Intake {
    stores: Stores,
    rules: Arc<Profile>,
    queue: Arc<Queue>,
    images: Arc<ImageQueue>,
    groups: Option<Arc<GroupQueue>>,
    replica_sets: Option<Arc<ReplicaSetQueue>>,
    backups: Option<Arc<BackupQueue>>,
    backup_schedules: Option<Arc<BackupScheduleQueue>>,
}

/// A key to be queued, and how urgently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// The machine.
    pub key: Key,
    /// Its priority.
    pub priority: i64,
    /// The change is one that a pass itself makes: it ends no back-off.
    pub quiet: bool,
}

impl Intake {
    /// From these stores, by these rules, into the queue of machines and that of images.
    #[must_use]
    pub fn new(stores: Stores, rules: Profile, queue: Arc<Queue>, images: Arc<ImageQueue>) -> Self {
        Self {
            stores,
            rules: Arc::new(rules),
            queue,
            images,
            groups: None,
            replica_sets: None,
            backups: None,
            backup_schedules: None,
        }
    }

    /// The same, filling the queue of groups, too.
    #[must_use]
    pub fn with_groups(self, groups: Arc<GroupQueue>) -> Self {
        Self {
            groups: Some(groups),
            ..self
        }
    }

    /// The same, filling the queue of replica sets, too.
    #[must_use]
    pub fn with_replica_sets(self, replica_sets: Arc<ReplicaSetQueue>) -> Self {
        Self {
            replica_sets: Some(replica_sets),
            ..self
        }
    }

    /// The same, filling the queues of backups and of their schedules, too.
    #[must_use]
    pub fn with_backups(
        self,
        backups: Arc<BackupQueue>,
        schedules: Arc<BackupScheduleQueue>,
    ) -> Self {
        Self {
            backups: Some(backups),
            backup_schedules: Some(schedules),
            ..self
        }
    }

    /// The receiver of the leases of agents.
    #[must_use]
    pub fn agents(&self) -> Agents {
        self.stores.agents.clone()
    }

    /// Queues whatever the changes wake.
    pub fn take<K: Wakes>(&self, changes: &[Change<K>]) {
        let adds = changes.iter().flat_map(|change| self.adds(change));
        self.queue.push_all(adds.map(|add| {
            let by = kind_of::<K>();
            let priority = add.priority;
            tracing::debug!(key = %add.key, priority, by, outcome = "queued", "pass queued");
            let options = Options::at(add.priority);
            let quietly = options.quiet();
            (add.key, if add.quiet { quietly } else { options })
        }));
        let images = changes.iter();
        let images = images.flat_map(|change| K::wakes_images(change, &self.stores));
        self.images
            .push_all(images.map(|key| (key, Options::default())));
        if let Some(queue) = &self.groups {
            let groups = changes.iter();
            let groups = groups.flat_map(|change| K::wakes_groups(change, &self.stores));
            queue.push_all(groups.map(|key| (key, Options::default())));
        }
        if let Some(queue) = &self.replica_sets {
            let sets = changes.iter();
            let sets = sets.flat_map(|change| K::wakes_replica_sets(change, &self.stores));
            queue.push_all(sets.map(|key| (key, Options::default())));
        }
        if let Some(queue) = &self.backups {
            let backups = changes.iter();
            let backups = backups.flat_map(|change| K::wakes_backups(change, &self.stores));
            queue.push_all(backups.map(|key| (key, Options::default())));
        }
        if let Some(queue) = &self.backup_schedules {
            let schedules = changes.iter();
            let schedules = schedules.flat_map(K::wakes_backup_schedules);
            queue.push_all(schedules.map(|key| (key, Options::default())));
        }
    }

    /// An agent lives that did not, or reaches its daemon again, or reports other failures, or it and its daemon can do more:
    /// images without an answer may get one, nodes may pull those that they are to have, and probe machines that they could not.
    pub fn agents_can_do_more(&self) {
        let unanswered = |image: &Object| {
            image.pre_pull().is_some() || image.ready().is_none_or(|r| r.status != "True")
        };
        let waiting = Object::all(&self.stores).filter(unanswered);
        let caches = self.stores.image_caches.state().into_iter();
        let unfilled = caches.filter_map(|cache| {
            let status = cache.status.as_ref();
            let is_ready = status.is_some_and(|s| conditions::is_true(&s.conditions, READY));
            cache::image_of(&cache).filter(|_| !is_ready)
        });
        let waiting = waiting.map(|image| image.key()).chain(unfilled);
        self.images.push_all(in_order(waiting));
        let machines = self.stores.vms.state().into_iter();
        let is_unbacked = |vm: &VirtualMachine| is_backup_outdated(&self.stores.agents, vm);
        let is_waiting = |vm: &VirtualMachine| {
            let needs_task = vm.spec.current_snapshot_name.is_some() || is_unmade_clone(vm);
            needs_task || is_unprobed(vm) || is_unpromoted(vm) || is_unbacked(vm)
        };
        let waiting = machines.filter(|vm| is_waiting(vm));
        let waiting: BTreeSet<_> = waiting.map(|vm| Key::from_object(&*vm)).collect();
        waiting.into_iter().for_each(|key| self.signal(key));
        let snapshots = self.stores.snapshots.state().into_iter();
        let is_leaving =
            |snapshot: &VirtualMachineSnapshot| snapshot.metadata.deletion_timestamp.is_some();
        let waiting = snapshots.filter(|one| !one.is_created() || is_leaving(one));
        let machines = waiting.map(|snapshot| {
            let namespace = snapshot.namespace().unwrap_or_default();
            Key::new(namespace, &snapshot.spec.vm_name)
        });
        let machines: BTreeSet<_> = machines.collect();
        machines.into_iter().for_each(|key| self.signal(key));
        if let Some(queue) = &self.backups {
            let backups = self.stores.backups.state().into_iter();
            let waiting = backups.filter(|backup| needs_node(backup));
            queue.push_all(in_order(waiting.map(|backup| Key::from_object(&*backup))));
        }
    }

    /// Something outside the API server happened to a machine.
    pub fn signal(&self, key: Key) {
        if let Some(vm) = self.stores.vm(&key) {
            let priority = self
                .rules
                .priority(Event::Generic, &facts(&vm, &self.stores));
            self.queue.push(key, Options::at(priority));
        }
    }

    /// CDI's kind can be used now: machines with templates may have waited for it.
    pub fn volumes_are_served(&self) {
        let all = self.stores.vms.state().into_iter();
        let waiting = all.filter(|vm| !vm.spec.data_volume_templates.is_empty());
        waiting.for_each(|vm| self.signal(Key::from_object(&*vm)));
    }

    /// The keys that a change wakes.
    pub fn adds<K: Wakes>(&self, change: &Change<K>) -> Vec<Add> {
        let own = K::as_machine(change).map(|change| self.machine(&change));
        let mapped = match change {
            Change::Created { initial: true, .. } => Mapped::Initial,
            Change::Updated {
                unchanged: true, ..
            } => Mapped::Unchanged,
            _ => Mapped::Changed,
        };
        let keys = K::wakes(change, &self.stores);
        let add = |key: Key| {
            let vm = self.stores.vm(&key);
            let facts = vm
                .as_ref()
                .map(|vm| facts(vm, &self.stores).contradicted(contradicted(vm, change)));
            // A machine that no longer exists may have left something behind.
            let facts = facts.unwrap_or_else(|| Facts::of_other(None));
            let priority = self.rules.priority(Event::Mapped(mapped), &facts);
            Add {
                key,
                priority,
                quiet: false,
            }
        };
        own.into_iter().chain(keys.into_iter().map(add)).collect()
    }

    fn machine(&self, change: &Change<VirtualMachine>) -> Add {
        let event = match change {
            Change::Created { initial, .. } => Event::Create { initial: *initial },
            Change::Updated { unchanged, .. } => Event::Update {
                unchanged: *unchanged,
            },
            Change::Deleted { .. } => Event::Delete,
        };
        let vm = change.object();
        Add {
            key: Key::from_object(&**vm),
            priority: self.rules.priority(event, &facts(vm, &self.stores)),
            quiet: is_of_status(change),
        }
    }
}

/// Keys of objects that a store has listed, which it does in no certain order.
fn in_order(keys: impl Iterator<Item = Key>) -> impl Iterator<Item = (Key, Options)> {
    let keys: BTreeSet<_> = keys.collect();
    keys.into_iter().map(|key| (key, Options::default()))
}

/// Nothing but the status changed, less the requests of users: only passes write that. A failure
/// that a pass records must not cause the next pass.
fn is_of_status(change: &Change<VirtualMachine>) -> bool {
    let Change::Updated { old, new, .. } = change else {
        return false;
    };
    let requests = |vm: &VirtualMachine| {
        let status = vm.status.as_ref();
        status.map_or_else(Vec::new, |status| status.state_change_requests.clone())
    };
    let is_same_metadata = old.labels() == new.labels()
        && old.annotations() == new.annotations()
        && old.finalizers() == new.finalizers()
        && old.owner_references() == new.owner_references()
        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && old.metadata.uid == new.metadata.uid;
    is_same_metadata
        && old.status != new.status
        && old.spec == new.spec
        && requests(old) == requests(new)
}

/// The kind of a type's objects, for the log: `Pod`, also of their metadata alone.
fn kind_of<K>() -> &'static str {
    let path = std::any::type_name::<K>();
    let name = path.rsplit("::").next().unwrap_or(path);
    name.trim_end_matches('>')
}

/// What the machine's priority depends on.
#[must_use]
pub fn facts<'a>(vm: &'a VirtualMachine, stores: &Stores) -> Facts<'a> {
    Facts::of_machine(vm, wanted(vm, stores))
}

/// The power state that follows from its desired state at this moment.
fn wanted(vm: &VirtualMachine, stores: &Stores) -> Option<PowerState> {
    let pods = stores.pods_of(vm.metadata.uid.as_deref().unwrap_or_default());
    let pod = pods.iter().find(|pod| is_instance(pod));
    let instance = pod.map(|pod| Instance::from_pod(pod, node_state(pod, stores)));
    let status = vm.status.clone().unwrap_or_default();
    lifecycle::desired_power_state(&vm.spec, &status, instance.as_ref()).ok()
}

fn is_instance(pod: &Pod) -> bool {
    pod.labels().get(POD_ROLE_LABEL).map(String::as_str) == Some("instance")
}

fn node_state(pod: &Pod, stores: &Stores) -> NodeState {
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = name.and_then(|name| stores.nodes.get(&Key::new("", name).reference()));
    match node {
        Some(node) if !is_ready(&node) => NodeState::NotReady,
        _ => NodeState::Ready,
    }
}

/// Whether its node was to probe the machine when it could not.
fn is_unprobed(vm: &VirtualMachine) -> bool {
    let all = vm.status.as_ref().map(|status| &status.conditions);
    let ready = all.and_then(|all| conditions::find(all, READY));
    ready.is_some_and(|ready| ready.reason == PROBE_UNAVAILABLE)
}

/// Whether its node was to flatten the machine's disk when it could not.
fn is_unpromoted(vm: &VirtualMachine) -> bool {
    let all = vm.status.as_ref().map(|status| &status.conditions);
    let synced = all.and_then(|all| conditions::find(all, DISK_PROMOTION_SYNCED));
    synced.is_some_and(|synced| {
        let reasons = [DISK_PROMOTION_PENDING, NOT_IMPLEMENTED];
        reasons.contains(&synced.reason.as_str())
    })
}

/// Whether the node reports that it is ready.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.flatten().filter(|c| c.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

/// Whether the change is one of the machine's running pod, and says otherwise than the machine's
/// status.
fn contradicted<K: Wakes>(vm: &VirtualMachine, change: &Change<K>) -> bool {
    let Some(pod) = K::as_pod(change.object()) else {
        return false;
    };
    let is_gone = matches!(change, Change::Deleted { .. });
    is_instance(pod) && pod_contradicts(vm, Some(pod).filter(|_| !is_gone))
}

//! A cluster for one test: server, stores that are fed on demand, a clock that does not advance.
//!
//! Invariant: nothing is seen by a pass before [`Bench::sync`], as with a watch that lags.
//! Failure: panics with what was not there.

mod agents;
mod backups;
mod groups;
mod life;
mod looks;
mod outcomes;
mod replica_sets;
mod snapshots;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage, VirtualMachineImageCache,
    VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
};
use http::Method;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(super) use self::backups::{BACKUPS, SCHEDULES};
pub(super) use self::groups::GROUPS;
pub(super) use self::life::alive;
pub(super) use self::outcomes::{failure, is_conflict, is_quiet, is_wait, seconds};
pub(super) use self::replica_sets::SETS;
pub(super) use self::snapshots::SNAPSHOTS;
use super::api;
use super::api::Server;
use crate::config::Config;
use crate::context::{Context, Key};
use crate::events::{Events, Queue, Reported};
use crate::flow::{Outcome, PassError};
use crate::intake::Intake;
use crate::reconcile::vm::reconcile;
use crate::stores::{DataVolume, Feeds, Stores, VolumeSnapshot};

pub(super) const VMS: &str = "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachines";
pub(super) const TASKS: &str = "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinetasks";
/// Tasks of machines that are being deleted.
pub(super) const SYSTEM_TASKS: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/vmlet-system/virtualmachinetasks";
pub(super) const CLASSES: &str = "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachineclasses";
pub(super) const CLUSTER_IMAGES: &str = "apis/vmlet.dev/v1alpha1/clustervirtualmachineimages";
pub(super) const IMAGES: &str = "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachineimages";
pub(super) const CACHES: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/vmlet-system/virtualmachineimagecaches";
pub(super) const PODS: &str = "api/v1/namespaces/ns/pods";
pub(super) const NODES: &str = "api/v1/nodes";
pub(super) const CLAIMS: &str = "api/v1/namespaces/ns/persistentvolumeclaims";
pub(super) const DATA_VOLUMES: &str = "apis/cdi.kubevirt.io/v1beta1/namespaces/ns/datavolumes";
pub(super) const VOLUME_SNAPSHOTS: &str =
    "apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots";
pub(super) const STORAGE_CLASSES: &str = "apis/storage.k8s.io/v1/storageclasses";
/// The time at which every test begins, in seconds.
pub(super) const START: i64 = 1_800_000_000;

/// One relist of a kind; what changed goes to the intake, if there is one.
macro_rules! feed {
    ($intake:expr, $feed:expr, $objects:expr, $($collection:expr),+ => $kind:ty) => {
        $feed.apply(Event::Init);
        $(for object in all::<$kind>($objects, $collection) {
            $feed.apply(Event::InitApply(object));
        })+
        let changes: Vec<_> = $feed.apply(Event::InitDone);
        if let Some(intake) = $intake {
            let changes: Vec<_> = changes.into_iter().filter(|c| !c.is_routine()).collect();
            intake.take(&changes);
        }
    };
}

pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) ctx: Context,
    pub(super) key: Key,
    feeds: Feeds,
    events: Queue,
    clock: Arc<AtomicI64>,
}

impl Bench {
    /// A ready node, a class, an image and no machine.
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let server: Server = Arc::default();
        let (stores, feeds) = Stores::new();
        let (mut ctx, events) = Context::new(api::client(&server), stores);
        let clock = Arc::new(AtomicI64::new(START));
        let now = Arc::clone(&clock);
        ctx.clock = Arc::new(move || {
            Time(jiff::Timestamp::from_second(now.load(Ordering::Relaxed)).unwrap())
        });
        ctx.config = Arc::new(config);
        let mut bench = Self {
            server,
            ctx,
            key: Key::new("ns", "vm"),
            feeds,
            events,
            clock,
        };
        bench.node("n1", true);
        bench.put(CLASSES, class("small", 1));
        bench.put(IMAGES, image("debian"));
        bench.sync();
        bench
    }

    /// A machine that is to run, of class `small` and image `debian`, with changes to its
    /// specification.
    pub(super) fn machine(&mut self, changes: Value) -> String {
        self.machine_named("vm", changes)
    }

    pub(super) fn machine_named(&mut self, name: &str, changes: Value) -> String {
        let mut vm = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "className": "small", "imageName": "debian", "runStrategy": "Always" },
        });
        json_patch::merge(&mut vm, &changes);
        self.put(VMS, vm);
        self.sync();
        self.get(VMS, name)["metadata"]["uid"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub(super) fn node(&mut self, name: &str, is_ready: bool) {
        let ready = if is_ready { "True" } else { "Unknown" };
        self.server
            .lock()
            .unwrap()
            .remove(&(NODES.to_owned(), name.to_owned()));
        self.put(
            NODES,
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": "z1" } },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }),
        );
        self.sync();
    }

    /// kubelet reports these names of one image of its node.
    pub(super) fn node_has(&mut self, node: &str, names: &[String]) {
        let images = json!([{ "names": names, "sizeBytes": 1 }]);
        self.edit(NODES, node, json!({ "status": { "images": images } }));
    }

    /// One pass over an image on what the stores show.
    pub(super) async fn image_pass(&mut self, namespace: &str, name: &str) -> Outcome {
        let key = Key::new(namespace, name);
        let result = Box::pin(crate::reconcile::image::reconcile(&self.ctx, &key)).await;
        self.sync();
        result
    }

    pub(super) fn claim(&mut self, name: &str, phase: &str) {
        self.put(
            CLAIMS,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": name, "namespace": "ns" },
                "spec": { "volumeMode": "Block" },
                "status": { "phase": phase },
            }),
        );
        self.sync();
    }

    /// Creates an object directly, without a pass of the controller.
    pub(super) fn put(&mut self, collection: &str, object: Value) -> Value {
        let mut server = self.server.lock().unwrap();
        let (code, made) = server.create(collection.to_owned(), object);
        assert!(code.is_success(), "{made}");
        made
    }

    /// Changes an object directly, without a pass of the controller; `null` removes a field.
    pub(super) fn edit(&mut self, collection: &str, name: &str, change: Value) {
        self.edit_unseen(collection, name, change);
        self.sync();
    }

    /// The same, and the watches do not show it yet.
    pub(super) fn edit_unseen(&mut self, collection: &str, name: &str, change: Value) {
        let place = (collection.to_owned(), name.to_owned());
        let mut server = self.server.lock().unwrap();
        let old = server.objects[&place].clone();
        let mut new = old.clone();
        json_patch::merge(&mut new, &change);
        server.store(&place, &old, new);
    }

    pub(super) fn remove(&mut self, collection: &str, name: &str) {
        let place = (collection.to_owned(), name.to_owned());
        self.server.lock().unwrap().remove(&place);
        self.sync();
    }

    pub(super) fn refuse(&mut self, method: Method, part: &str, code: u16, times: usize) {
        let mut server = self.server.lock().unwrap();
        server.refusals.push((method, part.to_owned(), code, times));
    }

    pub(super) fn most_pods(&mut self, most: usize) {
        self.server.lock().unwrap().most_pods = Some(most);
    }

    pub(super) fn forward(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Writes since the last call.
    pub(super) fn writes(&self) -> Vec<String> {
        let mut server = self.server.lock().unwrap();
        server.bodies.clear();
        std::mem::take(&mut server.writes)
    }

    /// Reasons of the events since the last call.
    pub(super) fn events(&mut self) -> Vec<String> {
        self.reported().into_iter().map(|r| r.reason).collect()
    }

    pub(super) fn reported(&mut self) -> Vec<Reported> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Lets the watches catch up.
    pub(super) fn sync(&mut self) {
        self.sync_to(None);
    }

    /// The same; the changes wake machines.
    pub(super) fn sync_to(&mut self, intake: Option<&Intake>) {
        let server = self.server.lock().unwrap();
        let objects = &server.objects;
        let feeds = &mut self.feeds;
        feed!(intake, feeds.vms, objects, VMS => VirtualMachine);
        feed!(intake, feeds.tasks, objects, TASKS, SYSTEM_TASKS => VirtualMachineTask);
        feed!(intake, feeds.classes, objects, CLASSES => VirtualMachineClass);
        feed!(intake, feeds.images, objects, IMAGES => VirtualMachineImage);
        feed!(intake, feeds.cluster_images, objects, CLUSTER_IMAGES => ClusterVirtualMachineImage);
        feed!(intake, feeds.image_caches, objects, CACHES => VirtualMachineImageCache);
        feed!(intake, feeds.pods, objects, PODS => Pod);
        feed!(intake, feeds.groups, objects, GROUPS => VirtualMachineGroup);
        feed!(intake, feeds.replica_sets, objects, SETS => VirtualMachineReplicaSet);
        feed!(intake, feeds.snapshots, objects, SNAPSHOTS => VirtualMachineSnapshot);
        feed!(intake, feeds.backups, objects, BACKUPS => VirtualMachineBackup);
        feed!(intake, feeds.backup_schedules, objects, SCHEDULES => VirtualMachineBackupSchedule);
        feed!(intake, feeds.nodes, objects, NODES => Node);
        feed!(intake, feeds.claims, objects, CLAIMS => PersistentVolumeClaim);
        feed!(intake, feeds.data_volumes, objects, DATA_VOLUMES => DataVolume);
        feed!(intake, feeds.volume_snapshots, objects, VOLUME_SNAPSHOTS => VolumeSnapshot);
        feed!(intake, feeds.storage_classes, objects, STORAGE_CLASSES => StorageClass);
    }

    /// The kinds that no test of machines has objects of were listed, too.
    pub(super) fn fill_the_rest(&mut self) {
        macro_rules! fill {
            ($($feed:ident),+) => {$(
                self.feeds.$feed.apply(Event::Init);
                self.feeds.$feed.apply(Event::InitDone);
            )+};
        }
        fill!(networks, quotas, limit_ranges, namespaces);
    }

    /// One pass on what the stores show.
    pub(super) async fn pass(&mut self) -> Outcome {
        let key = self.key.clone();
        let result = Box::pin(reconcile(&self.ctx, &key)).await;
        self.sync();
        if let Err(PassError::Failed(error)) = &result {
            self.fails_the_same_way(&format!("{error:#}")).await;
        }
        result
    }

    /// Passes after a failed one, which fail in the same way, soon have nothing to write: a failure
    /// that wrote itself again would cause the next one. The cluster is then as it was before.
    async fn fails_the_same_way(&mut self, error: &str) {
        let key = self.key.clone();
        let before = self.server.lock().unwrap().clone();
        let mut ctx = self.ctx.clone();
        ctx.shared = crate::shared::Shared::default();
        (ctx.events, _) = Events::channel();
        let written = |bench: &Self| bench.server.lock().unwrap().writes.len();
        let mut is_settled = false;
        for _ in 0..4 {
            let count = written(self);
            let again = Box::pin(reconcile(&ctx, &key)).await;
            self.sync();
            let is_same = matches!(&again, Err(PassError::Failed(e)) if format!("{e:#}") == error);
            is_settled = !is_same || written(self) == count;
            if is_settled {
                break;
            }
        }
        let after = self.server.lock().unwrap().writes.clone();
        assert!(is_settled, "{error}: written again: {after:?}");
        self.server.lock().unwrap().revert(before);
        self.sync();
    }

    /// One pass that does not fail.
    pub(super) async fn passes(&mut self) {
        let result = self.pass().await;
        assert!(result.is_ok(), "{result:?}");
    }

    /// Passes until one writes nothing; returns the last result.
    pub(super) async fn settle(&mut self) -> Outcome {
        for _ in 0..20 {
            let before = self.server.lock().unwrap().writes.len();
            let result = self.pass().await;
            if self.server.lock().unwrap().writes.len() == before {
                return result;
            }
        }
        panic!("never settles: {:?}", self.writes());
    }

    pub(super) fn time(&self) -> String {
        (self.ctx.clock)().0.to_string()
    }
}

fn all<K: DeserializeOwned>(
    objects: &std::collections::BTreeMap<api::Place, Value>,
    collection: &str,
) -> Vec<K> {
    let found = objects.iter().filter(|((c, _), _)| c == collection);
    found
        .map(|(_, value)| serde_json::from_value(value.clone()).unwrap())
        .collect()
}

pub(super) fn class(name: &str, cpus: u32) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineClass",
        "metadata": { "name": name, "namespace": "ns" },
        "spec": { "hardware": { "cpus": cpus, "memory": "512Mi" } },
    })
}

pub(super) fn image(name: &str) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": name, "namespace": "ns" },
        "spec": { "source": { "http": { "url": "https://images.example/debian.qcow2" } } },
    })
}

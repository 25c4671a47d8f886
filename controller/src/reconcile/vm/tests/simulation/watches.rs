//! The watches of one process of the controller, each with a lag of its own.
//!
//! ```text
//! list: Init, InitApply … ─► InitDone ─► one event after the other ─┬─► breaks off: an outage, list again
//!           └─ broken off in the middle: list again ◄───────────────┘
//! ```
//!
//! Invariant: a kind's events come in order and none is left out, except that a list may have overtaken it.
//! Failure: as scheduled; what was broken off in a list has changed no store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::names;
use fastrand::Rng;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::nodes::NODE_NAMES;
use super::plan::{Fault, Kind};
use super::world::{World, some_time};
use crate::intake::{Intake, Wakes};
use crate::reconcile::vm::tests::api::{Place, Shown, State};
use crate::reconcile::vm::tests::bench::{
    BACKUPS, CACHES, CLASSES, GROUPS, IMAGES, NODES, PODS, SETS, SNAPSHOTS, SYSTEM_TASKS, TASKS,
    VMS,
};
use crate::stores::{Agents, Feed, Feeds};

/// What agents and daemons do beside the tasks that all versions know.
const KINDS: [&str; 6] = [
    "Provision",
    "Snapshot",
    "Revert",
    "DeleteSnapshot",
    "Backup",
    "DeleteBackup",
];
/// What they do with images.
const IMAGE_KINDS: [&str; 2] = ["InspectImage", "PullImage"];
/// The target of backups.
pub(super) const TARGET: &str = "store";

/// Between two renewals of an agent's lease.
const RENEWAL: Duration = Duration::from_secs(10);

struct Watch {
    world: Arc<World>,
    collections: &'static [&'static str],
    random: Rng,
    /// Longest lag of an event, in milliseconds.
    lag: u64,
    /// Number of log entries that were taken in.
    at: usize,
}

/// Starts all of them; they end with the returned set.
pub(super) fn start(
    world: &Arc<World>,
    incarnation: usize,
    mut feeds: Feeds,
    intake: &Intake,
) -> JoinSet<()> {
    macro_rules! empty {
        ($($feed:ident),+) => {$(
            feeds.$feed.apply(Event::Init);
            feeds.$feed.apply(Event::InitDone);
        )+};
    }
    empty!(
        cluster_images,
        backup_schedules,
        claims,
        data_volumes,
        volume_snapshots,
        networks,
        storage_classes,
        quotas,
        limit_ranges,
        namespaces
    );
    let mut set = JoinSet::new();
    macro_rules! watch {
        ($($feed:ident: $($collection:expr),+;)+) => {$(
            let watch = Watch::new(world, incarnation, stringify!($feed), &[$($collection),+]);
            set.spawn(watch.follow(feeds.$feed, intake.clone()));
        )+};
    }
    watch! {
        vms: VMS;
        pods: PODS;
        tasks: TASKS, SYSTEM_TASKS;
        classes: CLASSES;
        images: IMAGES;
        image_caches: CACHES;
        nodes: NODES;
        groups: GROUPS;
        replica_sets: SETS;
        snapshots: SNAPSHOTS;
        backups: BACKUPS;
    }
    set.spawn(leases(Arc::clone(world), intake.agents(), intake.clone()));
    set
}

impl Watch {
    fn new(
        world: &Arc<World>,
        incarnation: usize,
        kind: &str,
        collections: &'static [&'static str],
    ) -> Self {
        let mut random = world.plan.random(&format!("{kind} of {incarnation}"));
        let lag = [5, 300, 3_000, 20_000][random.usize(..4)];
        Self {
            world: Arc::clone(world),
            collections,
            random,
            lag,
            at: 0,
        }
    }

    async fn follow<K>(mut self, mut feed: Feed<K>, intake: Intake)
    where
        K: Wakes + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    {
        loop {
            self.list(&mut feed, &intake).await;
            let mut changes = self.world.changes();
            while !self.breaks_off() {
                match self.next() {
                    Some(shown) => {
                        self.wait().await;
                        let object = decoded(&shown.object);
                        let event = if shown.is_removed {
                            Event::Delete(object)
                        } else {
                            Event::Apply(object)
                        };
                        intake.take(&feed.apply(event));
                    }
                    None => changes.changed().await,
                }
            }
            let outage = some_time(&mut self.random, 10, 60_000);
            self.world.sleep_while_faulty(outage).await;
        }
    }

    async fn list<K>(&mut self, feed: &mut Feed<K>, intake: &Intake)
    where
        K: Wakes + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    {
        loop {
            self.wait().await;
            let objects = self.listed();
            // One that breaks off in the middle begins again.
            let breaks_off = self.breaks_off();
            let most = if breaks_off {
                self.random.usize(..=objects.len())
            } else {
                objects.len()
            };
            feed.apply(Event::Init);
            for object in &objects[..most] {
                feed.apply(Event::InitApply(decoded(object)));
                self.wait().await;
            }
            if !breaks_off {
                intake.take(&feed.apply(Event::InitDone));
                return;
            }
        }
    }

    /// All objects as they are now.
    fn listed(&mut self) -> Vec<Value> {
        let is_ours = |place: &Place| self.collections.contains(&place.0.as_str());
        let read = |state: &mut State| {
            let all = state.objects.iter().filter(|(place, _)| is_ours(place));
            let all: BTreeMap<_, _> = all.map(|(p, o)| (p.clone(), o.clone())).collect();
            let at = state.log.as_ref().map_or(0, Vec::len);
            (all, at)
        };
        let (all, at) = self.world.on_server(read);
        self.at = at;
        all.into_values().collect()
    }

    /// The next event of the kind, if there is one.
    fn next(&mut self) -> Option<Shown> {
        let collections = self.collections;
        let from = self.at;
        let found = self.world.on_server(|state| {
            let log = state.log.as_deref().unwrap_or_default();
            let mut rest = log.iter().enumerate().skip(from);
            let is_ours = |shown: &Shown| collections.contains(&shown.place.0.as_str());
            let found = rest.find(|(_, shown)| is_ours(shown));
            found.map_or(Err(log.len()), |(at, shown)| Ok((at + 1, shown.clone())))
        });
        match found {
            Ok((at, shown)) => {
                self.at = at;
                Some(shown)
            }
            Err(at) => {
                self.at = at;
                None
            }
        }
    }

    fn breaks_off(&mut self) -> bool {
        let is_now = self.random.u8(..30) == 0;
        is_now && self.world.has(Fault::Relists)
    }

    async fn wait(&mut self) {
        let most = if self.world.has(Fault::Lag) {
            self.lag
        } else {
            5
        };
        let length = some_time(&mut self.random, 1, most);
        sleep(length).await;
    }
}

fn decoded<K: DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}

/// The leases of agents: those of nodes that report are renewed.
async fn leases(world: Arc<World>, agents: Agents, intake: Intake) {
    let mut kinds = KINDS.to_vec();
    if world.includes(Kind::Images) {
        kinds.extend(IMAGE_KINDS);
    }
    let target = format!("{}{TARGET}", names::BACKUP_TARGET);
    let features = [
        names::MEMORY_SNAPSHOTS,
        names::DISK_BACKUPS,
        target.as_str(),
    ];
    let facts = json!({
        "daemon": { "reachable": true, "taskKinds": kinds },
        "features": features,
    });
    let lease = |node: &str, renewal: u64| -> Lease {
        let lease = json!({
            "metadata": {
                "name": format!("vmlet-node-{node}"),
                "annotations": { names::NODE_FACTS: facts.to_string() },
            },
            "spec": { "renewTime": format!("2026-01-01T00:00:00.{renewal:06}Z") },
        });
        decoded(&lease)
    };
    agents.apply(&Event::Init);
    for node in NODE_NAMES {
        agents.apply(&Event::InitApply(lease(node, 0)));
    }
    agents.apply(&Event::InitDone);
    for renewal in 1.. {
        sleep(RENEWAL).await;
        for node in NODE_NAMES {
            let reports = world.look_at_nodes().reports(node);
            if reports && agents.apply(&Event::Apply(lease(node, renewal))) {
                intake.agents_can_do_more();
            }
        }
    }
}

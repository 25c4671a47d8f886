//! The watches: they pass events of the API server to the feeds and then to the queue.
//!
//! Invariant: each store has one watch; a change is in its store before it is in the queue; nothing
//! is requested on a timer; image caches and the leases of agents count in the controller's own
//! namespace only. Kinds of CDI, Multus and storage systems, and replica sets, may come later: their
//! definitions are watched until then. An object that cannot be read stops no watch and keeps no store from being filled.
//! Failure: a watch that breaks off begins again after a delay that grows to 30 s, and is counted;
//! until it is back its store shows what was last known.

mod agents;
mod late;
mod unreadable;

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crds::guard::Guarded;
use crds::names::POD_ROLE_LABEL;
use futures_util::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{Config, Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use service::telemetry::one_line;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::events::Events;
use crate::intake::{Intake, Wakes};
use crate::metrics::Metrics;
use crate::reconcile::image::{foreign, keep_ours};
use crate::stores::{Feed, Feeds, Stores};
use unreadable::Unreadable;

/// Objects of one page of a list. A user may make an object as large as the API server takes, and no
/// schema can bound `dataVolumeTemplates[].spec`, whose fields others define. kube holds a page twice
/// before it decodes the first object:
///
/// ```text
/// 20 objects × 1.5 MiB (etcd's limit) × 2             =  60 MiB for a kind
/// 20 objects × 3 MiB (the limit of a request) × 2     = 120 MiB for a kind, if JSON is twice what etcd has
/// 60 MiB × 12 kinds that users write, listed together = 720 MiB
/// ```
///
/// The limit of `deploy/controller/deployment.yaml` is 1 GiB. Smaller pages would cost time: 10,000
/// machines are 500 requests, one after the other, and etcd keeps the state that they read for five
/// minutes.
const PAGE: u32 = 20;

/// What a watch reads: page by page.
fn paged() -> Config {
    Config::default().page_size(PAGE)
}

/// What every watch works with.
#[derive(Clone)]
struct Shell {
    intake: Intake,
    reports: Reports,
    /// Kinds whose stores have been filled once.
    filled: watch::Sender<BTreeSet<&'static str>>,
}

/// Where watches report what they come across.
#[derive(Clone, Debug)]
pub struct Reports {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// About objects.
    pub events: Events,
}

/// Starts all watches; they end with the returned set. `namespace`: the controller's own. `resync`:
/// how often every machine is announced again.
pub fn start(
    client: &Client,
    namespace: &str,
    stores: &Stores,
    feeds: Feeds,
    intake: &Intake,
    reports: Reports,
    resync: Duration,
) -> JoinSet<()> {
    let shell = Shell {
        intake: intake.clone(),
        reports,
        filled: watch::Sender::default(),
    };
    let mut set = JoinSet::new();
    macro_rules! watch {
        ($($name:ident),+) => {$(
            let stream = watcher(Api::all(client.clone()), paged());
            set.spawn(shell.clone().run(stringify!($name), feeds.$name, stream, None));
        )+};
    }
    let vms = watcher(Api::all(client.clone()), paged());
    set.spawn(shell.clone().run("vms", feeds.vms, vms, Some(resync)));
    let ours = paged().labels(POD_ROLE_LABEL);
    let pods = watcher(Api::<Guarded<Pod>>::all(client.clone()), ours);
    set.spawn(shell.clone().run("pods", feeds.pods, pods, None));
    let nodes = watcher(Api::<Guarded<Node>>::all(client.clone()), paged());
    let known = stores.clone();
    let nodes = nodes.map_ok(move |event| {
        let known = &known;
        event.modify(move |node| {
            if let Ok(node) = &mut node.0 {
                keep_ours(node, &foreign(known));
            }
        })
    });
    let of_nodes = shell.clone();
    set.spawn(async move {
        // Which names of images count depends on the image objects. The stores cannot be awaited
        // here: each wakes one waiter, and that is the runner.
        let mut filled = of_nodes.filled.subscribe();
        let both = ["images", "cluster_images"];
        let is_known = |kinds: &BTreeSet<_>| both.iter().all(|kind| kinds.contains(kind));
        // The sender is this task's own.
        let _ = filled.wait_for(is_known).await;
        drop(filled);
        of_nodes.run("nodes", feeds.nodes, nodes, None).await;
    });
    let caches = Api::namespaced(client.clone(), namespace);
    let caches = watcher(caches, paged());
    set.spawn(
        shell
            .clone()
            .run("image_caches", feeds.image_caches, caches, None),
    );
    watch!(
        tasks,
        classes,
        images,
        cluster_images,
        groups,
        snapshots,
        claims,
        storage_classes,
        quotas,
        limit_ranges,
        namespaces
    );
    let agents = intake.agents();
    let leases = shell.clone();
    set.spawn(leases.follow_agents(client.clone(), namespace.to_owned(), agents));
    let sets = shell.clone();
    let snapshots = shell.clone();
    let backups = shell.clone();
    let schedules = shell.clone();
    let volumes = shell.clone();
    let networks = shell;
    set.spawn(volumes.follow_late(late::DATA_VOLUMES, client.clone(), feeds.data_volumes));
    set.spawn(sets.follow_late(late::REPLICA_SETS, client.clone(), feeds.replica_sets));
    set.spawn(backups.follow_late(late::BACKUPS, client.clone(), feeds.backups));
    set.spawn(schedules.follow_late(
        late::BACKUP_SCHEDULES,
        client.clone(),
        feeds.backup_schedules,
    ));
    set.spawn(snapshots.follow_late(
        late::VOLUME_SNAPSHOTS,
        client.clone(),
        feeds.volume_snapshots,
    ));
    set.spawn(networks.follow_late(late::NETWORKS, client.clone(), feeds.networks));
    set
}

impl Shell {
    async fn run<K: Wakes + Clone + std::fmt::Debug + Send + Sync + 'static>(
        self,
        kind: &'static str,
        mut feed: Feed<K>,
        events: impl Stream<Item = Result<Event<Guarded<K>>, Error>> + Send,
        resync: Option<Duration>,
    ) {
        let mut events = pin!(events.default_backoff());
        let mut unreadable = Unreadable::new(kind, &self.reports);
        let mut again = resync.map(|every| {
            let mut timer = interval_at(Instant::now() + every, every);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        });
        loop {
            let due = async {
                match &mut again {
                    Some(timer) => timer.tick().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                event = events.try_next() => match event {
                    Ok(Some(event)) => {
                        let is_filled = matches!(event, Event::InitDone);
                        unreadable.note(&event);
                        if let Some(event) = feed.readable(event) {
                            self.intake.take(&feed.apply(event));
                        }
                        if is_filled {
                            self.filled.send_if_modified(|kinds| kinds.insert(kind));
                        }
                    }
                    Ok(None) => return,
                    Err(error) => {
                        self.reports.metrics.watch_error(kind);
                        tracing::warn!(kind, error = one_line(&error), "watch interrupted");
                    }
                },
                _ = due => {
                    tracing::debug!(kind, "resync completed");
                    self.intake.take(&feed.resync());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use workqueue::{Config as QueueConfig, Shared};

    use super::*;
    use crate::priority::{Additions, Profile};

    const MIB: u64 = 1 << 20;
    /// Most bytes of an object in etcd, as JSON for our kinds: its default, and the API server's.
    const STORED: u64 = MIB * 3 / 2;
    /// Most bytes of a request that the API server reads.
    const REQUESTED: u64 = 3 * MIB;
    /// A page as its bytes arrive, and its text (`kube::Client::request_text`).
    const COPIES: u64 = 2;
    /// Kinds whose objects users of a namespace write: machines, pods, images, groups, replica sets,
    /// snapshots, backups, schedules, claims, and of others data volumes, networks and volume snapshots.
    const OF_USERS: u64 = 12;

    /// The memory that the deployment lets the controller have.
    fn limit() -> u64 {
        let deployment = include_str!("../../deploy/controller/deployment.yaml");
        let given = deployment.split_once("limits: {memory: ").unwrap().1;
        let gibibytes = given.split_once("Gi}").unwrap().0;
        gibibytes.parse::<u64>().unwrap() * 1024 * MIB
    }

    #[test]
    fn pages_of_the_largest_objects_fit_into_the_memory_of_the_controller() {
        let page = |largest: u64| u64::from(PAGE) * largest * COPIES;
        assert!(page(REQUESTED) < limit() / 2);
        // All kinds are listed at the same time, when the controller starts.
        assert!(page(STORED) * OF_USERS < limit() * 3 / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn every_store_is_filled_in_small_pages() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let silent = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            pending::<Result<Response<Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        let (stores, feeds) = Stores::new();
        let metrics = Arc::new(Metrics::default());
        let queue = Shared::with_metrics(QueueConfig::default(), metrics.queue.clone());
        let images = Shared::with_metrics(QueueConfig::default(), metrics.images.clone());
        let intake = Intake::new(
            stores.clone(),
            Profile::page(Additions::ON),
            Arc::new(queue),
            Arc::new(images),
        );
        let reports = Reports {
            metrics,
            events: Events::channel().0,
        };
        let resync = Duration::from_secs(1800);
        let watches = start(&client, "own", &stores, feeds, &intake, reports, resync);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(watches);
        let requests = requests.lock().unwrap();
        let lists = |kind: &str| {
            let path = format!("/{kind}?");
            let lists = requests.iter().filter(|uri| uri.contains(&path));
            lists.cloned().collect::<Vec<_>>()
        };
        // Nodes are read when the images are known.
        for kind in [
            "virtualmachines",
            "pods",
            "virtualmachinetasks",
            "virtualmachineimages",
            "clustervirtualmachineimages",
            "virtualmachineclasses",
            "persistentvolumeclaims",
            "namespaces",
        ] {
            let found = lists(kind);
            let is_small = |uri: &String| uri.contains(&format!("limit={PAGE}"));
            assert!(
                !found.is_empty() && found.iter().all(is_small),
                "{kind}: {requests:?}"
            );
        }
    }
}

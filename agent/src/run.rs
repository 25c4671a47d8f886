//! Connects the parts and runs them until a shutdown is requested.
//!
//! Invariant: the only place where parts meet; when one of them ends by itself, all end.
//! Failure: [`Error`] names the part that could not be started.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crds::guard::Guarded;
use crds::{ImageMapping, NodeConfig, VirtualMachineTask};
use k8s_openapi::api::core::v1::Node;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use nodeapi::Deadlines;
use nodeapi::v1::{MachineEvent, PullEvent, SourceEvent, TaskEvent};
use service::admin_http;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::announce::Announcer;
use crate::config::Config;
use crate::emulation::Emulation;
use crate::facts::Publisher;
use crate::health::{self, Health};
use crate::lease::{self, Owner, Proxy, Renewal};
use crate::manifests::{self, Cluster};
use crate::mappings::Mapper;
use crate::metrics::Metrics;
use crate::node_configs::Configurator;
use crate::orphans::Finder;
use crate::pulls::Reporter;
use crate::scale_down::Keeper;
use crate::sources::Resolver;
use crate::tasks::{Engine, Limits};
use crate::{daemon, tasks};

/// Events of the daemon that may wait for a loop; then the daemon's stream waits.
const QUEUE: usize = 256;
/// Longest time that the parts get to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// Longest wait for a connection to the API server.
const CONNECT: Duration = Duration::from_secs(5);

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file that states how the API server is reached.
    #[error("kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// No kubeconfig, and not in a pod.
    #[error("no kubeconfig is configured, and this is no pod with a service account")]
    InCluster(#[source] kube::config::InClusterError),
    /// The client for the API server.
    #[error("client for the API server")]
    Client(#[source] kube::Error),
    /// The daemon's or the proxy's endpoint.
    #[error("node endpoint")]
    Endpoint(#[source] nodeapi::client::Error),
    /// The health server.
    #[error("health server")]
    Health(#[source] admin_http::Error),
    /// A part ended although no shutdown was requested.
    #[error("a part of the agent ended by itself")]
    Ended,
}

/// Runs the agent until `shutdown` is ready.
///
/// # Errors
///
/// [`Error`] when a part cannot be started, or ends by itself.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let client = client(&config).await?;
    let daemon = nodeapi::connect(&config.node_endpoint, Deadlines::default());
    let daemon = daemon.map_err(Error::Endpoint)?;
    let proxy = match config.proxy_endpoint.as_str() {
        "" => None,
        endpoint => Some(Proxy::connect(endpoint).map_err(Error::Endpoint)?),
    };
    let metrics = Arc::new(Metrics::new());
    let health = Arc::new(Health::default());
    let machines = Arc::new(AtomicU32::new(0));
    let stop = CancellationToken::new();
    let parts = TaskTracker::new();

    if let Some(address) = config.health_listen {
        let server = health::serve(address, Arc::clone(&health), stop.clone());
        parts.spawn(ending(server.await.map_err(Error::Health)?, &stop));
    }
    if let Some(address) = config.metrics_listen {
        let server = health::serve_metrics(address, Arc::clone(&metrics), stop.clone());
        parts.spawn(ending(server.await.map_err(Error::Health)?, &stop));
    }
    let (sender, task_events) = mpsc::channel(QUEUE);
    let counter = Arc::clone(&metrics);
    let following = daemon::follow::<TaskEvent>(daemon.clone(), sender, stop.clone(), move || {
        counter.reconnected();
    });
    parts.spawn(ending(following, &stop));
    let (sender, machine_events) = mpsc::channel(QUEUE);
    let following = daemon::follow::<MachineEvent>(daemon.clone(), sender, stop.clone(), || {});
    parts.spawn(ending(following, &stop));

    let limits = Limits {
        progress: config.limits.progress.get(),
        keep: config.limits.completed_tasks.get(),
    };
    let engine = Engine::new(
        client.clone(),
        daemon.clone(),
        limits,
        Arc::clone(&metrics),
        health,
    );
    let objects: Api<Guarded<VirtualMachineTask>> = Api::all(client.clone());
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={}", config.node));
    let objects = watcher(objects, mine).default_backoff();
    parts.spawn(ending(
        engine.run(objects, task_events, stop.clone()),
        &stop,
    ));

    let publisher = Publisher::new(
        client.clone(),
        config.node.clone(),
        config.limits.guest_facts.get(),
        Arc::clone(&metrics),
        Arc::clone(&machines),
    );
    parts.spawn(ending(publisher.run(machine_events, stop.clone()), &stop));
    let (sender, questions) = mpsc::channel(QUEUE);
    let following = daemon::follow::<SourceEvent>(daemon.clone(), sender, stop.clone(), || {});
    parts.spawn(ending(following, &stop));
    let client_too = client.clone();
    let counter = Arc::clone(&metrics);
    let resolver = Resolver::new(client_too, daemon.clone(), &config.node, counter);
    parts.spawn(ending(resolver.run(questions, stop.clone()), &stop));
    let (sender, pulls) = mpsc::channel(QUEUE);
    let following = daemon::follow::<PullEvent>(daemon.clone(), sender, stop.clone(), || {});
    parts.spawn(ending(following, &stop));
    let counter = Arc::clone(&metrics);
    let reporter = Reporter::new(client.clone(), config.node.clone(), counter);
    parts.spawn(ending(reporter.run(pulls, stop.clone()), &stop));
    let objects: Api<Guarded<ImageMapping>> = Api::all(client.clone());
    let objects = watcher(objects, watcher::Config::default()).default_backoff();
    let mapper = Mapper {
        client: client.clone(),
        daemon: daemon.clone(),
        node: config.node.clone(),
    };
    parts.spawn(ending(mapper.run(objects, stop.clone()), &stop));
    let cluster = Cluster::new(client.clone());
    let manifests = manifests::Keeper {
        client: client.clone(),
        daemon: daemon.clone(),
        cluster: cluster.clone(),
        node: config.node.clone(),
        namespace: config.namespace.clone(),
        interval: config.limits.manifest_interval.get(),
    };
    parts.spawn(ending(manifests.run(stop.clone()), &stop));
    let configurator = Configurator {
        client: client.clone(),
        daemon: daemon.clone(),
        node: config.node.clone(),
        metrics: Arc::clone(&metrics),
    };
    let objects: Api<Guarded<NodeConfig>> = Api::all(client.clone());
    let objects = watcher(objects, watcher::Config::default()).default_backoff();
    let own = watcher::Config::default().fields(&format!("metadata.name={}", config.node));
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let own = watcher(nodes, own).default_backoff();
    parts.spawn(ending(configurator.run(objects, own, stop.clone()), &stop));
    let finder = Finder {
        client: client.clone(),
        daemon: daemon.clone(),
        cluster,
        node: config.node.clone(),
        namespace: config.namespace.clone(),
        times: config.limits.orphans(),
    };
    parts.spawn(ending(finder.run(stop.clone()), &stop));
    let (counted, disks) = watch::channel(None);
    let keeper = Keeper {
        client: client.clone(),
        daemon: daemon.clone(),
        node: config.node.clone(),
        disks: counted,
        metrics: Arc::clone(&metrics),
    };
    parts.spawn(ending(keeper.run(stop.clone()), &stop));
    let (answers, answered) = watch::channel(None);
    let announcer = Announcer {
        client: client.clone(),
        node: config.node.clone(),
        answers: answered,
        metrics: Arc::clone(&metrics),
    };
    parts.spawn(ending(announcer.run(stop.clone()), &stop));
    let renewal = Renewal {
        client,
        daemon,
        proxy,
        boot_id: lease::boot_id(&config.boot_id_file),
        node: config.node,
        owner: Owner::default(),
        namespace: config.namespace,
        machines,
        disks,
        metrics,
        answered: None,
        answers,
        emulation: Emulation::default(),
    };
    parts.spawn(ending(renewal.run(stop.clone()), &stop));
    parts.close();
    tracing::info!(manager = tasks::FIELD_MANAGER, "agent started");

    let is_requested = tokio::select! {
        () = shutdown => true,
        () = stop.cancelled() => false,
    };
    stop.cancel();
    // What does not end in time is done again after the next start.
    let _ = tokio::time::timeout(FAREWELL, parts.wait()).await;
    if is_requested {
        Ok(())
    } else {
        Err(Error::Ended)
    }
}

/// The part, which takes all others with it when it ends.
fn ending(
    part: impl Future<Output = ()> + Send + 'static,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let guard = stop.clone().drop_guard();
    async move {
        part.await;
        drop(guard);
    }
}

async fn client(config: &Config) -> Result<Client, Error> {
    let mut access = match &config.kubeconfig {
        Some(path) => {
            let failed = |source| Error::Kubeconfig {
                path: path.clone(),
                source,
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(failed)?
        }
        None => kube::Config::incluster().map_err(Error::InCluster)?,
    };
    access.connect_timeout = Some(CONNECT);
    Client::try_from(access).map_err(Error::Client)
}

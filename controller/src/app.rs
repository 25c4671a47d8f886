//! Connects the parts: health, lease, watches, queue, passes, events.
//!
//! ```text
//! listen ─► wait for the lease ─► watches ─► stores full ─► passes … stop ─► drain ─► give the lease back
//!                                                             └─ lease lost ─► end at once, exit code 75
//! ```
//!
//! Invariant: before the lease is held nothing is watched and nothing is written; after it is lost
//! nothing is.
//! Failure: [`Error`] states what ended it; the exit code shows whether a restart is enough.

use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use service::admin_http;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::context::{self, Clock, Context};
use crate::events::{self, Events};
use crate::intake::Intake;
use crate::lease::{Fence, Lease, Lost};
use crate::metrics::Metrics;
use crate::operator::Operator;
use crate::stores::Stores;
use crate::{client, health, node_configs, operator, reconcile, runner, watch};

/// The lease was lost: nothing is wrong here, and a new process may try again.
const EX_TEMPFAIL: u8 = 75;

/// Machines that are to be woken by a free slot or the loss of an agent and may wait for that.
const SIGNALS: usize = 256;

/// Why the controller ended although no shutdown was requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address for health and metrics cannot be used.
    #[error(transparent)]
    Health(#[from] admin_http::Error),
    /// The API server cannot be reached with this configuration.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// Another controller acts now, or this one could not renew.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A watch ended, which none ever should.
    #[error("a watch ended")]
    WatchEnded,
}

impl Error {
    /// 75 when another attempt is all that is needed, else 1.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Lost(_) => ExitCode::from(EX_TEMPFAIL),
            Self::Health(_) | Self::Client(_) | Self::WatchEnded => ExitCode::FAILURE,
        }
    }
}

/// Runs until `stop`.
///
/// # Errors
///
/// [`Error`] when it has to end before that.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), Error> {
    let (stores, feeds) = Stores::new();
    let metrics = Arc::new(Metrics::with_stores(&stores));
    let health = health::serve(config.probe_listen, config.listen, Arc::clone(&metrics)).await?;
    let health = tokio::spawn(health);
    let api = client::config(config.kubeconfig.as_deref()).await?;
    let identity = identity(&config);
    let own = client::client(&api, Fence::open(), &metrics)?;
    let mut lease = Lease::new(own, &config.namespace, &config.lease, &identity);
    let fence = if config.lease.enabled {
        tracing::info!(identity, "lease requested");
        if !lease.acquire(&stop).await {
            return Ok(());
        }
        tracing::info!(identity, "lease acquired");
        lease.fence()
    } else {
        Fence::open()
    };
    metrics.leader.set(1);
    let client = client::client(&api, fence, &metrics)?;
    let enabled = config.lease.enabled;
    let work = work(client, config, identity, stores, feeds, metrics, stop);
    let ended = tokio::select! {
        lost = lease.hold(), if enabled => Err(lost.into()),
        ended = work => ended,
    };
    if enabled && ended.is_ok() {
        lease.release().await;
    }
    health.abort();
    ended
}

/// What only the holder of the lease does; ends when it was stopped and every pass has ended.
async fn work(
    client: Client,
    config: Config,
    identity: String,
    stores: Stores,
    feeds: crate::stores::Feeds,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let rules = Arc::new(config.priority.rules());
    let queue = runner::queue(&config, &rules, metrics.queue.clone());
    let queue = Arc::new(queue);
    let images = Arc::new(runner::images::queue(&config, metrics.images.clone()));
    let groups = Arc::new(runner::images::queue(&config, metrics.groups.clone()));
    let sets = metrics.replica_sets.clone();
    let replica_sets = Arc::new(runner::images::queue(&config, sets));
    let backups = runner::images::queue(&config, metrics.backups.clone());
    let backups = Arc::new(backups);
    let schedules = runner::images::queue(&config, metrics.backup_schedules.clone());
    let schedules = Arc::new(schedules);
    let intake = Intake::new(
        stores.clone(),
        (*rules).clone(),
        Arc::clone(&queue),
        Arc::clone(&images),
    )
    .with_groups(Arc::clone(&groups))
    .with_replica_sets(Arc::clone(&replica_sets))
    .with_backups(Arc::clone(&backups), Arc::clone(&schedules));
    let resync = config.runner.resync.get();
    let namespace = &config.namespace;
    let (events, waiting) = Events::channel();
    let events = events.counting(metrics.events_lost.clone());
    let reports = watch::Reports {
        metrics: Arc::clone(&metrics),
        events: events.clone(),
    };
    let mut watches = watch::start(&client, namespace, &stores, feeds, &intake, reports, resync);
    let counted = Arc::clone(&metrics);
    let written = events::write(client.clone(), identity, waiting, counted);
    let written = tokio::spawn(written);
    let clock: Clock = Arc::new(|| Time(jiff::Timestamp::now()));
    let context = Context {
        client,
        stores,
        config: Arc::new(config),
        events,
        metrics,
        clock,
        random: context::random(),
        shared: crate::shared::Shared::default(),
    };
    let (signal, mut signalled) = mpsc::channel(SIGNALS);
    context.shared.slots.wake_by(signal.clone());
    let signals = async {
        while let Some(key) = signalled.recv().await {
            intake.signal(key);
        }
        std::future::pending::<()>().await
    };
    let clock = Arc::clone(&context.clock);
    let own = context.client.clone();
    let counted = Arc::clone(&context.metrics);
    let whole = Operator::new(own, counted, context.events.clone(), clock);
    let whole = tokio::spawn(operator::run(whole, stop.clone()));
    let configs = node_configs::run(context.client.clone(), stop.clone());
    let configs = tokio::spawn(configs);
    let pass =
        |context: Context, key| async move { reconcile::vm::reconcile(&context, &key).await };
    let passes = async {
        let images = runner::images::run(&context, images, stop.clone());
        let groups = runner::groups::run(&context, groups, stop.clone());
        let replica_sets = runner::replica_sets::run(&context, replica_sets, stop.clone());
        let backups = runner::backups::run(&context, backups, stop.clone());
        let schedules = runner::backups::run_schedules(&context, schedules, stop.clone());
        tokio::join!(
            runner::run(&context, queue, rules, stop.clone(), pass),
            images,
            groups,
            replica_sets,
            backups,
            schedules
        );
    };
    tokio::select! {
        () = passes => {}
        _ = watches.join_next() => return Err(Error::WatchEnded),
        () = signals => {}
        () = reconcile::vm::follow_agents(&context, &signal) => {}
    }
    // The events end when nothing is left that could report one.
    drop(watches);
    drop(context);
    let _ = whole.await;
    let _ = configs.await;
    let _ = tokio::time::timeout(events::FLUSH, written).await;
    Ok(())
}

/// The configured name or the host's, and a random part: no two processes are the same one.
fn identity(config: &Config) -> String {
    let mut name = config.lease.identity.clone();
    if name.is_empty() {
        name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{}_{}", name.trim(), &random[..8])
}

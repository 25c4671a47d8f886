//! The controller: its queues, its intake, its watches and its passes, as `app.rs` puts them together.
//!
//! Invariant: what a process knew is gone when it is killed; the next one begins with empty stores.
//! Failure: a pass or a watch that panics is a finding.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use service::settings::Timespan;
use service::telemetry::one_line;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::requests::{self, Life};
use super::watches;
use super::world::{World, some_time};
use crate::config::Config;
use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome};
use crate::intake::Intake;
use crate::metrics::Metrics;
use crate::reconcile::vm::tests::bench::IMAGES;
use crate::reconcile::vm::{follow_agents, reconcile};
use crate::runner;
use crate::stores::Stores;

/// Machines that wait to be woken.
const SIGNALS: usize = 256;
/// No pass is repeated just in case: what waits has an event that wakes it.
const NEVER: Timespan = Timespan::from_secs(1_000_000);
/// How often passes have panicked.
const PANICS: &str = "vmlet_controller_reconcile_panics_total{";

/// What the queues beside that of machines only count; read when the process ends.
struct CountedPanics {
    world: Arc<World>,
    metrics: Arc<Metrics>,
}

impl Drop for CountedPanics {
    fn drop(&mut self) {
        let text = self.metrics.text();
        let counts = text.lines().filter(|line| line.starts_with(PANICS));
        for count in counts.filter(|count| !count.ends_with(" 0")) {
            self.world.finding(&format!("passes panic: {count}"));
        }
    }
}

/// One process after the other, without end.
pub(super) async fn run(world: Arc<World>) {
    let mut random = world.plan.random("process");
    for incarnation in 0.. {
        let life = Arc::new(Life::default());
        let work = work(&world, &life, incarnation);
        tokio::select! {
            biased;
            () = life.ended() => {}
            () = work => {}
        }
        let pause = some_time(&mut random, 100, 60_000);
        world.sleep_while_faulty(pause).await;
        world.note("another controller starts");
    }
}

async fn work(world: &Arc<World>, life: &Arc<Life>, incarnation: usize) {
    let (stores, feeds) = Stores::new();
    let client = requests::client(world, life, incarnation);
    let (mut context, _events) = Context::new(client, stores.clone());
    let mut config = Config::default();
    config.runner.recheck = NEVER;
    let rules = Arc::new(config.priority.rules());
    context.config = Arc::new(config);
    let clock = Arc::clone(world);
    context.clock = Arc::new(move || {
        let now = jiff::Timestamp::from_second(clock.seconds_of_controller());
        Time(now.unwrap())
    });
    let random = world.plan.random(&format!("delays of {incarnation}"));
    let random = Mutex::new(random);
    context.random = Arc::new(move || random.lock().unwrap().f64());
    let config = &context.config;
    let metrics = &context.metrics;
    let queue = Arc::new(runner::queue(config, &rules, metrics.queue.clone()));
    let beside = |metrics| Arc::new(runner::images::queue(config, metrics));
    let images = beside(metrics.images.clone());
    let groups = beside(metrics.groups.clone());
    let replica_sets = beside(metrics.replica_sets.clone());
    let backups = beside(metrics.backups.clone());
    let schedules = beside(metrics.backup_schedules.clone());
    let intake = Intake::new(
        stores,
        (*rules).clone(),
        Arc::clone(&queue),
        Arc::clone(&images),
    )
    .with_groups(Arc::clone(&groups))
    .with_replica_sets(Arc::clone(&replica_sets))
    .with_backups(Arc::clone(&backups), schedules);
    let mut watches = watches::start(world, incarnation, feeds, &intake);
    let ends = async {
        while let Some(ended) = watches.join_next().await {
            world.ended("a watch", ended);
        }
    };
    let (signal, mut signalled) = mpsc::channel(SIGNALS);
    context.shared.slots.wake_by(signal.clone());
    let signals = async {
        while let Some(key) = signalled.recv().await {
            intake.signal(key);
        }
    };
    let _panics = CountedPanics {
        world: Arc::clone(world),
        metrics: Arc::clone(metrics),
    };
    let stop = CancellationToken::new();
    let watched = Arc::clone(world);
    let pass = move |context: Context, key: Key| {
        let world = Arc::clone(&watched);
        async move { watched_pass(&world, &context, &key).await }
    };
    tokio::join!(
        runner::run(&context, queue, rules, stop.clone(), pass),
        runner::images::run(&context, images, stop.clone()),
        runner::groups::run(&context, groups, stop.clone()),
        runner::replica_sets::run(&context, replica_sets, stop.clone()),
        runner::backups::run(&context, backups, stop.clone()),
        follow_agents(&context, &signal),
        signals,
        ends,
    );
}

async fn watched_pass(world: &World, context: &Context, key: &Key) -> Outcome {
    let pass = AssertUnwindSafe(Box::pin(reconcile(context, key)));
    let Ok(outcome) = pass.catch_unwind().await else {
        world.finding(&format!("a pass over {key} panics"));
        return Ok(Flow::Continue);
    };
    match &outcome {
        Ok(flow) => world.note(&format!("pass {key}: {flow:?}")),
        Err(error) => world.note(&format!("pass {key}: {}", one_line(error))),
    }
    outcome
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_panics_is_a_finding() {
    let world = World::new("0/0//".parse().unwrap());
    let unreadable = json!({ "metadata": { "name": "debian" }, "spec": 7 });
    world.on_server(|server| server.create(IMAGES.to_owned(), unreadable));
    let running = timeout(Duration::from_mins(1), run(Arc::clone(&world))).await;
    assert!(running.is_err(), "a controller has no end");
    let [finding] = &world.findings()[..] else {
        panic!("{:?}", world.findings());
    };
    assert!(finding.starts_with("a watch: task "), "{finding}");
}

//! Series of the queues, under the names that other controllers use.
//!
//! Invariant: the label `controller` names the queue: `virtualmachine`, say.
//! The label `priority` is a configured level or `custom`, so that series neither grow nor drift.
//! Failure: none.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use workqueue::{Class, Running, Tally};

/// The queue of machines.
const MACHINES: &str = "virtualmachine";
/// The queue of images, of both kinds.
const IMAGES: &str = "virtualmachineimage";
/// The queue of groups.
const GROUPS: &str = "virtualmachinegroup";
/// The queue of replica sets.
const REPLICA_SETS: &str = "virtualmachinereplicaset";
/// The queue of backups.
const BACKUPS: &str = "virtualmachinebackup";
/// The queue of the schedules of backups.
const BACKUP_SCHEDULES: &str = "virtualmachinebackupschedule";
/// Upper bounds of waiting and working times, in seconds.
const BOUNDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0,
];

type Histograms = Family<Of, Histogram, fn() -> Histogram>;
type LevelHistograms = Family<Level, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    name: &'static str,
    controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Level {
    name: &'static str,
    controller: &'static str,
    priority: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    controller: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

/// The series of one queue. Clones count into the same series.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    name: &'static str,
    depth: Family<Level, Gauge>,
    adds: Family<Of, Counter>,
    retries: Family<Of, Counter>,
    waited: Histograms,
    worked: Histograms,
    unfinished: Family<Of, Seconds>,
    longest: Family<Of, Seconds>,
    dispatches: Family<Level, Counter>,
    first_dispatch: LevelHistograms,
    aged: Family<Of, Counter>,
    reconciles: Family<Ended, Counter>,
    errors: Family<Controller, Counter>,
    terminal: Family<Controller, Counter>,
    panics: Family<Controller, Counter>,
    timeouts: Family<Controller, Counter>,
    seconds: Family<Controller, Histogram, fn() -> Histogram>,
    workers: Family<Controller, Gauge>,
    active: Family<Controller, Gauge>,
}

fn histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

impl QueueMetrics {
    /// Registers the series; returns those of the machines' queue.
    #[rustfmt::skip]
    pub(super) fn register(registry: &mut Registry) -> Self {
        let new = Self {
            name: MACHINES,
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(histogram),
            worked: Family::new_with_constructor(histogram),
            unfinished: Family::default(),
            longest: Family::default(),
            dispatches: Family::default(),
            first_dispatch: Family::new_with_constructor(histogram),
            aged: Family::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            terminal: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            workers: Family::default(),
            active: Family::default(),
        };
        let r = registry;
        r.register("workqueue_depth", "Keys that are ready", new.depth.clone());
        r.register("workqueue_adds", "Keys that became ready", new.adds.clone());
        r.register("workqueue_retries", "Pushes with a delay", new.retries.clone());
        r.register("workqueue_queue_duration_seconds", "Time from ready to dispatch", new.waited.clone());
        r.register("workqueue_work_duration_seconds", "Time from dispatch to its end", new.worked.clone());
        r.register("workqueue_unfinished_work_seconds", "Age of all passes that run, \
            together", new.unfinished.clone());
        r.register("workqueue_longest_running_processor_seconds", "Age of the oldest pass that \
            runs", new.longest.clone());
        r.register("workqueue_dispatches", "Keys that were handed out, by level", new.dispatches.clone());
        r.register("workqueue_dispatch_wait_seconds", "Time from ready to dispatch, by \
            level", new.first_dispatch.clone());
        r.register("workqueue_aged_dispatches", "Keys that were handed out because of their \
            age", new.aged.clone());
        r.register("controller_reconcile", "Passes, by how they ended", new.reconciles.clone());
        r.register("controller_reconcile_errors", "Passes that failed", new.errors.clone());
        r.register("controller_terminal_reconcile_errors", "Passes that failed and wait for a \
            change", new.terminal.clone());
        r.register("controller_reconcile_panics", "Passes that panicked", new.panics.clone());
        r.register("controller_reconcile_timeouts", "Passes that were given up", new.timeouts.clone());
        r.register("controller_reconcile_time_seconds", "Length of a pass", new.seconds.clone());
        r.register("controller_max_concurrent_reconciles", "Workers", new.workers.clone());
        r.register("controller_active_workers", "Passes that run", new.active.clone());
        new.create();
        new
    }

    /// The same series for the queue of images.
    pub(super) fn of_images(&self) -> Self {
        let new = Self {
            name: IMAGES,
            ..self.clone()
        };
        new.create();
        new
    }

    /// The same series for the queue of groups.
    pub(super) fn of_groups(&self) -> Self {
        let new = Self {
            name: GROUPS,
            ..self.clone()
        };
        new.create();
        new
    }

    /// The same series for the queue of replica sets.
    pub(super) fn of_replica_sets(&self) -> Self {
        self.of_another(REPLICA_SETS)
    }

    /// The same series for the queue of backups.
    pub(super) fn of_backups(&self) -> Self {
        self.of_another(BACKUPS)
    }

    /// The same series for the queue of the schedules of backups.
    pub(super) fn of_backup_schedules(&self) -> Self {
        self.of_another(BACKUP_SCHEDULES)
    }

    fn of_another(&self, name: &'static str) -> Self {
        let new = Self {
            name,
            ..self.clone()
        };
        new.create();
        new
    }

    const fn labels(&self) -> Of {
        Of {
            name: self.name,
            controller: self.name,
        }
    }

    const fn controller(&self) -> Controller {
        Controller {
            controller: self.name,
        }
    }

    fn level(&self, class: Class) -> Level {
        Level {
            name: self.name,
            controller: self.name,
            priority: match class {
                Class::Level(number) => number.to_string(),
                Class::Custom => "custom".to_owned(),
            },
        }
    }

    /// Series that exist before anything happened, so that a rate of zero is seen as such.
    fn create(&self) {
        for result in ["error", "requeue_after", "requeue", "success"] {
            let _ = self.reconciles.get_or_create(&Ended {
                controller: self.name,
                result,
            });
        }
        for family in [&self.errors, &self.terminal, &self.panics, &self.timeouts] {
            let _ = family.get_or_create(&self.controller());
        }
        for family in [&self.adds, &self.retries, &self.aged] {
            let _ = family.get_or_create(&self.labels());
        }
        let _ = self.active.get_or_create(&self.controller());
    }

    /// How many workers there are.
    pub fn workers(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.workers.get_or_create(&self.controller()).set(count);
    }

    /// A pass began.
    #[must_use]
    pub fn active(&self) -> Active {
        let gauge = self.active.get_or_create_owned(&self.controller());
        gauge.inc();
        Active(gauge)
    }
}

/// A pass that runs, until this is dropped.
#[derive(Debug)]
pub struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl workqueue::Metrics for QueueMetrics {
    fn depth(&mut self, class: Class, change: i64) {
        self.depth.get_or_create(&self.level(class)).inc_by(change);
    }

    fn added(&mut self) {
        self.adds.get_or_create(&self.labels()).inc();
    }

    fn retried(&mut self) {
        self.retries.get_or_create(&self.labels()).inc();
    }

    fn queued(&mut self, waited: Duration) {
        let seconds = waited.as_secs_f64();
        self.waited.get_or_create(&self.labels()).observe(seconds);
    }

    fn dispatched(&mut self, class: Class, waited: Duration, aged: bool) {
        let level = self.level(class);
        let seconds = waited.as_secs_f64();
        self.first_dispatch.get_or_create(&level).observe(seconds);
        self.dispatches.get_or_create(&level).inc();
        if aged {
            self.aged.get_or_create(&self.labels()).inc();
        }
    }

    fn worked(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.worked.get_or_create(&self.labels()).observe(seconds);
    }

    fn running(&mut self, running: Running) {
        let unfinished = running.unfinished.as_secs_f64();
        self.unfinished
            .get_or_create(&self.labels())
            .set(unfinished);
        let longest = running.longest.as_secs_f64();
        self.longest.get_or_create(&self.labels()).set(longest);
    }

    fn reconciled(&mut self, tally: Tally, took: Duration) {
        let result = tally.result();
        let ended = Ended {
            controller: self.name,
            result,
        };
        self.reconciles.get_or_create(&ended).inc();
        if result == "error" {
            self.errors.get_or_create(&self.controller()).inc();
        }
        let special = match tally {
            Tally::Terminal => Some(&self.terminal),
            Tally::Panic => Some(&self.panics),
            Tally::Timeout => Some(&self.timeouts),
            Tally::Success | Tally::RequeueAfter | Tally::Requeue | Tally::Error => None,
        };
        if let Some(special) = special {
            special.get_or_create(&self.controller()).inc();
        }
        let seconds = self.seconds.get_or_create(&self.controller());
        seconds.observe(took.as_secs_f64());
    }
}

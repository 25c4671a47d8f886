//! Metrics of the controller.
//!
//! Invariant: names are in this file and its children; labels come from fixed tables, except for
//! names of machines and nodes, whose series end with them, because they are made from the stores
//! at each scrape.
//! Failure: none; a metric that is never read costs a few nanoseconds.

mod machines;
mod queue;
#[cfg(test)]
mod tests;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use queue::QueueMetrics;

use crate::stores::Stores;

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Of the machines' queue.
    pub queue: QueueMetrics,
    /// Of the images' queue.
    pub images: QueueMetrics,
    /// Of the groups' queue.
    pub groups: QueueMetrics,
    /// Of the replica sets' queue.
    pub replica_sets: QueueMetrics,
    /// Of the backups' queue.
    pub backups: QueueMetrics,
    /// Of the queue of the schedules of backups.
    pub backup_schedules: QueueMetrics,
    /// Events that were not written.
    pub events_lost: Counter,
    /// 1 while this process holds the lease.
    pub leader: Gauge,
    /// The state of the installation: 0 healthy, 1 warning, 2 error.
    pub system_health: Gauge,
    /// Requests to the API server.
    requests: Family<Request, Counter>,
    /// Watches that broke off.
    watch_errors: Family<Watch, Counter>,
    /// Objects that cannot be read, by kind.
    unreadable: Family<Watch, Gauge>,
    /// 1 once every store was filled.
    pub stores_filled: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Watch {
    kind: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("vmlet");
        let queue = QueueMetrics::register(&mut registry);
        let metrics = Self {
            images: queue.of_images(),
            groups: queue.of_groups(),
            replica_sets: queue.of_replica_sets(),
            backups: queue.of_backups(),
            backup_schedules: queue.of_backup_schedules(),
            queue,
            registry: Registry::default(),
            events_lost: Counter::default(),
            leader: Gauge::default(),
            system_health: Gauge::default(),
            requests: Family::default(),
            watch_errors: Family::default(),
            unreadable: Family::default(),
            stores_filled: Gauge::default(),
        };
        let help = "Kubernetes events that were lost";
        registry.register("events_lost", help, metrics.events_lost.clone());
        let help = "Whether this process holds the lease";
        registry.register("controller_leader", help, metrics.leader.clone());
        let help = "State of the installation: 0 healthy, 1 warning, 2 error";
        registry.register("system_health_status", help, metrics.system_health.clone());
        let help = "Requests to the API server, by method and kind of answer";
        registry.register("api_requests", help, metrics.requests.clone());
        let help = "Watches that broke off and were begun again";
        registry.register("watch_errors", help, metrics.watch_errors.clone());
        let help = "Objects of watched kinds that cannot be read, and are ignored";
        registry.register("unreadable_objects", help, metrics.unreadable.clone());
        let help = "Whether every store has been filled since the start";
        registry.register("stores_filled", help, metrics.stores_filled.clone());
        Self {
            registry,
            ..metrics
        }
    }
}

impl Metrics {
    /// The same, with series of the machines and tasks in these stores.
    #[must_use]
    pub fn with_stores(stores: &Stores) -> Self {
        let mut metrics = Self::default();
        let machines = machines::Machines::new(stores.clone());
        metrics.registry.register_collector(Box::new(machines));
        metrics
    }

    /// A request was answered; `code` 0: it was not.
    pub fn request(&self, method: &http::Method, code: u16) {
        let method = match method.as_str() {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "other",
        };
        let code = match code {
            200..300 => "2xx",
            409 => "409",
            429 => "429",
            400..500 => "4xx",
            500..600 => "5xx",
            _ => "none",
        };
        self.requests.get_or_create(&Request { method, code }).inc();
    }

    /// A watch broke off.
    pub fn watch_error(&self, kind: &'static str) {
        self.watch_errors.get_or_create(&Watch { kind }).inc();
    }

    /// So many objects of a kind cannot be read.
    pub fn unreadable(&self, kind: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.unreadable.get_or_create(&Watch { kind }).set(count);
    }

    /// Whether this process holds the lease and has not listed everything yet: it does nothing
    /// for any machine.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.leader.get() == 1 && self.stores_filled.get() == 0
    }

    /// All metrics in the text format of OpenMetrics.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

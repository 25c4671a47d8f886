//! Everything that a pass may read and call.
//!
//! Invariant: reads come from stores that watches feed; a pass never lists from the API server.
//! Failure: a store that is not ready yet holds the workers back (the runner waits for all of
//! them).

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;

use crate::config::Config;
use crate::events::Events;
use crate::metrics::Metrics;

pub use crate::stores::{Key, Relation, Stores};

/// Time, replaceable in tests.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// A random number from 0 to 1, replaceable in tests.
pub type Random = Arc<dyn Fn() -> f64 + Send + Sync>;

/// What a pass works with.
#[allow(missing_debug_implementations, reason = "clients and stores have none")]
#[derive(Clone)]
pub struct Context {
    /// Writes, and the few live reads that must not be stale. Refuses to write once the lease is
    /// lost.
    pub client: Client,
    /// Reads.
    pub stores: Stores,
    /// Settings.
    pub config: Arc<Config>,
    /// What users see with `kubectl describe`. Never waits.
    pub events: Events,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Now.
    pub clock: Clock,
    /// The random part of delays.
    pub random: Random,
    /// What passes over machines share beside the cluster's objects.
    pub shared: crate::shared::Shared,
}

impl Context {
    /// A context with empty settings and the system's clock; events are dropped until a receiver
    /// takes them from the returned queue.
    #[must_use]
    pub fn new(client: Client, stores: Stores) -> (Self, crate::events::Queue) {
        let (events, queue) = Events::channel();
        let context = Self {
            client,
            stores,
            config: Arc::default(),
            events,
            metrics: Arc::default(),
            clock: Arc::new(|| Time(jiff::Timestamp::now())),
            random: random(),
            shared: crate::shared::Shared::default(),
        };
        (context, queue)
    }
}

/// Numbers of the system.
#[must_use]
pub fn random() -> Random {
    Arc::new(|| f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0)
}

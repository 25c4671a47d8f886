//! The task that updates the status.
//!
//! Invariant: a status is written only when it changed, and at most once a second; events report
//! only what was written; the process's readiness does not depend on it.
//! Failure: a pass that could not read or write everything is repeated after a delay that grows to
//! a minute.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crds::guard::Guarded;
use crds::names::VMLET_NAME;
use crds::{Health, Vmlet, VmletStatus};
use futures_util::{Stream, StreamExt, TryStreamExt};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use service::backoff::Backoff;
use service::telemetry::one_line;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::adapters::Wanted;
use super::assess::{self, Memory};
use super::observe::{Observation, within};
use super::transitions::transitions;
use super::wake::{Wakes, wakes};
use super::{Kind, Rules, consolidate, initial, invalid_request, status};
use crate::context::Clock;
use crate::events::Events;
use crate::metrics::Metrics;

/// Least time between two passes, and so between two writes.
const LEAST: Duration = Duration::from_secs(1);
/// Time between passes without a change: for leases that are not renewed, and resources without a
/// watch.
const USUAL: Duration = Duration::from_secs(30);
/// Longest time between passes when something cannot be read or written.
const LONGEST: Duration = Duration::from_secs(60);
/// Whose fields the status is.
const MANAGER: &str = "vmlet-status";

/// What the task works with.
#[allow(missing_debug_implementations, reason = "a client has none")]
#[derive(Clone)]
pub struct Operator {
    /// Reads and writes.
    pub client: Client,
    /// Where the health is written.
    pub metrics: Arc<Metrics>,
    /// Where transitions are reported.
    pub events: Events,
    /// Now.
    pub clock: Clock,
    /// The version of this program.
    pub version: String,
    /// Our kinds.
    pub definitions: Vec<Wanted>,
}

/// A pass that did not do all it had to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object could not be read.
    #[error("read {VMLET_NAME}")]
    Read(#[source] kube::Error),
    /// Its status could not be written.
    #[error("write the status of {name}")]
    Write {
        /// Of which object.
        name: String,
        /// The reason.
        #[source]
        source: Box<kube::Error>,
    },
    /// Something that the status is made of could not be read; the status names it.
    #[error("not everything could be looked at: {0}")]
    Incomplete(String),
}

impl Operator {
    /// With the version of this program, its kinds and the system's clock.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>, events: Events, clock: Clock) -> Self {
        let definitions = crds::schema::definitions()
            .iter()
            .map(|definition| Wanted {
                name: definition.name_any(),
                version: crds::VERSION.to_owned(),
            })
            .collect();
        Self {
            client,
            metrics,
            events,
            clock,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            definitions,
        }
    }

    /// One pass over the object that counts. Without the object nothing is done.
    ///
    /// # Errors
    ///
    /// [`Error`] for what could not be done; the pass is to be repeated.
    pub async fn pass(&self, memory: &mut Memory) -> Result<(), Error> {
        let api = Api::<Vmlet>::all(self.client.clone());
        let object = within(api.get_opt(VMLET_NAME)).await;
        let object = object.map_err(Error::Read)?;
        let Some(object) = object.filter(|object| object.metadata.deletion_timestamp.is_none())
        else {
            *memory = Memory::default();
            self.metrics.health(None);
            return Ok(());
        };
        let old = object.status.clone().unwrap_or_default();
        let (generation, now) = (object.metadata.generation, (self.clock)());
        let mut new = old.clone();
        if old.conditions.is_empty() {
            status::record(&mut new, &self.version);
            status::summarize(&mut new, &initial(), generation, &now);
            self.metrics.health(new.health);
            self.write(VMLET_NAME, &new).await?;
            self.record_events(&object, &old, &new);
            return Ok(());
        }
        let seen = Observation::read(&self.client, &object.spec, &self.definitions).await;
        let found = assess::assess(&seen, &self.definitions, &self.version, &now, memory);
        let upgrade = (status::recorded(&old) != Some(&self.version)).then_some(&*self.version);
        let rules = Rules::ours(object.spec.strict);
        let summary = consolidate(&found.components, upgrade, &rules);
        if summary.upgraded {
            tracing::info!(version = self.version, "upgrade completed");
            status::record(&mut new, &self.version);
        }
        status::summarize(&mut new, &summary, generation, &now);
        new.nodes = Some(assess::count(&found.nodes));
        new.related_objects =
            status::related(&old.related_objects, &object.spec, &self.definitions, &seen);
        self.metrics.health(new.health);
        if new != old {
            self.write(VMLET_NAME, &new).await?;
            self.record_events(&object, &old, &new);
        }
        let complete = &summary.conditions[0];
        if complete.reason == "ReconcileFailed" {
            return Err(Error::Incomplete(complete.message.clone()));
        }
        Ok(())
    }

    /// Sets a condition on an object of another name: it has no effect.
    ///
    /// # Errors
    ///
    /// [`Error`] when its status could not be written.
    pub async fn refuse(&self, object: &Vmlet) -> Result<(), Error> {
        let name = object.name_any();
        let old = object.status.clone().unwrap_or_default();
        let mut new = old.clone();
        let summary = invalid_request(&name, VMLET_NAME);
        let generation = object.metadata.generation;
        status::summarize(&mut new, &summary, generation, &(self.clock)());
        if new == old {
            return Ok(());
        }
        self.write(&name, &new).await
    }

    fn record_events(&self, object: &Vmlet, old: &VmletStatus, new: &VmletStatus) {
        for one in transitions(old, new) {
            if one.is_warning {
                self.events.warning(object, one.reason, &one.message);
            } else {
                self.events.normal(object, one.reason, &one.message);
            }
        }
    }

    async fn write(&self, name: &str, status: &VmletStatus) -> Result<(), Error> {
        let mut status = status.clone();
        // Conditions of other types belong to others.
        status.conditions.retain(|condition| {
            Kind::ALL
                .iter()
                .any(|kind| kind.as_str() == condition.type_)
        });
        let patch = json!({
            "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
            "kind": "Vmlet",
            "metadata": { "name": name },
            "status": status,
        });
        let api = Api::<Vmlet>::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(patch);
        let written = within(api.patch_status(name, &params, &patch)).await;
        let source = match written {
            Ok(_) => return Ok(()),
            Err(source) => Box::new(source),
        };
        let name = name.to_owned();
        Err(Error::Write { name, source })
    }
}

/// Keeps the status true until `stop`.
pub async fn run(operator: Operator, stop: CancellationToken) {
    let api = Api::<Guarded<Vmlet>>::all(operator.client.clone());
    let objects = watcher(api, watcher::Config::default()).default_backoff();
    let objects = objects.touched_objects().try_filter_map(readable);
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&operator, objects) => {}
    }
}

/// An object that cannot be read is no request.
async fn readable<E>(object: Guarded<Vmlet>) -> Result<Option<Vmlet>, E> {
    let name = object.name_any();
    let read = object.0.inspect_err(|error| {
        tracing::warn!(
            name,
            error = one_line(error),
            "Vmlet object ignored, it cannot be read"
        );
    });
    Ok(read.ok())
}

async fn follow<E: std::fmt::Display>(
    operator: &Operator,
    objects: impl Stream<Item = Result<Vmlet, E>>,
) {
    let mut objects = pin!(objects);
    // Without the object nothing is checked, and nothing is watched.
    let mut watched = None;
    let mut parts = Wakes::new();
    let mut memory = Memory::default();
    let mut retry = Backoff::new(LEAST * 2, LONGEST);
    let mut next = Instant::now();
    let mut last = Instant::now();
    loop {
        tokio::select! {
            changed = objects.next() => match changed {
                Some(Ok(object)) if object.name_any() == VMLET_NAME => {
                    next = next.min(last + LEAST);
                    let namespace = Some(object.spec.watch.namespace);
                    if watched != namespace {
                        parts = wakes(&operator.client, namespace.as_deref().unwrap_or_default());
                        watched = namespace;
                    }
                }
                Some(Ok(object)) => report(operator.refuse(&object).await.err()),
                Some(Err(error)) => tracing::debug!(%error, "vmlets watch failed"),
                None => return,
            },
            Some(()) = parts.next() => next = next.min(last + LEAST),
            () = sleep_until(next) => {
                let passed = Box::pin(operator.pass(&mut memory)).await.err();
                last = Instant::now();
                next = last + if passed.is_some() {
                    retry.failed(last)
                } else {
                    retry.reset();
                    USUAL
                };
                report(passed);
            }
        }
    }
}

fn report(error: Option<Error>) {
    match error {
        None => tracing::debug!("installation status computed"),
        Some(error) => tracing::warn!(error = %one_line(&error), "installation status not written"),
    }
}

impl Metrics {
    /// The installation's health, 0, 1 or 2.
    pub fn health(&self, health: Option<Health>) {
        self.system_health.set(match health {
            None | Some(Health::Healthy) => 0,
            Some(Health::Warning) => 1,
            Some(Health::Error) => 2,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;

    use super::*;

    fn operator(client: Client) -> Operator {
        let metrics = Arc::new(Metrics::default());
        let clock: Clock = Arc::new(|| Time(jiff::Timestamp::UNIX_EPOCH));
        Operator::new(client, metrics, Events::channel().0, clock)
    }

    #[tokio::test]
    async fn an_installation_without_observation_raises_no_alarm() {
        let absent = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
        });
        let body = serde_json::to_vec(&absent).unwrap();
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::builder().status(404);
            let answer = answer.body(Body::from(body.clone())).unwrap();
            async move { Ok::<_, Infallible>(answer) }
        });
        let operator = operator(Client::new(service, "default"));
        operator.metrics.health(Some(Health::Error));
        let mut memory = Memory::default();
        Box::pin(operator.pass(&mut memory)).await.unwrap();
        assert_eq!(operator.metrics.system_health.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_ends_a_pass() {
        let silent =
            tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let operator = operator(Client::new(silent, "default"));
        let mut memory = Memory::default();
        let ended = Box::pin(operator.pass(&mut memory)).await;
        assert!(matches!(ended, Err(Error::Read(_))), "{ended:?}");
    }
}

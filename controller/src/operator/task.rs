//! The pass that updates the status.
//!
//! Invariant: a status is written only when it changed; events report only what was written; a pass
//! that changes nothing reads nothing but resources of others. The process's readiness does not
//! depend on it.
//! Failure: [`Error`]; the pass is to be repeated.

use std::sync::Arc;

use crds::names::VMLET_NAME;
use crds::{Health, Vmlet, VmletStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::adapters::Wanted;
use super::assess::{self, Assessment, Memory};
use super::observe::{Observation, within};
use super::parts::Parts;
use super::transitions::transitions;
use super::{Kind, Rules, consolidate, initial, invalid_request, status};
use crate::context::Clock;
use crate::events::Events;
use crate::metrics::Metrics;

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

/// What a pass is going to write.
struct Draft {
    status: VmletStatus,
    upgraded: bool,
    /// What could not be looked at.
    incomplete: Option<String>,
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

    /// One pass over the object that counts, as its watch has it. Without the object nothing is done.
    ///
    /// # Errors
    ///
    /// [`Error`] for what could not be done; the pass is to be repeated.
    pub(super) async fn pass(
        &self,
        watched: Option<(&Vmlet, &mut Parts)>,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let Some((object, parts)) = watched.filter(|(object, _)| counts(object)) else {
            *memory = Memory::default();
            self.metrics.health(None);
            return Ok(());
        };
        let now = (self.clock)();
        if status_of(object).conditions.is_empty() {
            return self.begin(&now).await;
        }
        let seen = Observation::gather(parts, &self.client, &object.spec, &self.definitions).await;
        let found = assess::assess(&seen, &self.definitions, &self.version, &now, memory);
        let judge = |object: &Vmlet| self.judge(object, &seen, &found, &now);
        let mut draft = judge(object);
        self.metrics.health(draft.status.health);
        if draft.status != status_of(object) {
            // The watch may not have brought the last write yet.
            let Some(object) = self.live().await? else {
                return Ok(());
            };
            draft = judge(&object);
            self.replace(&object, &draft.status).await?;
            if draft.upgraded {
                tracing::info!(version = self.version, "upgrade completed");
            }
        }
        draft
            .incomplete
            .map_or(Ok(()), |text| Err(Error::Incomplete(text)))
    }

    /// Gives a new object its first status.
    async fn begin(&self, now: &Time) -> Result<(), Error> {
        let Some(object) = self.live().await? else {
            return Ok(());
        };
        let mut new = status_of(&object);
        if new.conditions.is_empty() {
            status::record(&mut new, &self.version);
            status::summarize(&mut new, &initial(), object.metadata.generation, now);
            self.metrics.health(new.health);
            self.replace(&object, &new).await?;
        }
        Ok(())
    }

    /// The object as the database has it.
    async fn live(&self) -> Result<Option<Vmlet>, Error> {
        let api = Api::<Vmlet>::all(self.client.clone());
        let object = within(api.get_opt(VMLET_NAME)).await;
        Ok(object.map_err(Error::Read)?.filter(counts))
    }

    fn judge(&self, object: &Vmlet, seen: &Observation, found: &Assessment, now: &Time) -> Draft {
        let old = status_of(object);
        let mut status = old.clone();
        let upgrade = (status::recorded(&old) != Some(&self.version)).then_some(&*self.version);
        let rules = Rules::ours(object.spec.strict);
        let summary = consolidate(&found.components, upgrade, &rules);
        if summary.upgraded {
            status::record(&mut status, &self.version);
        }
        status::summarize(&mut status, &summary, object.metadata.generation, now);
        status.nodes = Some(assess::count(&found.nodes));
        let definitions = &self.definitions;
        status.related_objects =
            status::related(&old.related_objects, &object.spec, definitions, seen);
        let complete = &summary.conditions[0];
        let has_failed = complete.reason == "ReconcileFailed";
        Draft {
            incomplete: has_failed.then(|| complete.message.clone()),
            upgraded: summary.upgraded,
            status,
        }
    }

    /// Writes the status, if it is another, and reports what changed.
    async fn replace(&self, object: &Vmlet, new: &VmletStatus) -> Result<(), Error> {
        let old = status_of(object);
        if *new == old {
            return Ok(());
        }
        self.write(VMLET_NAME, new).await?;
        self.record_events(object, &old, new);
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

/// An object that is being deleted asks for nothing.
fn counts(object: &Vmlet) -> bool {
    object.metadata.deletion_timestamp.is_none()
}

fn status_of(object: &Vmlet) -> VmletStatus {
    object.status.clone().unwrap_or_default()
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
pub(super) mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn operator(client: Client) -> Operator {
        let metrics = Arc::new(Metrics::default());
        let clock: Clock = Arc::new(|| Time(jiff::Timestamp::UNIX_EPOCH));
        Operator::new(client, metrics, Events::channel().0, clock)
    }

    #[tokio::test]
    async fn an_installation_without_observation_raises_no_alarm() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            Err::<Response<Body>, _>(format!("a request: {}", request.uri()))
        });
        let operator = operator(Client::new(service, "default"));
        operator.metrics.health(Some(Health::Error));
        let mut memory = Memory::default();
        Box::pin(operator.pass(None, &mut memory)).await.unwrap();
        assert_eq!(operator.metrics.system_health.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_ends_a_pass() {
        let silent =
            tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let operator = operator(Client::new(silent, "default"));
        let mut parts = Parts::new(&operator.client, "vmlet-system");
        let mut memory = Memory::default();
        let watched = Some((&vmlet("default", 1), &mut parts));
        let ended = Box::pin(operator.pass(watched, &mut memory)).await;
        assert!(matches!(ended, Err(Error::Read(_))), "{ended:?}");
    }

    pub(in crate::operator) fn vmlet(name: &str, version: u8) -> Vmlet {
        let condition = json!({"type": "Available", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let object = json!({
            "metadata": {"name": name, "resourceVersion": version.to_string()},
            "spec": {}, "status": {"conditions": [condition]},
        });
        serde_json::from_value(object).unwrap()
    }
}

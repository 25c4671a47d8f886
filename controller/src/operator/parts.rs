//! What watches know of the parts of the installation.
//!
//! Invariant: a store holds of an object what the status needs, and no more. Definitions and policies
//! are watched by their metadata; one that changed is read once, by name. So a pass without a change
//! reads nothing.
//! Failure: a part whose first list fails, or whose watch fails for [`LASTING`], is an error; the
//! last known objects of other watches that break off count until they are back.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::pending;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crds::guard::Guarded;
use crds::names::{NODE_FACTS, NODE_LEASE_LABEL, NODE_READY};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, select_all};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Pod, PodStatus};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use service::telemetry::one_line;
use tokio::time::Instant;

use super::observe::{Read, get};
use super::wake::{self, changes};

/// How long a watch fails until what it knew counts no more.
const LASTING: Duration = Duration::from_secs(90);

type Metadata<K> = PartialObjectMeta<K>;

/// All parts; those of the installation are in one namespace.
pub(super) struct Parts {
    wakes: SelectAll<BoxStream<'static, ()>>,
    reports: Vec<Report>,
    pub(super) deployments: Part<Deployment>,
    pub(super) daemon_sets: Part<DaemonSet>,
    pub(super) pods: Part<Pod>,
    pub(super) nodes: Part<Node>,
    pub(super) leases: Part<Lease>,
    pub(super) definitions: Bodies<CustomResourceDefinition>,
    pub(super) policies: Bodies<ValidatingAdmissionPolicy>,
    pub(super) bindings: Bodies<ValidatingAdmissionPolicyBinding>,
}

impl Parts {
    /// Watches them; nothing is requested before [`Self::changed`] is polled.
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        let mut watches = Watches::default();
        let labelled = Config::default().labels(&format!("{NODE_LEASE_LABEL}=true"));
        let everywhere = || client.clone();
        let deployments = Api::namespaced(everywhere(), namespace);
        let sets = Api::namespaced(everywhere(), namespace);
        let pods = Api::namespaced(everywhere(), namespace);
        let leases = Api::namespaced(everywhere(), namespace);
        let usual = Config::default;
        Self {
            deployments: watches.add(deployments, usual(), tidy, version),
            daemon_sets: watches.add(sets, usual(), tidy, version),
            pods: watches.add(pods, usual(), keep_restarts, version),
            nodes: watches.add(Api::all(everywhere()), usual(), keep_state, wake::node),
            leases: watches.add(leases, labelled, keep_facts, wake::lease),
            definitions: watches.bodies(client, keep_versions),
            policies: watches.bodies(client, keep_checks),
            bindings: watches.bodies(client, keep_actions),
            wakes: select_all(watches.streams),
            reports: watches.reports,
        }
    }

    /// Returns when something that the status is made of has changed. To be polled for watches to
    /// go on.
    pub(super) async fn changed(&mut self) {
        if self.wakes.next().await.is_none() {
            pending().await
        }
    }

    /// Every watch has listed its objects, or failed to.
    pub(super) fn are_known(&self) -> bool {
        self.reports.iter().all(|report| report.get().is_settled())
    }
}

/// The watches while they are being put together.
#[derive(Default)]
struct Watches {
    streams: Vec<BoxStream<'static, ()>>,
    reports: Vec<Report>,
}

impl Watches {
    /// Watches a kind; `essence` is what counts of an object that `trim` has cut down.
    fn add<K>(
        &mut self,
        api: Api<Guarded<K>>,
        config: Config,
        trim: fn(&mut K),
        essence: fn(&K) -> String,
    ) -> Part<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let writer = Writer::new(());
        let part = Part {
            store: writer.as_reader(),
            report: Report::default(),
        };
        let report = part.report.clone();
        self.reports.push(report.clone());
        let events = watcher(api, config)
            .default_backoff()
            .modify(move |object| trim_readable(object, trim))
            .reflect(writer)
            .inspect(move |event| report.note(event));
        let essence = move |object: &Guarded<K>| wake::readable(object, essence);
        self.streams.push(changes(events, essence).boxed());
        part
    }

    /// Watches the metadata of a kind of the cluster.
    fn bodies<K>(&mut self, client: &Client, trim: fn(&mut K)) -> Bodies<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let api = Api::<Guarded<Metadata<K>>>::all(client.clone());
        Bodies {
            api: Api::all(client.clone()),
            known: self.add(api, Config::default(), tidy, version),
            kept: HashMap::new(),
            trim,
        }
    }
}

/// The objects of a kind, as its watch has them.
pub(super) struct Part<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<Guarded<K>>,
    report: Report,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Part<K> {
    /// All that can be read, by name: one that cannot must not hide the others.
    pub(super) fn all(&self) -> Read<Vec<K>> {
        self.report.get().outcome(Instant::now())?;
        let all = self.store.state();
        let mut found: Vec<K> = all.iter().filter_map(|one| one.0.clone().ok()).collect();
        found.sort_by_cached_key(|one| (one.namespace(), one.name_any()));
        Ok(found)
    }

    /// The one of this name.
    pub(super) fn named(&self, name: &str) -> Read<Option<K>> {
        self.report.get().outcome(Instant::now())?;
        let found = self.store.find(|one| one.name_any() == name);
        match found.as_deref() {
            None => Ok(None),
            Some(Guarded(Ok(object))) => Ok(Some(object.clone())),
            Some(Guarded(Err(unreadable))) => Err(unreadable.to_string()),
        }
    }
}

/// Objects of a kind whose metadata is watched, as they were when it last changed.
pub(super) struct Bodies<K: Resource<DynamicType = ()> + Clone + 'static> {
    api: Api<K>,
    known: Part<Metadata<K>>,
    /// By name: the version and the object.
    kept: HashMap<String, (String, K)>,
    trim: fn(&mut K),
}

impl<K> Bodies<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// The one of this name, which is requested if it is new or changed.
    pub(super) async fn named(&mut self, name: &str) -> Read<Option<K>> {
        let Some(known) = self.known.named(name)? else {
            self.kept.remove(name);
            return Ok(None);
        };
        let version = version(&known);
        if let Some((kept, object)) = self.kept.get(name)
            && *kept == version
        {
            return Ok(Some(object.clone()));
        }
        let Some(mut object) = get(&self.api, name).await? else {
            return Ok(None);
        };
        (self.trim)(&mut object);
        self.kept.insert(name.to_owned(), (version, object.clone()));
        Ok(Some(object))
    }
}

/// How a watch fares.
#[derive(Clone, Default)]
struct Report(Arc<Mutex<Fate>>);

impl Report {
    fn get(&self) -> Fate {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn note<K>(&self, event: &Result<Event<K>, Error>) {
        let mut fate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            // Said before anything is requested.
            Ok(Event::Init) => {}
            Ok(event) => {
                fate.is_listed |= matches!(event, Event::InitDone);
                fate.trouble = None;
            }
            Err(error) => fate.failed(one_line(error).to_string(), Instant::now()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Fate {
    is_listed: bool,
    trouble: Option<Trouble>,
}

/// Failures of which none is long after the one before. A watch that continues says nothing until
/// something changes.
#[derive(Clone, Debug)]
struct Trouble {
    since: Instant,
    last: Instant,
    message: String,
}

impl Fate {
    const fn is_settled(&self) -> bool {
        self.is_listed || self.trouble.is_some()
    }

    fn failed(&mut self, message: String, now: Instant) {
        let before = self.trouble.take();
        let before = before.filter(|before| now.duration_since(before.last) < LASTING);
        self.trouble = Some(Trouble {
            since: before.map_or(now, |before| before.since),
            last: now,
            message,
        });
    }

    fn outcome(&self, now: Instant) -> Read<()> {
        match &self.trouble {
            Some(trouble) if !self.is_listed || trouble.lasts(now) => Err(trouble.message.clone()),
            None if !self.is_listed => Err("not listed yet".to_owned()),
            Some(_) | None => Ok(()),
        }
    }
}

impl Trouble {
    fn lasts(&self, now: Instant) -> bool {
        let is_recent = now.duration_since(self.last) < LASTING;
        is_recent && self.last.duration_since(self.since) >= LASTING
    }
}

/// The version of an object whose every change counts.
fn version(object: &impl ResourceExt) -> String {
    object.resource_version().unwrap_or_default()
}

fn trim_readable<K>(object: &mut Guarded<K>, trim: fn(&mut K)) {
    if let Ok(object) = &mut object.0 {
        trim(object);
    }
}

/// Takes away ownership of fields, and annotations: kubectl keeps a copy of the object there.
fn tidy(object: &mut impl Resource) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.annotations = None;
}

fn keep_restarts(pod: &mut Pod) {
    tidy(pod);
    pod.spec = None;
    let containers = pod
        .status
        .take()
        .and_then(|status| status.container_statuses);
    pod.status = Some(PodStatus {
        container_statuses: containers,
        ..PodStatus::default()
    });
}

fn keep_state(node: &mut Node) {
    tidy(node);
    let unschedulable = node.spec.take().and_then(|spec| spec.unschedulable);
    node.spec = Some(NodeSpec {
        unschedulable,
        ..NodeSpec::default()
    });
    let status = node.status.take().unwrap_or_default();
    let mut conditions = status.conditions;
    if let Some(conditions) = &mut conditions {
        conditions.retain(|c| c.type_ == "Ready" || c.type_ == NODE_READY);
    }
    node.status = Some(NodeStatus {
        conditions,
        runtime_handlers: status.runtime_handlers,
        ..NodeStatus::default()
    });
}

fn keep_facts(lease: &mut Lease) {
    let facts = lease.annotations_mut().remove(NODE_FACTS);
    tidy(lease);
    let facts = facts.map(|facts| (NODE_FACTS.to_owned(), facts));
    lease.annotations_mut().extend(facts);
}

/// Schemas are nearly all of a definition.
fn keep_versions(definition: &mut CustomResourceDefinition) {
    tidy(definition);
    definition.spec.conversion = None;
    for version in &mut definition.spec.versions {
        version.schema = None;
        version.additional_printer_columns = None;
        version.selectable_fields = None;
        version.subresources = None;
    }
}

fn keep_checks(policy: &mut ValidatingAdmissionPolicy) {
    tidy(policy);
    policy.spec = None;
}

fn keep_actions(binding: &mut ValidatingAdmissionPolicyBinding) {
    tidy(binding);
    binding.spec = ValidatingAdmissionPolicyBindingSpec {
        validation_actions: mem::take(&mut binding.spec.validation_actions),
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };
}

#[cfg(test)]
mod tests;

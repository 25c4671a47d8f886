//! The objects and nodes as their watches have them.
//!
//! Invariant: of a node its labels and its report are kept; an event that changes neither changes
//! nothing. An object that cannot be read has no status of ours.
//! Failure: none.

use std::collections::BTreeMap;

use crds::guard::Guarded;
use crds::names::{NODE_DOMAIN, NODE_SETTINGS};
use crds::node_settings::NodeSettingsReport;
use crds::{NodeConfig, NodeConfigStatus};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use service::telemetry::one_line;

use super::status;

/// A node that has Vmlet, or had it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Member {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) report: NodeSettingsReport,
}

/// By name; a list that is being received is apart.
#[derive(Debug)]
struct Store<T> {
    all: BTreeMap<String, T>,
    coming: BTreeMap<String, T>,
    is_listed: bool,
}

/// Everything that statuses are made of.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: Store<NodeConfig>,
    nodes: Store<Member>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            coming: BTreeMap::new(),
            is_listed: false,
        }
    }
}

impl<T: PartialEq> Store<T> {
    /// Takes an event in, of which `read` keeps what counts; returns whether anything changed.
    fn take<K: ResourceExt>(&mut self, event: Event<K>, read: impl Fn(K) -> Option<T>) -> bool {
        match event {
            Event::Init => {
                self.coming.clear();
                false
            }
            Event::InitApply(object) => {
                let name = object.name_any();
                if let Some(kept) = read(object) {
                    self.coming.insert(name, kept);
                }
                false
            }
            Event::InitDone => {
                let coming = std::mem::take(&mut self.coming);
                let is_first = !std::mem::replace(&mut self.is_listed, true);
                let is_other = coming != self.all;
                self.all = coming;
                is_first || is_other
            }
            Event::Apply(object) => {
                let name = object.name_any();
                match read(object) {
                    Some(kept) if self.all.get(&name) == Some(&kept) => false,
                    Some(kept) => {
                        self.all.insert(name, kept);
                        true
                    }
                    None => self.all.remove(&name).is_some(),
                }
            }
            Event::Delete(object) => self.all.remove(&object.name_any()).is_some(),
        }
    }
}

impl Known {
    pub(super) const fn is_complete(&self) -> bool {
        self.objects.is_listed && self.nodes.is_listed
    }

    /// Returns whether a status may be another now.
    pub(super) fn take_object(&mut self, event: Event<Guarded<NodeConfig>>) -> bool {
        self.objects.take(event, |object| {
            let name = object.name_any();
            let read = object.0.inspect_err(|error| {
                let error = one_line(error);
                tracing::warn!(name, error, "NodeConfig ignored, it cannot be read");
            });
            read.ok()
                .filter(|object| object.metadata.deletion_timestamp.is_none())
        })
    }

    /// Returns whether a status may be another now.
    pub(super) fn take_node(&mut self, event: Event<Guarded<PartialObjectMeta<Node>>>) -> bool {
        self.nodes.take(event, |node| node.0.ok().and_then(member))
    }

    /// The statuses that are to be another: name, version of the object, and the status.
    pub(super) fn changes(&self, now: &Time) -> Vec<(String, Option<String>, NodeConfigStatus)> {
        let objects = self.objects.all.iter();
        let changed = objects.filter_map(|(name, object)| {
            let next = status::next(object, &self.nodes.all, now);
            let is_other = object.status.as_ref() != Some(&next);
            is_other.then(|| (name.clone(), object.resource_version(), next))
        });
        changed.collect()
    }

    /// The watch brings it later, with the next version.
    pub(super) fn wrote(&mut self, name: &str, status: NodeConfigStatus) {
        if let Some(object) = self.objects.all.get_mut(name) {
            object.status = Some(status);
        }
    }
}

/// What counts of a node; nothing of one without Vmlet.
fn member(node: PartialObjectMeta<Node>) -> Option<Member> {
    let annotations = node.metadata.annotations.unwrap_or_default();
    let labels = node.metadata.labels.unwrap_or_default();
    let report = annotations.get(NODE_SETTINGS);
    let prefix = format!("{NODE_DOMAIN}/");
    let has_vmlet = report.is_some() || labels.keys().any(|key| key.starts_with(&prefix));
    let report = report.and_then(|text| NodeSettingsReport::read(text));
    has_vmlet.then(|| Member {
        labels,
        report: report.unwrap_or_default(),
    })
}

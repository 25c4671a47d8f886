//! The `NodeConfig` objects of the cluster, and what they come to on a node.
//!
//! Invariant: pure. Objects that match are merged by rising priority, then by name, so that for each
//! setting the last of them counts; at most [`MOST_OBJECTS`] count, those of the highest priority.
//! Failure: none; an object that cannot be read counts as it was when it last could.

use std::collections::{BTreeMap, BTreeSet};

use crds::guard::Guarded;
use crds::node_settings::{MOST_OBJECTS, Observed};
use crds::{NodeConfig, NodeConfigSpec};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use nodeapi::v1::{NodeSetting, SetNodeSettingsRequest};
use service::telemetry::one_line;

/// Most objects that a request names as unknown.
const MOST_UNKNOWN: usize = 64;

/// An object as it could last be read.
#[derive(Debug, Clone, Default)]
struct Object {
    observed: Observed,
    /// `None` if it never could.
    spec: Option<NodeConfigSpec>,
}

/// The objects by name.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: BTreeMap<String, Object>,
    /// A list that is being received.
    coming: BTreeMap<String, Object>,
    is_complete: bool,
}

/// What they come to on a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// The objects that match.
    pub(super) observed: BTreeMap<String, Observed>,
    /// By key.
    pub(super) settings: BTreeMap<&'static str, Setting>,
    /// Objects of which nothing is known: what they gave earlier stays on the node.
    pub(super) unknown: BTreeSet<String>,
}

/// A setting and the object that gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) value: String,
    pub(super) from: String,
}

impl Known {
    /// Whether all objects of the cluster are known.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn apply(&mut self, event: Event<Guarded<NodeConfig>>) {
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(sent) => {
                let name = sent.name_any();
                let object = Object::from(sent).or_last(self.objects.get(&name));
                self.coming.insert(name, object);
            }
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.coming);
                self.is_complete = true;
            }
            Event::Apply(sent) => {
                let name = sent.name_any();
                let object = Object::from(sent).or_last(self.objects.get(&name));
                self.objects.insert(name, object);
            }
            Event::Delete(sent) => drop(self.objects.remove(&sent.name_any())),
        }
    }

    /// What the objects come to on the node with this name and these labels.
    pub(super) fn merge(&self, node: &str, labels: &BTreeMap<String, String>) -> Merged {
        let readable = self.objects.iter();
        let readable = readable.filter_map(|(name, o)| Some((name, o.spec.as_ref()?, &o.observed)));
        let mut matching: Vec<_> = readable
            .filter(|(_, spec, _)| spec.matches(node, labels))
            .collect();
        matching.sort_by_key(|(name, spec, _)| (spec.priority, name.as_str()));
        let beyond = matching.len().saturating_sub(MOST_OBJECTS);
        let unknown = self.objects.iter();
        let unknown = unknown.filter(|(_, object)| object.spec.is_none());
        let mut merged = Merged {
            unknown: unknown.map(|(name, _)| name.clone()).collect(),
            ..Merged::default()
        };
        for (name, spec, observed) in matching.drain(beyond..) {
            merged.observed.insert(name.clone(), observed.clone());
            for (key, value) in spec.settings() {
                let from = name.clone();
                merged.settings.insert(key, Setting { value, from });
            }
        }
        merged
    }
}

impl From<Guarded<NodeConfig>> for Object {
    fn from(sent: Guarded<NodeConfig>) -> Self {
        if let Err(invalid) = &sent.0 {
            let name = sent.name_any();
            let error = one_line(invalid);
            tracing::warn!(
                name,
                error,
                "NodeConfig not read: it counts as it last could"
            );
        }
        let observed = Observed {
            uid: sent.uid().unwrap_or_default(),
            generation: sent.meta().generation.unwrap_or_default(),
        };
        Self {
            observed,
            spec: sent.0.ok().map(|object| object.spec),
        }
    }
}

impl Object {
    /// The last state that could be read, if this one cannot.
    fn or_last(self, last: Option<&Self>) -> Self {
        let same = last.filter(|last| last.observed.uid == self.observed.uid);
        match (&self.spec, same) {
            (None, Some(last)) => last.clone(),
            _ => self,
        }
    }
}

impl Merged {
    /// The request that brings them to the daemon.
    pub(super) fn request(&self) -> SetNodeSettingsRequest {
        let settings = self.settings.iter().map(|(key, setting)| NodeSetting {
            key: (*key).to_owned(),
            value: setting.value.clone(),
            node_config: setting.from.clone(),
        });
        // Of more of them than a request can name the node keeps all, as an earlier daemon does.
        let names = match self.unknown.len() {
            ..=MOST_UNKNOWN => self.unknown.iter().cloned().collect(),
            _ => Vec::new(),
        };
        SetNodeSettingsRequest {
            settings: settings.collect(),
            keep_others: !self.unknown.is_empty(),
            keep_of: names,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn sent(name: &str, generation: i64, spec: &Value) -> Guarded<NodeConfig> {
        let object = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "NodeConfig",
            "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": generation },
            "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    fn known(objects: &[(&str, Value)]) -> Known {
        let mut known = Known::default();
        known.apply(Event::Init);
        for (name, spec) in objects {
            known.apply(Event::InitApply(sent(name, 1, spec)));
        }
        assert!(!known.is_complete());
        known.apply(Event::InitDone);
        assert!(known.is_complete());
        known
    }

    /// The settings of a node in zone a, with the object of each.
    fn settings(known: &Known) -> Vec<(&'static str, String, String)> {
        let labels = [("zone".to_owned(), "a".to_owned())].into();
        let merged = known.merge("n1", &labels);
        let all = merged.settings.into_iter();
        all.map(|(key, one)| (key, one.value, one.from)).collect()
    }

    fn one(key: &'static str, value: &str, from: &str) -> (&'static str, String, String) {
        (key, value.to_owned(), from.to_owned())
    }

    #[test]
    fn the_highest_priority_wins_for_each_setting_and_then_the_last_name() {
        let low = json!({ "priority": -1, "config": { "defaultVcpus": 1, "logLevel": "warn" } });
        let a = json!({ "config": { "defaultVcpus": 2, "maxDownload": "1Gi" } });
        let b = json!({ "config": { "defaultVcpus": 3 } });
        let high = json!({ "priority": 5, "config": { "maxDownload": "9Gi" } });
        let known = known(&[("z-low", low), ("a", a), ("b", b), ("0-high", high)]);
        let expected = [
            one("images.max_download", "9Gi", "0-high"),
            one("log.level", "warn", "z-low"),
            one("vm.default_vcpus", "3", "b"),
        ];
        assert_eq!(settings(&known), expected);
    }

    #[test]
    fn objects_of_other_nodes_give_nothing() {
        let known = known(&[
            (
                "other",
                json!({ "nodeName": "n2", "config": { "logLevel": "warn" } }),
            ),
            (
                "zone",
                json!({ "nodeSelector": { "zone": "b" }, "config": { "defaultVcpus": 2 } }),
            ),
            (
                "own",
                json!({ "nodeName": "n1", "config": { "defaultVcpus": 4 } }),
            ),
        ]);
        assert_eq!(settings(&known), [one("vm.default_vcpus", "4", "own")]);
        let merged = known.merge("n1", &BTreeMap::new());
        assert_eq!(merged.observed.keys().collect::<Vec<_>>(), ["own"]);
    }

    #[test]
    fn a_node_does_not_change_the_label_by_which_it_is_selected() {
        let spec = json!({
            "nodeSelector": { "node.vmlet.dev/accelerator": "kvm" },
            "config": { "accelerator": "tcg", "defaultVcpus": 2 },
        });
        let known = known(&[("a", spec)]);
        let labels = [("node.vmlet.dev/accelerator".to_owned(), "kvm".to_owned())];
        let merged = known.merge("n1", &labels.into());
        assert_eq!(
            merged.settings.keys().collect::<Vec<_>>(),
            [&"vm.default_vcpus"]
        );
    }

    #[test]
    fn an_object_that_cannot_be_read_counts_as_it_last_could() {
        let good = json!({ "config": { "defaultVcpus": 2 } });
        let mut known = known(&[("a", good.clone())]);
        let bad = json!({ "config": { "defaultVcpus": "x" } });
        known.apply(Event::Apply(sent("a", 2, &bad)));
        assert_eq!(settings(&known), [one("vm.default_vcpus", "2", "a")]);
        let merged = known.merge("n1", &BTreeMap::new());
        assert_eq!(merged.observed["a"].generation, 1, "not the bad one");
        assert!(!merged.request().keep_others);
        known.apply(Event::Apply(sent("b", 1, &bad)));
        let request = known.merge("n1", &BTreeMap::new()).request();
        assert!(request.keep_others);
        assert_eq!(
            request.keep_of,
            ["b"],
            "a was read, and ends when it is deleted"
        );
        known.apply(Event::Delete(sent("b", 1, &bad)));
        assert!(!known.merge("n1", &BTreeMap::new()).request().keep_others);
        known.apply(Event::Init);
        known.apply(Event::InitApply(sent("a", 2, &bad)));
        known.apply(Event::InitDone);
        assert_eq!(settings(&known).len(), 1, "also over a new list");
        known.apply(Event::Delete(sent("a", 2, &bad)));
        assert_eq!(settings(&known), []);
        let mut other = sent("a", 1, &bad);
        if let Err(invalid) = &mut other.0 {
            invalid.metadata.uid = Some("another".to_owned());
        }
        known.apply(Event::Apply(sent("a", 1, &good)));
        known.apply(Event::Apply(other));
        assert_eq!(settings(&known), [], "another object of this name");
    }

    #[test]
    fn of_very_many_unknown_objects_the_node_keeps_what_any_gave() {
        let bad = json!({ "config": { "defaultVcpus": "x" } });
        let names: Vec<_> = (0..=MOST_UNKNOWN).map(|n| format!("c{n}")).collect();
        let objects: Vec<_> = names.iter().map(|n| (n.as_str(), bad.clone())).collect();
        let request = known(&objects).merge("n1", &BTreeMap::new()).request();
        assert!(request.keep_others && request.keep_of.is_empty());
    }

    #[test]
    fn of_very_many_objects_those_of_the_highest_priority_count() {
        let spec = |n: usize| json!({ "priority": n, "config": { "defaultVcpus": n + 1 } });
        let objects: Vec<_> = (0..100).map(|n| (format!("c{n}"), spec(n))).collect();
        let objects: Vec<_> = objects
            .iter()
            .map(|(n, s)| (n.as_str(), s.clone()))
            .collect();
        let merged = known(&objects).merge("n1", &BTreeMap::new());
        assert_eq!(merged.observed.len(), MOST_OBJECTS);
        assert!(merged.observed.contains_key("c99") && !merged.observed.contains_key("c0"));
        assert_eq!(merged.settings["vm.default_vcpus"].value, "100");
    }
}

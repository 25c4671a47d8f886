//! The revision of a template: a short hash of what machines are made from.
//!
//! Invariant: it does not depend on the version of Vmlet: fields that have their default count as absent, so
//! that a field which a later version adds gives no set another revision. Power states, labels and
//! annotations do not count: no machine is replaced for them. A template that was not edited keeps the
//! revision of the status, also where another version of Vmlet computed it.
//! Failure: none.

use std::sync::OnceLock;

use crds::{VirtualMachineReplicaSet, VirtualMachineReplicaSetSpec, VirtualMachineSpec};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Fields that are the owner's of each machine once it is made.
const OF_MACHINES: [&str; 4] = ["powerState", "runStrategy", "running", "paused"];

/// The revision of the set's template. That of its status counts until the template is edited: another
/// version of the controller, which knows other fields, may have computed it. Of a set that was edited the
/// hash that this version recorded shows whether the template was.
pub(super) fn current(set: &VirtualMachineReplicaSet) -> String {
    let hash = revision(&set.spec);
    let status = set.status.as_ref().filter(|status| {
        status.observed_generation == set.metadata.generation
            || status.template_hash.as_ref() == Some(&hash)
    });
    let recorded = status.and_then(|status| status.update_revision.clone());
    let is_label = |text: &String| {
        (1..=63).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    recorded.filter(is_label).unwrap_or(hash)
}

/// The revision of the template, as a value of a label.
pub(super) fn revision(spec: &VirtualMachineReplicaSetSpec) -> String {
    let text = normal(&spec.template.spec).to_string();
    let digest = Sha256::digest(text);
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The specification without what has its default. Keys are in alphabetical order.
fn normal(spec: &VirtualMachineSpec) -> Value {
    let mut all = match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    all.retain(|name, _| !OF_MACHINES.contains(&name.as_str()));
    let mut all = Value::Object(all);
    strip(&mut all, schema());
    sorted(all)
}

/// The schema of the specification, with the defaults that the API server fills in.
fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let mut all = crds::schema::definitions().into_iter();
        let machine = all.find(|one| one.spec.names.kind == "VirtualMachine");
        let version = machine.and_then(|machine| machine.spec.versions.into_iter().next());
        let schema = serde_json::to_value(version).unwrap_or_default();
        schema["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
    })
}

/// Removes fields that have their default, or null, at any depth. `false` and 0 stay where they are no
/// default.
fn strip(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let property = |name: &str| match &schema["properties"][name] {
                Value::Null => &schema["additionalProperties"],
                property => property,
            };
            fields.retain(|name, value| !value.is_null() && property(name)["default"] != *value);
            for (name, value) in fields.iter_mut() {
                strip(value, property(name));
            }
        }
        Value::Array(items) => {
            let of_items = &schema["items"];
            items.iter_mut().for_each(|item| strip(item, of_items));
        }
        _ => {}
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut all: Vec<_> = fields.into_iter().collect();
            all.sort_by(|one, other| one.0.cmp(&other.0));
            let all = all.into_iter().map(|(name, value)| (name, sorted(value)));
            Value::Object(all.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn revision_of(spec: Value) -> String {
        let mut set = VirtualMachineReplicaSetSpec::default();
        set.template.spec = serde_json::from_value(spec).unwrap();
        revision(&set)
    }

    /// Sets of an earlier version have machines with this label: another value would replace them.
    #[test]
    fn the_revision_of_a_template_is_the_same_in_each_version() {
        let spec = json!({
            "imageName": "debian", "className": "small", "powerState": "PoweredOn",
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
        });
        let text = r#"{"className":"small","imageName":"debian","volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]}"#;
        let parsed = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(normal(&parsed).to_string(), text);
        let digest = Sha256::digest(text);
        let hash: String = digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(revision_of(spec), hash);
    }

    #[test]
    fn defaults_and_power_states_make_no_other_revision() {
        let plain = revision_of(json!({ "imageName": "debian", "powerState": "PoweredOn" }));
        for same in [
            json!({ "imageName": "debian", "running": false }),
            json!({ "imageName": "debian", "running": true, "powerOffMode": "TrySoft", "paused": true }),
            json!({ "imageName": "debian", "running": true, "powerOffTimeout": "5m", "volumes": [] }),
            json!({ "imageName": "debian", "running": true, "promoteDisksMode": "Online" }),
        ] {
            assert_eq!(revision_of(same.clone()), plain, "{same}");
        }
        for other in [
            json!({ "imageName": "alpine", "running": true }),
            json!({ "imageName": "debian", "running": true, "powerOffMode": "Hard" }),
            json!({ "imageName": "debian", "running": true, "className": "small" }),
            json!({ "imageName": "debian", "running": true, "bootstrap": { "cloudInit": {} } }),
        ] {
            assert_ne!(revision_of(other.clone()), plain, "{other}");
        }
    }

    /// No DHCP is not the default, and 0 seconds are not unlimited.
    #[test]
    fn false_and_zero_are_values_where_they_are_no_default() {
        let dhcp = |more: Value| {
            let mut interface = json!({ "name": "a" });
            json_patch::merge(&mut interface, &more);
            revision_of(json!({ "imageName": "debian", "network": { "interfaces": [interface] } }))
        };
        assert_ne!(dhcp(json!({})), dhcp(json!({ "dhcp4": false })));
        let tolerates = |more: Value| {
            let mut toleration = json!({ "key": "a", "operator": "Exists" });
            json_patch::merge(&mut toleration, &more);
            revision_of(json!({ "imageName": "debian", "tolerations": [toleration] }))
        };
        assert_ne!(
            tolerates(json!({})),
            tolerates(json!({ "tolerationSeconds": 0 }))
        );
        let enabled =
            revision_of(json!({ "imageName": "debian", "network": { "disabled": false } }));
        let disabled =
            revision_of(json!({ "imageName": "debian", "network": { "disabled": true } }));
        assert_eq!(
            enabled,
            revision_of(json!({ "imageName": "debian", "network": {} }))
        );
        assert_ne!(enabled, disabled);
    }
}

//! Who acts on each field of a machine's specification, and when a change takes effect.
//!
//! The controller reports fields that no program acts on in the condition `UnsupportedFeatures`, a
//! pod's revision counts the fields that take effect at the next start, and
//! `docs/kinds/virtualmachine.md` shows this table.
//!
//! Invariant: every field of the schema is here once; a test compares them.
//! Failure: none.

use serde_json::Value;

/// Who acts on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The controller.
    Controller,
    /// The node: daemon, QEMU, guest.
    Node,
    /// Kubernetes: scheduler, volume plugins, CDI.
    Kubernetes,
    /// No program yet.
    NoneYet,
}

/// When a change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// While the machine runs.
    AtOnce,
    /// When the machine starts again.
    NextStart,
    /// Never: the root disk is made from it once, or it is immutable.
    Once,
}

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Below `spec`; `[]` represents each item of a list.
    pub path: &'static str,
    /// Who acts on it.
    pub actor: Actor,
    /// When a change takes effect.
    pub effect: Effect,
    /// What it does less than its name promises, if anything.
    pub limit: &'static str,
}

macro_rules! fields {
    ($( $path:literal $actor:ident $effect:ident $($limit:literal)?; )+) => {
        /// All fields, in the order of the type.
        pub const FIELDS: &[Field] = &[$( Field {
            path: $path,
            actor: Actor::$actor,
            effect: Effect::$effect,
            limit: concat!($($limit)?),
        }, )+];
    };
}

fields! {
    "image.kind" Controller Once;
    "image.name" Controller Once;
    "imageName" Controller Once;
    "source.snapshot.name" Controller Once;
    "source.virtualMachine.name" Controller Once;
    "source.backup.name" Controller Once;
    "className" Node NextStart;
    "hardware.cpus" Node NextStart;
    "hardware.memory" Node NextStart;
    "storageClass" Kubernetes Once;
    "powerState" Controller AtOnce;
    "runStrategy" Controller AtOnce;
    "running" Controller AtOnce;
    "powerOffMode" Controller AtOnce;
    "suspendMode" Controller AtOnce "all modes save the memory without asking the guest";
    "restartMode" Controller AtOnce;
    "powerOffTimeout" Controller AtOnce;
    "nextRestartTime" Controller AtOnce;
    "paused" Controller AtOnce;
    "bootstrap.cloudInit.instanceID" Node NextStart;
    "bootstrap.cloudInit.userData.name" Node NextStart;
    "bootstrap.cloudInit.userData.key" Node NextStart;
    "bootstrap.cloudInit.inlineUserData" Node NextStart;
    "bootstrap.cloudInit.networkData.name" Node NextStart;
    "bootstrap.cloudInit.networkData.key" Node NextStart;
    "bootstrap.cloudInit.inlineNetworkData" Node NextStart;
    "bootstrap.cloudInit.sshKeys" Node NextStart;
    "bootstrap.sysprep.secretName" Node NextStart;
    "network.disabled" Node NextStart;
    "network.hostName" Node NextStart;
    "network.interfaces[].name" Controller NextStart "the guest names its NICs itself";
    "network.interfaces[].networkRef" Node NextStart;
    "network.interfaces[].addresses" Node NextStart "not on the pod network";
    "network.interfaces[].dhcp4" NoneYet NextStart "the guest gets the addresses of the network's \
        plugin by DHCP";
    "network.interfaces[].dhcp6" NoneYet NextStart "the guest gets the addresses of the network's \
        plugin by DHCP";
    "network.interfaces[].macAddr" Node NextStart;
    "volumes[].name" Controller NextStart;
    "volumes[].persistentVolumeClaim.claimName" Kubernetes NextStart;
    "volumes[].persistentVolumeClaim.readOnly" Node NextStart;
    "volumes[].persistentVolumeClaim.root" Node NextStart;
    "volumes[].persistentVolumeClaim.mountPath" Node NextStart;
    "dataVolumeTemplates[].name" Kubernetes Once;
    "dataVolumeTemplates[].spec" Kubernetes Once;
    "readinessProbe.tcpSocket.port" Controller NextStart "the condition Ready follows at once, \
        kubelet's probe at the next start";
    "readinessProbe.tcpSocket.host" Controller NextStart "with a host vmlet on the node probes, and \
        kubelet does not: the condition Ready follows at once";
    "readinessProbe.guestHeartbeat.thresholdStatus" Controller AtOnce;
    "readinessProbe.guestInfo[].key" Controller AtOnce;
    "readinessProbe.guestInfo[].value" Controller AtOnce;
    "readinessProbe.periodSeconds" Controller NextStart "for tcpSocket; the node queries the guest \
        agent every 30 s";
    "readinessProbe.timeoutSeconds" Controller NextStart "for tcpSocket";
    "promoteDisksMode" Node AtOnce "for a linked disk; Online only where the installation has it";
    "minMachineType" Node NextStart;
    "firmware" Node NextStart;
    "biosUUID" Node Once;
    "instanceUUID" Node Once "not for a machine whose root disk is a claim";
    "bootDiskCapacity" Node NextStart "not for a machine whose root disk is a claim";
    "currentSnapshotName" Controller AtOnce;
    "groupName" Controller AtOnce "the label of the pods, and the placement, at the next start";
    "affinity" Kubernetes Once;
    "nodeSelector" Kubernetes NextStart;
    "tolerations" Kubernetes NextStart;
    "topologySpreadConstraints" Kubernetes NextStart;
    "priorityClassName" Kubernetes NextStart;
    "schedulerName" Kubernetes NextStart;
    "template.metadata.labels" Controller NextStart;
    "template.metadata.annotations" Node NextStart;
}

impl Field {
    /// Whether a specification has the field, somewhere.
    #[must_use]
    pub fn is_in(&self, spec: &Value) -> bool {
        let mut found = false;
        visit(spec, self.path, &mut |_| found = true);
        found
    }

    /// Takes the field out of a specification, wherever it is.
    pub fn remove_from(&self, spec: &mut Value) {
        let (parent, name) = self.path.rsplit_once('.').unwrap_or(("", self.path));
        each(spec, parent, &mut |value| {
            if let Value::Object(fields) = value {
                fields.remove(name);
            }
        });
    }
}

/// Calls `act` with each value of that path that is there and not null.
fn visit(value: &Value, path: &str, act: &mut impl FnMut(&Value)) {
    let Some((step, rest)) = split(path) else {
        if !value.is_null() {
            act(value);
        }
        return;
    };
    match step.strip_suffix("[]") {
        Some(list) => {
            for item in value[list].as_array().into_iter().flatten() {
                visit(item, rest, act);
            }
        }
        None => visit(&value[step], rest, act),
    }
}

/// The same, to change them.
fn each(value: &mut Value, path: &str, act: &mut impl FnMut(&mut Value)) {
    let Some((step, rest)) = split(path) else {
        act(value);
        return;
    };
    match step.strip_suffix("[]") {
        Some(list) => {
            let items = value.get_mut(list).and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                each(item, rest, act);
            }
        }
        None => {
            if let Some(value) = value.get_mut(step) {
                each(value, rest, act);
            }
        }
    }
}

fn split(path: &str) -> Option<(&str, &str)> {
    match path.split_once('.') {
        _ if path.is_empty() => None,
        Some(parts) => Some(parts),
        None => Some((path, "")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::schema::definitions;

    /// Fields with parts that Kubernetes defines.
    const OF_PODS: [&str; 3] = ["affinity", "tolerations", "topologySpreadConstraints"];

    /// Paths of the fields that have no fields below.
    fn leaves(path: &str, schema: &Value, all: &mut BTreeSet<String>) {
        let below = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = below(name);
            let items = &field["items"];
            match () {
                () if OF_PODS.contains(&path.as_str()) => drop(all.insert(path)),
                () if items["properties"].is_object() => leaves(&format!("{path}[]"), items, all),
                () if field["properties"].is_object() => leaves(&path, field, all),
                () => drop(all.insert(path)),
            }
        }
    }

    #[test]
    fn the_table_has_every_field_of_the_schema_once() {
        let kind = definitions().into_iter();
        let mut kind = kind.filter(|kind| kind.spec.names.kind == "VirtualMachine");
        let kind = serde_json::to_value(kind.next().unwrap()).unwrap();
        let schema = &kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut fields = BTreeSet::new();
        leaves("", &schema["properties"]["spec"], &mut fields);
        let table: BTreeSet<_> = FIELDS.iter().map(|field| field.path.to_owned()).collect();
        assert_eq!(table, fields);
        assert_eq!(table.len(), FIELDS.len());
    }

    #[test]
    fn a_field_is_found_and_removed_wherever_it_is() {
        let field = |path: &str| *FIELDS.iter().find(|field| field.path == path).unwrap();
        let mut spec = json!({
            "groupName": "g",
            "network": { "interfaces": [{ "name": "a" }, { "name": "b", "dhcp4": false }] },
        });
        assert!(field("groupName").is_in(&spec));
        assert!(field("network.interfaces[].dhcp4").is_in(&spec));
        assert!(!field("network.interfaces[].dhcp6").is_in(&spec));
        assert!(!field("bootstrap.cloudInit.instanceID").is_in(&spec));
        for path in ["groupName", "network.interfaces[].name", "hardware.cpus"] {
            field(path).remove_from(&mut spec);
        }
        assert_eq!(
            spec,
            json!({ "network": { "interfaces": [{}, { "dhcp4": false }] } })
        );
    }
}

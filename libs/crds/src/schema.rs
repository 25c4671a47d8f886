//! The definitions of all kinds, as the API server takes them.
//!
//! Invariant: every string, list and map has an upper bound, so that the cost of each rule has one
//! too; every number has the bounds of the type that reads it, so that what the API server takes
//! can be read.
//! Failure: none.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use kube::CustomResourceExt;

use crate::rules::TIME;
use crate::{
    ClusterVirtualMachineImage, ImageMapping, NodeConfig, VirtualMachine, VirtualMachineBackup,
    VirtualMachineBackupSchedule, VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage,
    VirtualMachineImageCache, VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
    Vmlet,
};

/// Longest string of a field that states no other bound: a name.
const STRING: i64 = 253;
/// Longest word of a quantity.
const QUANTITY: i64 = 32;
/// Longest list, and largest map, of a field that states no other bound.
const COUNT: i64 = 32;
/// What conditions may hold beyond that, as Kubernetes defines them.
const LONG: [(&str, i64); 3] = [("message", 32_768), ("reason", 1024), ("type", 316)];

/// The definitions of all kinds, in alphabetical order of their names.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        VirtualMachine::crd(),
        VirtualMachineClass::crd(),
        VirtualMachineImage::crd(),
        ClusterVirtualMachineImage::crd(),
        VirtualMachineImageCache::crd(),
        VirtualMachineGroup::crd(),
        VirtualMachineReplicaSet::crd(),
        VirtualMachineSnapshot::crd(),
        VirtualMachineBackup::crd(),
        VirtualMachineBackupSchedule::crd(),
        VirtualMachineTask::crd(),
        ImageMapping::crd(),
        NodeConfig::crd(),
        Vmlet::crd(),
    ];
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    for definition in &mut all {
        for version in &mut definition.spec.versions {
            let schema = version.schema.as_mut();
            if let Some(root) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
                finish(root, "");
                show_metadata(root);
                if definition.spec.names.kind == "VirtualMachineReplicaSet" {
                    let path = ["spec", "template", "spec"];
                    let machine = path.into_iter().try_fold(root, |schema, name| {
                        schema.properties.as_mut()?.get_mut(name)
                    });
                    if let Some(machine) = machine {
                        without_edits(machine);
                    }
                }
            }
        }
    }
    all
}

/// Metadata are part of every object: a schema has them only for the path of a rule about them.
fn show_metadata(root: &mut JSONSchemaProps) {
    let rules = root.x_kubernetes_validations.iter().flatten();
    let mut paths = rules.filter_map(|rule| rule.field_path.as_deref());
    if paths.any(|path| path == ".metadata") {
        let metadata = JSONSchemaProps {
            type_: Some("object".to_owned()),
            ..JSONSchemaProps::default()
        };
        let properties = root.properties.get_or_insert_default();
        properties.entry("metadata".to_owned()).or_insert(metadata);
    }
}

/// Removes the rules about edits: what a machine cannot change, a template can.
fn without_edits(schema: &mut JSONSchemaProps) {
    let is_of_value =
        |rule: &ValidationRule| !rule.rule.contains("oldSelf") && rule.optional_old_self.is_none();
    if let Some(rules) = &mut schema.x_kubernetes_validations {
        rules.retain(is_of_value);
    }
    for property in schema.properties.iter_mut().flatten() {
        without_edits(property.1);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_edits(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        without_edits(values);
    }
}

/// Takes the description of a type away, so that that of the field is shown.
pub(crate) fn without_description(schema: &mut schemars::Schema) {
    schema.remove("description");
}

/// Gives a field what its type alone does not say.
fn finish(schema: &mut JSONSchemaProps, name: &str) {
    // An explicit null then is the same as an absent field, for rules and defaults too.
    schema.nullable = None;
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.max_length.get_or_insert(QUANTITY);
    }
    match schema.type_.as_deref() {
        Some("string") => finish_string(schema, name),
        Some("integer") => finish_integer(schema),
        Some("array") => {
            schema.max_items.get_or_insert(COUNT);
        }
        _ => {}
    }
    for (name, property) in schema.properties.iter_mut().flatten() {
        finish(property, name);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        finish(items, "");
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        schema.max_properties.get_or_insert(COUNT);
        finish(values, "");
        if let Some("string") = values.type_.as_deref() {
            // Values of labels and annotations.
            values.max_length = Some(8192);
        }
    }
}

fn finish_string(schema: &mut JSONSchemaProps, name: &str) {
    if schema.enum_.is_some() {
        return;
    }
    if schema.format.as_deref() == Some("date-time") {
        schema.pattern.get_or_insert_with(|| TIME.to_owned());
    }
    let long = LONG.iter().find(|(field, _)| *field == name);
    let bound = match schema.format.as_deref() {
        Some("date-time") => 40,
        _ => long.map_or(STRING, |(_, bound)| *bound),
    };
    schema.max_length.get_or_insert(bound);
}

/// The API server knows only the signed formats.
fn finish_integer(schema: &mut JSONSchemaProps) {
    let bounds = match schema.format.as_deref() {
        Some("uint32") => Some((0.0, f64::from(u32::MAX))),
        Some("uint16") => Some((0.0, f64::from(u16::MAX))),
        Some("int32") => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        _ => None,
    };
    if let Some((least, most)) = bounds {
        schema.minimum = Some(schema.minimum.unwrap_or(least).max(least));
        schema.maximum = Some(schema.maximum.unwrap_or(most).min(most));
        if schema.format.as_deref() != Some("int32") {
            schema.format = Some("int64".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;

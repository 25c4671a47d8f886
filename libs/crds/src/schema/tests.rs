//! What must hold for every field of every kind.
//!
//! Invariant: a field that is added without a bound or a description fails here.
//! Failure: the paths of all such fields.

use serde_json::Value;

use super::*;

mod derived;

/// Every schema below `schema`, with its path.
fn walk(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    see(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, see);
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            walk(&format!("{path}[]"), &schema[part], see);
        }
    }
}

fn all(mut see: impl FnMut(&str, &Value)) {
    for definition in definitions() {
        let kind = definition.spec.names.kind.clone();
        let text = serde_json::to_value(definition).unwrap();
        let schema = &text["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk(&kind, schema, &mut see);
    }
}

#[test]
fn every_string_list_map_and_number_has_a_bound() {
    let mut unbound = Vec::new();
    all(|path, schema| {
        let bound = match schema["type"].as_str() {
            Some("string") => schema["enum"].is_array() || schema["maxLength"].is_number(),
            Some("array") => schema["maxItems"].is_number(),
            Some("integer") => schema["format"] == "int64" || schema["maximum"].is_number(),
            Some("object") if schema["additionalProperties"].is_object() => {
                schema["maxProperties"].is_number()
            }
            None if schema["x-kubernetes-int-or-string"] == true => schema["maxLength"].is_number(),
            _ => true,
        };
        if !bound {
            unbound.push(path.to_owned());
        }
    });
    assert_eq!(unbound, Vec::<String>::new());
}

/// kubectl shows the field of a refusal, and `<nil>` in its place for a rule of the whole object.
#[test]
fn every_rule_of_a_whole_object_names_a_field() {
    let mut paths = Vec::new();
    all(|path, schema| {
        let rules = schema["x-kubernetes-validations"].as_array();
        for rule in rules.into_iter().flatten().filter(|_| !path.contains('.')) {
            let named = rule["fieldPath"].as_str().unwrap_or_default();
            let field = named
                .split('.')
                .skip(1)
                .fold(schema, |schema, part| &schema["properties"][part]);
            assert!(!named.is_empty() && field.is_object(), "{path}: {rule}");
            paths.push(named.to_owned());
        }
    });
    assert!(paths.contains(&".spec.imageName".to_owned()), "{paths:?}");
}

/// What the API server stores there has no bound of ours: its reader must have one.
#[test]
fn objects_of_others_are_where_they_are_read_within_bounds() {
    let mut free = Vec::new();
    all(|path, schema| {
        if schema["x-kubernetes-preserve-unknown-fields"] == true
            || schema["additionalProperties"] == true
            || schema["type"].is_null() && schema["x-kubernetes-int-or-string"] != true
        {
            assert!(schema["maxProperties"].is_number(), "{path}");
            free.push(path.to_owned());
        }
    });
    // The second is refused. The first, the third and the last two are kept as text; the other one is a copy of a
    // class, which only the controller writes.
    let known = [
        "VirtualMachineBackup.status.manifest",
        "VirtualMachineReplicaSet.spec.template.spec.dataVolumeTemplates[].spec",
        "VirtualMachine.spec.dataVolumeTemplates[].spec",
        "VirtualMachine.status.classSpec",
        "VirtualMachine.status.savedDevices",
        "VirtualMachineSnapshot.status.manifest",
    ];
    assert_eq!(free, known);
}

#[test]
fn every_field_has_a_description() {
    let mut silent = Vec::new();
    all(|path, schema| {
        let is_field = !path.ends_with("[]") && path.contains('.');
        let is_root = path.split('.').count() == 2;
        if is_field
            && !is_root
            && schema["description"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        {
            silent.push(path.to_owned());
        }
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(!description.starts_with("Auto-generated"), "{path}");
    });
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn only_formats_that_the_api_server_knows_are_used() {
    all(|path, schema| {
        let format = schema["format"].as_str();
        assert!(
            matches!(format, None | Some("int32" | "int64" | "date-time")),
            "{path}: {format:?}"
        );
        assert!(schema["nullable"].is_null(), "{path}");
    });
}

#[test]
fn lists_of_named_things_are_maps() {
    let mut plain = Vec::new();
    all(|path, schema| {
        let items = &schema["items"];
        let named =
            items["properties"]["type"].is_object() && items["properties"]["status"].is_object();
        if named && schema["x-kubernetes-list-type"] != "map" {
            plain.push(path.to_owned());
        }
    });
    assert_eq!(plain, Vec::<String>::new());
}

#[test]
fn every_kind_has_a_short_name_or_a_short_one_and_is_in_our_category() {
    for definition in definitions() {
        let names = &definition.spec.names;
        let short = names.short_names.as_deref().unwrap_or_default();
        assert!(!short.is_empty() || names.kind == "Vmlet", "{}", names.kind);
        let categories = names.categories.as_deref().unwrap_or_default();
        assert!(
            categories.iter().any(|one| one == "vmlet-all"),
            "{}",
            names.kind
        );
    }
}

/// A machine cannot change some of its fields; the template of a set can.
#[test]
fn no_rule_of_a_template_is_about_an_edit() {
    let mut rules = 0;
    all(|path, schema| {
        let own = schema["x-kubernetes-validations"].as_array();
        for rule in own
            .into_iter()
            .flatten()
            .filter(|_| path.contains(".template.spec"))
        {
            let text = rule["rule"].as_str().unwrap_or_default();
            assert!(!text.contains("oldSelf"), "{path}: {text}");
            rules += 1;
        }
    });
    assert!(rules > 10, "{rules}");
}

/// The lists of a status, and the most that a program puts there.
const LISTS: [(&str, usize); 27] = [
    ("ClusterVirtualMachineImage.status.disks", 1),
    (
        "ClusterVirtualMachineImage.status.nodeNames",
        crate::VirtualMachineImageStatus::MOST_NODES,
    ),
    (
        "ClusterVirtualMachineImage.status.prePull.nodes",
        crate::PrePullStatus::MOST_NODES,
    ),
    (
        "ClusterVirtualMachineImage.status.update.pulls.nodes",
        crate::PrePullStatus::MOST_NODES,
    ),
    (
        "ClusterVirtualMachineImage.status.versions",
        crate::ImageVersion::MOST,
    ),
    ("VirtualMachineImage.status.disks", 1),
    (
        "VirtualMachineImage.status.nodeNames",
        crate::VirtualMachineImageStatus::MOST_NODES,
    ),
    (
        "VirtualMachineImage.status.prePull.nodes",
        crate::PrePullStatus::MOST_NODES,
    ),
    (
        "VirtualMachineImage.status.update.pulls.nodes",
        crate::PrePullStatus::MOST_NODES,
    ),
    (
        "VirtualMachineImage.status.versions",
        crate::ImageVersion::MOST,
    ),
    // The claims in volumes, and that of the storage class.
    ("VirtualMachine.status.snapshotRevert.earlierClaims", 33),
    ("VirtualMachine.status.network.config.addresses", 16),
    (
        "VirtualMachine.status.network.interfaces",
        crate::guest_facts::INTERFACES,
    ),
    (
        "VirtualMachine.status.network.interfaces[].addresses",
        crate::guest_facts::ADDRESSES,
    ),
    (
        "VirtualMachine.status.rootSnapshots",
        crate::VirtualMachineSnapshotSpec::MOST,
    ),
    ("VirtualMachine.status.stateChangeRequests", 2),
    ("VirtualMachine.status.volumes", 33),
    ("VirtualMachineGroup.status.members", 16 * 64),
    ("VirtualMachineGroup.status.powerChange.tierTimes", 16),
    (
        "VirtualMachineImageCache.status.locations",
        crate::VirtualMachineImageCacheSpec::MOST_LOCATIONS,
    ),
    ("VirtualMachineImageCache.status.locations[].files", 1),
    // The volumes of a machine, and its root disk.
    ("VirtualMachineSnapshot.status.claims", 33),
    (
        "VirtualMachineSnapshot.status.children",
        crate::VirtualMachineSnapshotSpec::MOST,
    ),
    ("Vmlet.status.nodes.bad", crate::VmletStatus::MOST_BAD_NODES),
    (
        "Vmlet.status.nodes.problems",
        crate::VmletStatus::MOST_BAD_NODES,
    ),
    (
        "Vmlet.status.relatedObjects",
        crate::VmletStatus::MOST_RELATED,
    ),
    ("Vmlet.status.versions", 1),
];

/// The API server keeps an owner of each field of each object in a list with keys: with a thousand of them
/// that is more than the list itself.
#[test]
fn a_long_list_of_objects_in_a_status_has_one_owner() {
    let mut seen = Vec::new();
    all(|path, schema| {
        let is_long = LISTS.contains(&(path, 1000)) || LISTS.contains(&(path, 1024));
        if is_long && schema["items"]["type"] == "object" {
            seen.push((
                path.to_owned(),
                schema["x-kubernetes-list-type"] == "atomic",
            ));
        }
    });
    let long = [
        "VirtualMachineGroup.status.members",
        "VirtualMachineImageCache.status.locations",
    ];
    seen.sort();
    assert_eq!(seen, long.map(|path| (path.to_owned(), true)));
}

#[test]
fn every_list_of_a_status_holds_what_programs_put_there() {
    let mut wrong = Vec::new();
    all(|path, schema| {
        let is_list = schema["type"] == "array" && path.contains(".status.");
        if !is_list || path.ends_with(".conditions") {
            return;
        }
        let most = LISTS.iter().find(|(known, _)| *known == path);
        if most.is_none_or(|(_, most)| schema["maxItems"].as_u64() < u64::try_from(*most).ok()) {
            wrong.push(format!("{path}: {most:?}"));
        }
    });
    assert_eq!(wrong, Vec::<String>::new());
}

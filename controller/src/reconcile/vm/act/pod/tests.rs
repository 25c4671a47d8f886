//! Pods as snapshots.
//!
//! Invariant: a change of any field of a pod shows in a snapshot.
//! Failure: the difference is printed.

#![allow(
    clippy::needless_pass_by_value,
    reason = "tests write values where they are used"
)]

use crds::{IpAssurance, VirtualMachine, names};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource;
use serde_json::{Value, json};

use super::{Plan, instance, placeholder, placement};
use crate::reconcile::vm::prerequisites::{Attachments, Disk, Image, Prerequisites, Size};

const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const BIOS: &str = "11111111-2222-4333-8444-555555555555";
const INSTANCE: &str = "66666666-7777-4888-9999-000000000000";

fn machine(spec: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "metadata": {
            "name": "vm", "namespace": "ns", "uid": UID, "generation": 3,
            "labels": { "not": "copied" }, "annotations": { "not/this": "either" },
        },
        "spec": spec,
    }))
    .unwrap()
}

fn prerequisites() -> Prerequisites {
    Prerequisites {
        size: Size {
            cpus: 2,
            memory: serde_json::from_value(json!("1Gi")).unwrap(),
            requests: serde_json::from_value(json!({ "cpu": "500m" })).unwrap(),
            limits: serde_json::from_value(json!({ "cpu": "2" })).unwrap(),
            runtime_class: "vmlet".to_owned(),
            machine_type: Some("q35".to_owned()),
            cpu_model: Some("host-model".to_owned()),
            node_selector: [("disk".to_owned(), "fast".to_owned())].into(),
            class: Some(("small".to_owned(), "u/1".to_owned())),
        },
        image: Image {
            name: "vmlet.dev/images.example/debian.qcow2".to_owned(),
            is_on_disk: false,
            pull_secret: None,
            ip_assurance: IpAssurance::Guest,
            tls_secret: None,
            has_unused_tls_secret: false,
            url: None,
            object: None,
            claim: None,
            virtual_bytes: None,
        },
        disks: Vec::new(),
        attachments: Attachments::default(),
        ip_assurance: IpAssurance::Guest,
    }
}

fn plan<'a>(vm: &'a VirtualMachine, prerequisites: &'a Prerequisites) -> Plan<'a> {
    Plan {
        vm,
        uid: UID,
        owner: vm.controller_owner_ref(&()).unwrap(),
        prerequisites,
        node: Some("n1"),
        avoid: &[],
        prefer: &[],
        grouping: None,
        disk: Some(UID),
        disk_request: Some(Quantity("20Gi".to_owned())),
        instance_uuid: INSTANCE,
        bios_uuid: BIOS,
        machine_type: Some("pc-q35-7.2"),
        grace_seconds: 300,
        paused: false,
        restore: false,
        is_gated: false,
    }
}

fn text(pod: &Pod) -> String {
    serde_json::to_string_pretty(&serde_json::to_value(pod).unwrap()).unwrap()
}

#[test]
fn the_pod_of_a_plain_machine() {
    let vm =
        machine(json!({ "runStrategy": "Always", "className": "small", "imageName": "debian" }));
    insta::assert_snapshot!(text(&instance(&plan(&vm, &prerequisites()))));
}

#[test]
fn the_pod_of_a_machine_with_everything() {
    let vm = machine(json!({
        "runStrategy": "Always",
        "template": { "metadata": {
            "labels": { "app": "web", "vmlet.dev/role": "provision" },
            "annotations": { "team": "a", "vmlet.dev/vm-disk": "of-another" },
        }},
        "bootstrap": { "cloudInit": {
            "userData": { "name": "seed" }, "sshKeys": ["ssh-ed25519 A", "ssh-ed25519 B"],
        }},
        "network": { "hostName": "web-1" },
        "readinessProbe": { "tcpSocket": { "port": 22 }, "periodSeconds": 5 },
        "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "a", "operator": "Exists" }] },
                { "matchExpressions": [{ "key": "b", "operator": "Exists" }] },
            ],
        }}},
    }));
    let disk = |name: &str, is_filesystem: bool| Disk {
        name: name.to_owned(),
        claim: format!("claim-{name}"),
        is_read_only: name == "iso",
        is_root: false,
        is_block: !is_filesystem,
        is_filesystem,
        mount_path: (name == "files").then(|| "/srv/files".to_owned()),
        file_bytes: Some(9 << 30),
        reverted: None,
    };
    let mut prerequisites = prerequisites();
    prerequisites.disks = vec![
        disk("data", false),
        disk("iso", true),
        disk("logs", true),
        disk("files", true),
    ];
    prerequisites.image.pull_secret = Some("registry".to_owned());
    prerequisites.ip_assurance = IpAssurance::PodIP;
    prerequisites.attachments = Attachments {
        default: Some("ns/blue".to_owned()),
        more: vec![json!({ "name": "green", "namespace": "ns" })],
    };
    let mut plan = plan(&vm, &prerequisites);
    plan.paused = true;
    plan.restore = true;
    let pod = instance(&plan);
    // What a node does not know it reports to the user.
    let annotations = pod.metadata.annotations.clone().unwrap();
    assert_eq!(podspec::unknown_annotations(&annotations), []);
    insta::assert_snapshot!(text(&pod));
}

#[test]
fn the_pod_of_a_machine_whose_root_disk_is_a_claim() {
    let vm = machine(json!({ "runStrategy": "Always" }));
    let mut prerequisites = prerequisites();
    prerequisites.disks = vec![Disk {
        name: "root".to_owned(),
        claim: "root".to_owned(),
        is_read_only: false,
        is_root: true,
        is_block: true,
        is_filesystem: false,
        mount_path: None,
        file_bytes: None,
        reverted: None,
    }];
    let mut plan = plan(&vm, &prerequisites);
    plan.node = None;
    plan.disk = None;
    plan.disk_request = None;
    insta::assert_snapshot!(text(&instance(&plan)));
}

#[test]
fn the_pod_that_chooses_a_node() {
    let vm = machine(json!({
        "runStrategy": "Halted",
        "template": { "metadata": { "labels": { "app": "web" } } },
    }));
    let prerequisites = prerequisites();
    let mut plan = plan(&vm, &prerequisites);
    plan.node = None;
    plan.disk = None;
    plan.is_gated = true;
    insta::assert_snapshot!(text(&placeholder(&plan)));
}

#[test]
fn the_secret_with_user_data_is_a_volume_of_the_instance_alone() {
    let vm = machine(json!({
        "runStrategy": "Always",
        "bootstrap": { "cloudInit": { "userData": { "name": "seed", "key": "first" } } },
    }));
    let disk = Disk {
        name: "vmlet-user-data".to_owned(),
        claim: "claim".to_owned(),
        is_read_only: false,
        is_root: false,
        is_block: true,
        is_filesystem: false,
        mount_path: None,
        file_bytes: None,
        reverted: None,
    };
    let mut prerequisites = prerequisites();
    prerequisites.disks = vec![disk];
    let mut plan = plan(&vm, &prerequisites);
    let spec = |pod: Pod| serde_json::to_value(pod.spec.unwrap()).unwrap();
    let of_instance = spec(instance(&plan));
    assert_eq!(
        of_instance["volumes"][1],
        json!({ "name": "vmlet-user-data0", "secret": {
            "secretName": "seed", "defaultMode": 0o400, "optional": false,
            "items": [{ "key": "first", "path": "first" }],
        }})
    );
    assert_eq!(
        of_instance["containers"][0]["volumeMounts"],
        json!([{
            "name": "vmlet-user-data0", "readOnly": true,
            "mountPath": "/run/vmlet/sources/secret/seed",
        }])
    );
    let volumes = |pod: Pod| spec(pod)["volumes"].as_array().unwrap().len();
    assert_eq!(volumes(placeholder(&plan)), 1);
    plan.restore = true;
    assert_eq!(volumes(instance(&plan)), 1);
}

#[test]
fn network_data_come_from_a_secret_of_their_own_or_the_same() {
    let pod = |network: Value| {
        let vm = machine(json!({
            "runStrategy": "Always",
            "bootstrap": { "cloudInit": { "userData": { "name": "seed" }, "networkData": network } },
        }));
        serde_json::to_value(instance(&plan(&vm, &prerequisites()))).unwrap()
    };
    let source = "/metadata/annotations/vmlet.dev~1cloud-init-network-config-source";
    let items = |keys: &[&str]| {
        json!(
            keys.iter()
                .map(|k| json!({ "key": k, "path": k }))
                .collect::<Vec<_>>()
        )
    };
    let own = pod(json!({ "name": "net" }));
    assert_eq!(
        own.pointer(source),
        Some(&json!("secret/net/network-config"))
    );
    let volumes = &own["spec"]["volumes"];
    assert_eq!(volumes[1]["name"], "vmlet-network-data");
    assert_eq!(volumes[1]["secret"]["secretName"], "net");
    assert_eq!(volumes[1]["secret"]["items"], items(&["network-config"]));
    let mounts = &own["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(mounts[1]["mountPath"], "/run/vmlet/sources/secret/net");

    let same = pod(json!({ "name": "seed", "key": "net" }));
    assert_eq!(same.pointer(source), Some(&json!("secret/seed/net")));
    let volumes = same["spec"]["volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 1);
    assert_eq!(volumes[0]["secret"]["items"], items(&["user-data", "net"]));
}

#[test]
fn answer_files_come_from_a_secret_that_has_some_of_them() {
    let vm = machine(json!({
        "runStrategy": "Always", "bootstrap": { "sysprep": { "secretName": "answers" } },
    }));
    let prerequisites = prerequisites();
    let mut plan = plan(&vm, &prerequisites);
    let pod = serde_json::to_value(instance(&plan)).unwrap();
    let volume = &pod["spec"]["volumes"][0];
    assert_eq!(volume["name"], "vmlet-sysprep");
    let items = ["unattend.xml", "autounattend.xml"].map(|k| json!({ "key": k, "path": k }));
    assert_eq!(volume["secret"]["items"], json!(items));
    assert_eq!(volume["secret"]["optional"], true);
    let mounts = &pod["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(mounts[0]["mountPath"], "/run/vmlet/sources/secret/answers");
    let annotations = instance(&plan).metadata.annotations.unwrap();
    let data = podspec::GuestData::from_pod(&annotations).unwrap().unwrap();
    assert!(data.is_sysprep());
    // A guest that continues has its CD-ROM, and nothing is read again.
    plan.restore = true;
    let pod = instance(&plan);
    assert_eq!(pod.spec.unwrap().volumes, None);
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["vmlet.dev/sysprep-source"], "secret/answers");
}

#[test]
fn inline_data_are_annotations_that_the_node_reads() {
    let user_data = "#cloud-config\nhostname: a\n";
    let vm = machine(json!({
        "runStrategy": "Always",
        "bootstrap": { "cloudInit": {
            "inlineUserData": user_data, "inlineNetworkData": "version: 2",
        } },
    }));
    let pod = instance(&plan(&vm, &prerequisites()));
    assert_eq!(pod.spec.unwrap().volumes, None);
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(
        annotations["vmlet.dev/cloud-init-user-data-script"],
        user_data
    );
    assert_eq!(
        annotations["vmlet.dev/cloud-init-network-config"],
        "version: 2"
    );
    let data = podspec::GuestData::from_pod(&annotations).unwrap().unwrap();
    assert!(data.sources().is_empty() && !data.has_addresses());
    let guest = podspec::GuestName {
        instance_id: "a",
        host_name: "a",
    };
    let made = data.assemble(&guest, &[].into()).unwrap();
    assert_eq!(made.user_data, user_data.as_bytes());
}

/// Otherwise a user who may create a machine could give its pod another user's disk, or an
/// administrator's rights.
#[test]
fn a_template_gives_a_pod_neither_disks_nor_protected_keys() {
    let vm = machine(json!({
        "runStrategy": "Always",
        "template": { "metadata": {
            "labels": { "x.protected/y": "1", "vmlet.dev/vm-uid": "another" },
            "annotations": {
                "vmlet.dev/vm-disk": "another", "vmlet.dev/guest-facts": "{}",
                "vmlet.dev.protected/allow-spoofing": "true", "protected.example/fine": "1",
                "vmlet.dev/shares": "9p",
            },
        }},
    }));
    let prerequisites = prerequisites();
    let mut plan = plan(&vm, &prerequisites);
    plan.disk = None;
    let pod = instance(&plan);
    let annotations = pod.metadata.annotations.unwrap();
    let given: Vec<_> = [
        "vmlet.dev/vm-disk",
        "vmlet.dev/guest-facts",
        "vmlet.dev.protected/allow-spoofing",
    ]
    .into_iter()
    .filter(|key| annotations.contains_key(*key))
    .collect();
    assert!(given.is_empty(), "{given:?}");
    assert!(annotations.contains_key("protected.example/fine"));
    assert_eq!(annotations["vmlet.dev/shares"], "9p");
    let labels = pod.metadata.labels.unwrap();
    assert_eq!(labels["vmlet.dev/vm-uid"], UID);
    assert!(!labels.contains_key("x.protected/y"));
}

#[test]
fn both_pods_are_scheduled_as_the_machine_says() {
    let toleration = json!({ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" });
    let spread = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "a" } },
    });
    let vm = machine(json!({
        "runStrategy": "Always",
        "nodeSelector": { "disk": "slow", "zone": "a" },
        "tolerations": [toleration],
        "topologySpreadConstraints": [spread],
        "priorityClassName": "high",
        "schedulerName": "other",
    }));
    let prerequisites = prerequisites();
    let plan = plan(&vm, &prerequisites);
    for pod in [instance(&plan), placeholder(&plan)] {
        let pod = serde_json::to_value(pod.spec.unwrap()).unwrap();
        // The class's label wins.
        assert_eq!(pod["nodeSelector"], json!({ "disk": "fast", "zone": "a" }));
        assert!(pod["tolerations"].as_array().unwrap().contains(&toleration));
        assert_eq!(pod["topologySpreadConstraints"], json!([spread]));
        assert_eq!(pod["priorityClassName"], "high");
        assert_eq!(pod["schedulerName"], "other");
    }
}

#[test]
fn a_template_lets_autoscalers_evict_a_machine_only_while_it_has_no_disk_on_its_node() {
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let vm = machine(json!({
        "runStrategy": "Always",
        "template": { "metadata": { "annotations": { key: "true" } } },
    }));
    let prerequisites = prerequisites();
    let mut plan = plan(&vm, &prerequisites);
    let evictable = |plan: &Plan<'_>| {
        let pod = instance(plan);
        pod.metadata.annotations.unwrap_or_default().remove(key)
    };
    assert_eq!(evictable(&plan).as_deref(), Some("false"));
    plan.disk = None;
    assert_eq!(evictable(&plan).as_deref(), Some("true"));
}

#[test]
fn no_machine_can_have_the_name_of_a_placeholder() {
    let shortest = crate::reconcile::vm::act::pod::placeholder_name("x", UID);
    let longest = crate::reconcile::vm::act::pod::placeholder_name(&"x".repeat(63), UID);
    assert!(shortest.len() > 63, "{shortest}");
    assert!(longest.len() <= 253, "{longest}");
}

/// Weights and requirements of the nodes that a placeholder prefers.
fn preferences(spec: Value, avoid: &[String], prefer: &[String]) -> Vec<(i32, String)> {
    let vm = machine(spec);
    let prerequisites = prerequisites();
    let plan = Plan {
        node: None,
        avoid,
        prefer,
        ..plan(&vm, &prerequisites)
    };
    let affinity = placement::affinity(&plan).unwrap().node_affinity.unwrap();
    assert!(
        affinity
            .required_during_scheduling_ignored_during_execution
            .is_none()
    );
    let preferred = affinity
        .preferred_during_scheduling_ignored_during_execution
        .unwrap();
    let shown = preferred.iter().map(|term| {
        let fields = term.preference.match_fields.iter().flatten();
        let labels = term.preference.match_expressions.iter().flatten();
        let all = fields
            .map(|field| (field, ""))
            .chain(labels.map(|label| (label, &*label.key)));
        let all = all.map(|(one, key)| {
            let values = one.values.clone().unwrap_or_default();
            let text = format!("{key} {} {}", one.operator, values.join(","));
            text.trim().to_owned()
        });
        (term.weight, all.collect::<Vec<_>>().join(" and "))
    });
    shown.collect()
}

/// The API server refuses a field with two names.
#[test]
fn a_new_machine_avoids_nodes_and_prefers_those_that_have_its_image() {
    let two = ["a".to_owned(), "b".to_owned()];
    let shown = preferences(json!({ "runStrategy": "Always" }), &two, &two);
    let expected = [(100, "NotIn a and NotIn b"), (1, "In a"), (1, "In b")];
    assert_eq!(
        shown,
        expected.map(|(weight, text)| (weight, text.to_owned()))
    );
}

/// The scheduler makes the largest sum of weights 100: 1 beside nothing else would be all of it.
#[test]
fn the_image_decides_between_equal_nodes_only_and_not_beside_own_preferences() {
    let one = ["a".to_owned()];
    let shown = preferences(json!({ "runStrategy": "Always" }), &[], &one);
    let expected = [(100, "kubernetes.io/os Exists"), (1, "In a")];
    assert_eq!(
        shown,
        expected.map(|(weight, text)| (weight, text.to_owned()))
    );
    let labels = json!([{ "key": "disk", "operator": "Exists" }]);
    let own = json!([{ "weight": 7, "preference": { "matchExpressions": labels } }]);
    let own = json!({ "preferredDuringSchedulingIgnoredDuringExecution": own });
    let spec = json!({ "runStrategy": "Always", "affinity": { "nodeAffinity": own } });
    let shown = preferences(spec, &[], &one);
    assert_eq!(shown, [(7, "disk Exists".to_owned())]);
}

#[test]
fn a_machine_that_boots_by_uefi_gets_a_node_that_has_it() {
    let prerequisites = prerequisites();
    let plain = json!({ "runStrategy": "Always", "className": "small", "imageName": "debian" });
    let of = |firmware: Value| {
        let mut spec = plain.clone();
        spec["firmware"] = firmware;
        machine(spec)
    };
    let asked = |vm: &VirtualMachine| placement::asked(vm, &prerequisites, None);
    for (firmware, word, is_bound) in [
        (Value::Null, None, false),
        (json!("BIOS"), Some("bios"), false),
        (json!("UEFI"), Some("uefi"), true),
    ] {
        let vm = of(firmware);
        let mut plan = plan(&vm, &prerequisites);
        let pod = instance(&plan);
        let annotations = pod.metadata.annotations.unwrap();
        let found = annotations.get(names::FIRMWARE).map(String::as_str);
        assert_eq!(found, word);
        let selects = |plan: &Plan<'_>| {
            let labels = placement::node_selector(plan).unwrap_or_default();
            labels.get(names::NODE_UEFI).map(String::as_str) == Some("true")
        };
        assert!(!selects(&plan), "its node has its disk");
        plan.node = None;
        assert_eq!(selects(&plan), is_bound, "{word:?}");
        assert_eq!(asked(&vm) != asked(&of(Value::Null)), is_bound, "{word:?}");
    }
}

//! Labels that a Node gets, keeps and loses.
//!
//! Invariant: after the changes were made there is nothing to change.
//! Failure: none.

use nodeapi::v1::Host;

use super::*;

fn info() -> InfoResponse {
    let text = str::to_owned;
    InfoResponse {
        accelerator: text("kvm"),
        libvirt_version: text("9.0.0"),
        qemu_version: text("7.2.22"),
        machine_types: ["pc-q35-7.1", "pc-q35-7.2"].map(text).to_vec(),
        host: Some(Host {
            kernel: Some(Kernel {
                landlock_abi: 6,
                idmapped_mounts: Some(true),
                cgroup_version: 2,
                app_armor: text("enforced"),
            }),
            cpu_models: ["EPYC-v2", "EPYC", "a model"].map(text).to_vec(),
            uefi: Some(true),
            ..Host::default()
        }),
        ..InfoResponse::default()
    }
}

fn applied(info: &InfoResponse, node: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let labels = Labels::from_info(info);
    let mut node = node.clone();
    for (key, value) in labels.changes(&node) {
        match value {
            Some(value) => node.insert(key, value),
            None => node.remove(&key),
        };
    }
    assert!(labels.changes(&node).is_empty(), "a fixed point: {node:?}");
    node
}

fn node(labels: &str) -> BTreeMap<String, String> {
    let labels = labels.split_whitespace();
    let pairs = labels.map(|label| label.split_once('=').unwrap());
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

const OTHERS: &str = "vmlet.dev/node=true kubernetes.io/os=linux accelerator=mine \
    sub.node.vmlet.dev/x=y";

const ALL: &str = "node.vmlet.dev/accelerator=kvm node.vmlet.dev/libvirt-version=9.0.0 \
    node.vmlet.dev/qemu-version=7.2.22 node.vmlet.dev/landlock=6 \
    node.vmlet.dev/idmapped-mounts=true node.vmlet.dev/cgroup-version=2 \
    node.vmlet.dev/apparmor=enforced node.vmlet.dev/uefi=true machine-type.node.vmlet.dev/pc-q35-7.1=true \
    machine-type.node.vmlet.dev/pc-q35-7.2=true cpu-model.node.vmlet.dev/EPYC=true \
    cpu-model.node.vmlet.dev/EPYC-v2=true";

#[test]
fn a_node_gets_a_label_for_all_that_it_has_and_others_stay() {
    let before = node(OTHERS);
    let mut expected = before.clone();
    expected.extend(node(ALL));
    assert_eq!(applied(&info(), &before), expected);
}

#[test]
fn labels_that_no_longer_hold_are_removed() {
    let before = applied(&info(), &node(OTHERS));
    let mut less = info();
    less.accelerator = "tcg".to_owned();
    less.machine_types.remove(0);
    let host = less.host.as_mut().unwrap();
    host.cpu_models = vec!["qemu64".to_owned()];
    host.uefi = Some(false);
    host.kernel = Some(Kernel {
        cgroup_version: 1,
        app_armor: "unknown".to_owned(),
        idmapped_mounts: Some(false),
        ..Kernel::default()
    });
    let mut before = before;
    before.insert(
        "node.vmlet.dev/of-an-earlier-version".to_owned(),
        "x".to_owned(),
    );
    let mut expected = node(OTHERS);
    expected.extend(node(
        "node.vmlet.dev/accelerator=tcg node.vmlet.dev/libvirt-version=9.0.0 \
         node.vmlet.dev/qemu-version=7.2.22 node.vmlet.dev/cgroup-version=1 \
         machine-type.node.vmlet.dev/pc-q35-7.2=true cpu-model.node.vmlet.dev/qemu64=true",
    ));
    assert_eq!(applied(&less, &before), expected);
}

#[test]
fn what_the_daemon_does_not_know_stays() {
    let before = applied(&info(), &node(OTHERS));
    assert_eq!(applied(&InfoResponse::default(), &before), before);
    let without_kernel = InfoResponse {
        host: Some(Host::default()),
        ..info()
    };
    assert_eq!(applied(&without_kernel, &before), before);
}

#[test]
fn a_family_is_bounded_and_its_most_useful_names_stay() {
    let mut many = info();
    many.machine_types = (0..100).map(|n| format!("pc-q35-{n}.0")).collect();
    let mut models: Vec<_> = (0..100).map(|n| format!("EPYC-v{n}")).collect();
    models.push("EPYC".to_owned());
    many.host.as_mut().unwrap().cpu_models = models;
    let labels = applied(&many, &BTreeMap::new());
    let count = |domain: &str| labels.keys().filter(|key| key.starts_with(domain)).count();
    assert_eq!(count("machine-type.node.vmlet.dev/"), MOST);
    assert_eq!(count("cpu-model.node.vmlet.dev/"), MOST);
    assert!(labels.contains_key("machine-type.node.vmlet.dev/pc-q35-99.0"));
    assert!(labels.contains_key("cpu-model.node.vmlet.dev/EPYC"));
}

#[test]
fn only_what_can_be_the_name_of_a_label_is_one() {
    for name in ["EPYC-v1", "x", "pc-q35-7.2", "a_b"] {
        assert!(is_word(name), "{name}");
    }
    let long = "x".repeat(64);
    for name in ["", "-a", "a-", "a b", "ä", "a/b", &long] {
        assert!(!is_word(name), "{name}");
    }
}

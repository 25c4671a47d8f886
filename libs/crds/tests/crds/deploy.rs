//! `deploy/crds/` and the ends of `docs/kinds/*.md` are what the types say; the programs of `deploy/`
//! work in the namespace of their pods.
//!
//! Invariant: the files of the kinds are generated and never edited by hand.
//! Failure: the names of files that differ; `cargo xtask crds` writes them again.

#[path = "../../examples/crds/pages.rs"]
mod pages;
#[path = "../../examples/crds/render.rs"]
mod render;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

#[test]
fn the_manifests_of_the_kinds_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let found: BTreeMap<String, String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    let wanted = render::files().unwrap();
    let names = found.keys().chain(wanted.keys());
    let stale: Vec<&String> = names
        .filter(|name| found.get(*name) != wanted.get(*name))
        .collect();
    assert!(stale.is_empty(), "run `cargo xtask crds`: {stale:?}");
}

#[test]
fn the_pages_of_the_kinds_show_all_fields() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kinds");
    for (name, wanted) in pages::pages(&folder).unwrap() {
        let found = fs::read_to_string(folder.join(&name)).unwrap();
        assert!(found == wanted, "run `cargo xtask crds`: docs/kinds/{name}");
    }
}

/// An overlay may have another namespace, which the programs' settings do not know.
#[test]
fn controller_and_agent_take_their_namespace_from_their_pods() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (name, variable) in [
        ("controller/deployment.yaml", "VMLET_CONTROLLER_NAMESPACE"),
        ("agent/daemonset.yaml", "VMLET_AGENT_NAMESPACE"),
    ] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let objects = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        let mut containers = objects.filter_map(|object| {
            let container = object.unwrap();
            let container = container.pointer("/spec/template/spec/containers/0");
            container.cloned()
        });
        let container = containers.next().expect(name);
        let mut variables = container["env"].as_array().expect(name).iter();
        let found = variables.find(|one| one["name"] == variable);
        let field = found.and_then(|one| one.pointer("/valueFrom/fieldRef/fieldPath"));
        let field = field.and_then(Value::as_str);
        assert_eq!(field, Some("metadata.namespace"), "{variable} in {name}");
    }
}

/// On the node's network a pod gets the node's resolver otherwise, which knows no Service: images are
/// fetched from servers of the cluster by their names.
#[test]
fn the_pods_of_nodes_resolve_the_names_of_services() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let text = fs::read_to_string(folder.join("node/daemonset.yaml")).unwrap();
    let object: Value = serde_saphyr::from_str(&text).unwrap();
    let pod = object.pointer("/spec/template/spec").unwrap();
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["dnsPolicy"], "ClusterFirstWithHostNet");
}

/// The pods have the priority of the system: for a pod beside the old one, the scheduler preempts machines of a full node.
#[test]
fn an_upgrade_needs_no_more_room_than_the_pods_that_it_replaces() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (name, kind, strategy) in [
        (
            "controller/deployment.yaml",
            "Deployment",
            "/spec/strategy/rollingUpdate",
        ),
        (
            "agent/daemonset.yaml",
            "DaemonSet",
            "/spec/updateStrategy/rollingUpdate",
        ),
        (
            "node/daemonset.yaml",
            "DaemonSet",
            "/spec/updateStrategy/rollingUpdate",
        ),
    ] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let objects = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        let mut workloads = objects.map(Result::unwrap);
        let workload = workloads.find(|object| object["kind"] == kind).expect(name);
        let update = workload.pointer(strategy).expect(name);
        // A DaemonSet has none by default, a Deployment 25 %.
        let surge = update["maxSurge"].as_u64();
        assert_eq!(
            surge.or((kind == "DaemonSet").then_some(0)),
            Some(0),
            "{name}"
        );
        assert!(update["maxSurge"].is_null() || surge == Some(0), "{name}");
        assert!(!update["maxUnavailable"].is_null(), "{name}");
    }
}

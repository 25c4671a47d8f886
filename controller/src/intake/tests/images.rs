//! What wakes images: files on nodes, claims, nodes that may pull, tasks.
//!
//! Invariant: changes come out of feeds, as in the program.
//! Failure: the assertion shows the keys and priorities.

use super::*;

fn image(name: &str) -> VirtualMachineImage {
    let url = format!("https://images.example/{name}");
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": name, "resourceVersion": "1" },
        "spec": { "source": { "http": { "url": url } } },
    }))
    .unwrap()
}

fn node_with(version: &str, images: &[String]) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "node1", "uid": "n", "resourceVersion": version },
        "status": { "images": [{ "names": images }] },
    }))
    .unwrap()
}

#[test]
fn a_node_that_gets_an_image_wakes_that_image_alone() {
    let (intake, mut feeds) = ours();
    for name in ["a", "b"] {
        feeds.images.apply(Event::Apply(image(name)));
    }
    let woken = |changes: Vec<crate::stores::Change<Node>>| -> Vec<String> {
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Node::wakes_images(change, &intake.stores));
        keys.map(|key| key.to_string()).collect()
    };
    let name = |name: &str| {
        let url = format!("https://images.example/{name}");
        format!("{}:latest", podspec::url_image_name(&url))
    };
    assert!(woken(feeds.nodes.apply(Event::Apply(node_with("1", &[])))).is_empty());
    let one = node_with("2", &[name("a")]);
    assert_eq!(woken(feeds.nodes.apply(Event::Apply(one))), ["default/a"]);
    let both = node_with(
        "3",
        &[name("a"), name("b"), "vmlet.dev/other:latest".to_owned()],
    );
    assert_eq!(woken(feeds.nodes.apply(Event::Apply(both))), ["default/b"]);
    let gone = Event::Delete(node_with("4", &[name("a"), name("b")]));
    assert_eq!(woken(feeds.nodes.apply(gone)).len(), 2);
}

#[test]
fn a_claim_wakes_the_images_in_it() {
    let (intake, mut feeds) = ours();
    let mut golden = image("golden");
    golden.spec.source = serde_json::from_value(json!({ "pvc": { "name": "disk" } })).unwrap();
    for image in [image("other"), golden] {
        feeds.images.apply(Event::Apply(image));
    }
    let claim = |namespace: &str, version: &str, phase: &str| -> PersistentVolumeClaim {
        let meta = json!({
            "name": "disk", "namespace": namespace, "uid": namespace, "resourceVersion": version,
        });
        let object = json!({ "metadata": meta, "status": { "phase": phase } });
        serde_json::from_value(object).unwrap()
    };
    let mut woken = |claim: PersistentVolumeClaim| -> Vec<String> {
        let changes = feeds.claims.apply(Event::Apply(claim));
        let keys = changes.iter();
        let keys =
            keys.flat_map(|change| PersistentVolumeClaim::wakes_images(change, &intake.stores));
        keys.map(|key| key.to_string()).collect()
    };
    assert!(woken(claim("elsewhere", "1", "Bound")).is_empty());
    assert_eq!(woken(claim("default", "1", "Pending")), ["default/golden"]);
    assert_eq!(woken(claim("default", "2", "Bound")), ["default/golden"]);
    assert!(
        woken(claim("default", "3", "Bound")).is_empty(),
        "nothing that a pass reads"
    );
}

#[test]
fn a_node_that_may_pull_wakes_the_images_that_nodes_are_to_have() {
    let (intake, mut feeds) = ours();
    let mut wanted = image("wanted");
    wanted.spec.pre_pull = Some(crds::PrePull::default());
    for image in [image("other"), wanted] {
        feeds.images.apply(Event::Apply(image));
    }
    let node = |version: &str, part: &str, value: &serde_json::Value| -> Node {
        let mut node = serde_json::to_value(node_with(version, &[])).unwrap();
        json_patch::merge(&mut node[part], value);
        serde_json::from_value(node).unwrap()
    };
    let woken = |changes: Vec<crate::stores::Change<Node>>| -> Vec<String> {
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Node::wakes_images(change, &intake.stores));
        keys.map(|key| key.to_string()).collect()
    };
    let labels = json!({ "labels": { "pool": "db" } });
    let cordon = json!({ "unschedulable": true });
    let heartbeat = json!({ "capacity": { "cpu": "1" } });
    let it = ["default/wanted"];
    let mut apply = |node| woken(feeds.nodes.apply(Event::Apply(node)));
    assert_eq!(apply(node_with("1", &[])), it);
    assert_eq!(apply(node("2", "metadata", &labels)), it);
    assert_eq!(
        apply(node("3", "spec", &cordon)),
        it,
        "and its labels are gone"
    );
    assert_eq!(apply(node_with("4", &[])), it);
    assert_eq!(apply(node("5", "status", &heartbeat)), Vec::<String>::new());
    let gone = Event::Delete(node_with("6", &[]));
    assert_eq!(woken(feeds.nodes.apply(gone)), it);
    assert_eq!(intake.images.len(), 0);
    intake.agents_can_do_more();
    assert_eq!(intake.images.len(), 2, "no node has read them");
}

#[test]
fn the_task_of_an_image_wakes_the_image_and_no_machine_of_its_name() {
    let (intake, mut feeds) = ours();
    let mut task = |owner: &str, kind: &str| {
        let name = format!("{owner}-{kind}");
        let task = serde_json::from_value::<VirtualMachineTask>(json!({
            "metadata": {
                "name": name, "namespace": "place", "uid": owner, "resourceVersion": "1",
                "ownerReferences": [{ "apiVersion": "vmlet.dev/v1alpha1", "kind": owner, "name": "a", "uid": "u" }],
            },
            "spec": { "nodeName": "n", "vmName": "a", "vmUID": "u", "kind": kind },
        }));
        let changes = feeds.tasks.apply(Event::Apply(task.unwrap()));
        assert!(intake.adds(&changes[0]).is_empty());
        let keys = VirtualMachineTask::wakes_images(&changes[0], &intake.stores);
        keys.iter().map(Key::to_string).collect::<Vec<_>>()
    };
    for kind in ["InspectImage", "PullImage"] {
        assert_eq!(task("VirtualMachineImage", kind), ["place/a"]);
        assert_eq!(task("ClusterVirtualMachineImage", kind), ["/a"]);
    }
    assert!(
        intake
            .stores
            .tasks_named(&Key::new("place", "a"))
            .is_empty()
    );
    assert_eq!(intake.stores.tasks_of("u").len(), 4);
}

//! What parts know, from events and from an API server that is a function.
//!
//! Invariant: every request is counted.
//! Failure: the number of requests, or the object that was kept.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server that answers every request with this object.
fn server(object: &Value) -> (Client, Arc<AtomicUsize>) {
    let body = serde_json::to_vec(object).unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    let service = tower::service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let answer = Response::new(Body::from(body.clone()));
        async move { Ok::<_, Infallible>(answer) }
    });
    (Client::new(service, "default"), asked)
}

fn part<K: Resource<DynamicType = ()> + Clone>() -> (Writer<Guarded<K>>, Part<K>) {
    let writer = Writer::new(());
    let store = writer.as_reader();
    let report = Report::default();
    (writer, Part { store, report })
}

fn listed<K: Resource<DynamicType = ()> + Clone>(
    writer: &mut Writer<Guarded<K>>,
    part: &Part<K>,
    objects: Vec<K>,
) {
    let objects = objects
        .into_iter()
        .map(|one| Event::InitApply(Guarded(Ok(one))));
    let events = std::iter::once(Event::Init).chain(objects);
    for event in events.chain([Event::InitDone]) {
        writer.apply_watcher_event(&event);
        part.report.note(&Ok(event));
    }
}

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema,
        "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".a"}]});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "x", "uid": "u", "resourceVersion": "1", "annotations": {"a": "long"}},
        "spec": {"group": "g", "scope": "Cluster", "names": {"kind": "X", "plural": "x"},
            "versions": [version]},
        "status": {"storedVersions": ["v1"]},
    })
}

#[tokio::test]
async fn a_definition_is_requested_when_it_changed_and_kept_without_its_schema() {
    type Meta = Metadata<CustomResourceDefinition>;
    let meta = |version: &str| -> Meta {
        let object = json!({"metadata": {"name": "x", "resourceVersion": version}});
        serde_json::from_value(object).unwrap()
    };
    let (client, asked) = server(&definition());
    let (mut writer, known) = part::<Meta>();
    listed(&mut writer, &known, vec![meta("1")]);
    let mut definitions = Bodies {
        api: Api::all(client),
        known,
        kept: HashMap::new(),
        trim: keep_versions,
    };
    assert_eq!(definitions.named("other").await, Ok(None));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    for (version, requests) in [("1", 1), ("1", 1), ("2", 2), ("2", 2)] {
        writer.apply_watcher_event(&Event::Apply(Guarded(Ok(meta(version)))));
        let found = definitions.named("x").await.unwrap().expect("it is there");
        assert_eq!(asked.load(Ordering::Relaxed), requests, "{version}");
        let kept = serde_json::to_value(&found).unwrap().to_string();
        assert!(found.spec.versions[0].served && found.uid().is_some());
        let stored = found.status.and_then(|status| status.stored_versions);
        assert_eq!(stored, Some(vec!["v1".to_owned()]));
        for word in ["openAPIV3Schema", "jsonPath", "long"] {
            assert!(!kept.contains(word), "{kept}");
        }
    }
    writer.apply_watcher_event(&Event::Delete(Guarded(Ok(meta("2")))));
    assert_eq!(definitions.named("x").await, Ok(None));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert!(definitions.kept.is_empty());
}

#[test]
fn objects_come_by_name_and_one_that_cannot_be_read_hides_no_other() {
    let (mut writer, nodes) = part::<Node>();
    let node = |name: &str| -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    };
    assert_eq!(nodes.all(), Err("not listed yet".to_owned()));
    listed(&mut writer, &nodes, vec![node("b"), node("c"), node("a")]);
    let bad = json!({"metadata": {"name": "b"}, "status": 1});
    let bad: Guarded<Node> = serde_json::from_value(bad).unwrap();
    writer.apply_watcher_event(&Event::Apply(bad));
    let names: Vec<_> = nodes.all().unwrap().iter().map(Node::name_any).collect();
    assert_eq!(names, ["a", "c"]);
    assert!(nodes.named("b").is_err() && nodes.named("d") == Ok(None));
}

#[test]
fn a_watch_that_fails_for_long_is_an_error_and_a_short_break_is_none() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut fate = Fate::default();
    assert!(!fate.is_settled() && fate.outcome(start).is_err());
    fate.failed("forbidden".to_owned(), at(0));
    assert!(fate.is_settled());
    assert_eq!(fate.outcome(at(0)), Err("forbidden".to_owned()));
    fate.is_listed = true;
    fate.trouble = None;
    for seconds in [1, 31, 61] {
        fate.failed("reset".to_owned(), at(seconds));
        assert_eq!(fate.outcome(at(seconds)), Ok(()), "{seconds}");
    }
    fate.failed("reset".to_owned(), at(91));
    assert_eq!(fate.outcome(at(92)), Err("reset".to_owned()));
    assert_eq!(fate.outcome(at(91 + 90)), Ok(()), "it is back, and quiet");
    fate.failed("again".to_owned(), at(300));
    assert_eq!(fate.outcome(at(300)), Ok(()), "another break");
}

#[test]
fn what_is_kept_of_nodes_pods_and_leases_is_what_the_status_needs() {
    let mut node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"l": "1"}, "annotations": {"a": "1"}},
        "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
            "images": [{"names": ["i"]}], "runtimeHandlers": [{"name": "vmlet"}],
        },
    }))
    .unwrap();
    let before = wake::node(&node);
    keep_state(&mut node);
    assert_eq!(wake::node(&node), before);
    let kept = serde_json::to_value(&node).unwrap().to_string();
    for word in ["podCIDR", "DiskPressure", "images", "annotations"] {
        assert!(!kept.contains(word), "{kept}");
    }
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "uid": "u", "labels": {"app": "vmlet"}},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"podIP": "10.0.0.1", "containerStatuses": [
            {"name": "c", "restartCount": 3, "ready": true, "image": "", "imageID": ""}]},
    }))
    .unwrap();
    keep_restarts(&mut pod);
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    assert_eq!(statuses.map(|all| all[0].restart_count), Some(3));
    assert_eq!((pod.labels().len(), pod.spec.as_ref()), (1, None));
    let mut lease: Lease = serde_json::from_value(json!({
        "metadata": {"annotations": {NODE_FACTS: "{}", "other": "1"}},
        "spec": {"holderIdentity": "n"},
    }))
    .unwrap();
    keep_facts(&mut lease);
    assert_eq!(lease.annotations().keys().collect::<Vec<_>>(), [NODE_FACTS]);
    assert!(lease.spec.is_some());
}

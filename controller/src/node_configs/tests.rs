//! Statuses from what nodes say, and when they are written.
//!
//! Invariant: no API server; a served one answers what it gets.
//! Failure: the status is shown.

use std::sync::{Arc, Mutex};

use crds::conditions::{READY, find};
use crds::names::NODE_SETTINGS;
use crds::node_settings::{NodeSettingsReport, Observed, SettingReport};
use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

type NodeEvent = Event<Guarded<PartialObjectMeta<Node>>>;

fn object(spec: &Value) -> Guarded<NodeConfig> {
    let object = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "NodeConfig",
        "metadata": { "name": "c", "uid": "u", "generation": 3, "resourceVersion": "7" },
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

/// A node in zone a that has observed this generation, with this setting of the object.
fn node(
    name: &str,
    uid: &str,
    generation: i64,
    setting: SettingReport,
) -> Guarded<PartialObjectMeta<Node>> {
    let uid = uid.to_owned();
    let report = NodeSettingsReport {
        observed: [("c".to_owned(), Observed { uid, generation })].into(),
        settings: [("vm.default_vcpus".to_owned(), setting)].into(),
    };
    meta(name, &json!({ NODE_SETTINGS: report.text() }), "a")
}

fn meta(name: &str, annotations: &Value, zone: &str) -> Guarded<PartialObjectMeta<Node>> {
    let node = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": name, "annotations": annotations,
            "labels": { "zone": zone, "node.vmlet.dev/accelerator": "tcg" },
        },
    });
    serde_json::from_value(node).unwrap()
}

fn of_object() -> SettingReport {
    SettingReport {
        node_config: "c".to_owned(),
        ..SettingReport::default()
    }
}

fn known(spec: &Value, nodes: Vec<Guarded<PartialObjectMeta<Node>>>) -> Known {
    let mut known = Known::default();
    for event in [Event::Init, Event::InitApply(object(spec)), Event::InitDone] {
        known.take_object(event);
    }
    assert!(!known.is_complete());
    known.take_node(Event::Init);
    for node in nodes {
        known.take_node(Event::InitApply(node));
    }
    known.take_node(Event::InitDone);
    assert!(known.is_complete());
    known
}

/// Number of nodes, status, reason and message.
fn status(known: &Known) -> (u32, String, String, String) {
    let changes = known.changes(&Time(Timestamp::UNIX_EPOCH));
    let (_, version, status) = changes.into_iter().next().unwrap();
    assert_eq!(version.as_deref(), Some("7"));
    assert_eq!(status.observed_generation, Some(3));
    let ready = find(&status.conditions, READY).unwrap().clone();
    (status.nodes, ready.status, ready.reason, ready.message)
}

fn text(nodes: u32, status: &str, reason: &str, message: &str) -> (u32, String, String, String) {
    (
        nodes,
        status.to_owned(),
        reason.to_owned(),
        message.to_owned(),
    )
}

#[test]
fn an_object_is_ready_when_every_node_that_matches_has_applied_it() {
    let spec = json!({ "nodeSelector": { "zone": "a" } });
    let without_vmlet = json!({ "metadata": { "name": "z", "labels": { "zone": "a" } } });
    let nodes = || {
        vec![
            node("a", "u", 3, of_object()),
            node("b", "u", 3, of_object()),
            meta("other", &json!({}), "b"),
            serde_json::from_value(without_vmlet.clone()).unwrap(),
        ]
    };
    assert_eq!(
        status(&known(&spec, nodes())),
        text(2, "True", "Applied", "")
    );
    // An agent of before, an object of before with this name, and text that is no report.
    let late = [
        node("c", "u", 2, of_object()),
        node("c", "v", 3, of_object()),
        meta("c", &json!({ NODE_SETTINGS: "[" }), "a"),
        meta("c", &json!({}), "a"),
    ];
    for late in late {
        let mut nodes = nodes();
        nodes.push(late);
        let message = "1 of 3 nodes have not applied it: c";
        let expected = text(3, "Unknown", "Pending", message);
        assert_eq!(status(&known(&spec, nodes)), expected);
    }
    let unmatched = known(&json!({ "nodeName": "gone" }), nodes());
    assert_eq!(status(&unmatched), text(0, "True", "Applied", ""));
}

#[test]
fn what_a_node_refuses_or_has_itself_is_named() {
    let refused = SettingReport {
        refused: "no".to_owned(),
        ..of_object()
    };
    let of_other = SettingReport {
        node_config: "other".to_owned(),
        ..refused.clone()
    };
    let own = SettingReport {
        overridden_by: "file x".to_owned(),
        ..of_object()
    };
    let all = known(
        &json!({}),
        vec![
            node("a", "u", 3, refused),
            node("b", "u", 2, of_object()),
            node("c", "u", 3, own.clone()),
        ],
    );
    let message = "node a: vm.default_vcpus: no";
    assert_eq!(status(&all), text(3, "False", "Refused", message));
    let overridden = known(
        &json!({}),
        vec![node("c", "u", 3, own), node("d", "u", 3, of_other)],
    );
    let message = "settings of nodes themselves count there: node c: vm.default_vcpus: file x";
    assert_eq!(status(&overridden), text(2, "True", "Applied", message));
}

#[test]
fn a_message_names_a_few_of_very_many_nodes() {
    let refused = SettingReport {
        refused: "x".repeat(300),
        ..of_object()
    };
    let nodes = (0..1000).map(|n| node(&format!("n{n:04}"), "u", 3, refused.clone()));
    let (count, _, _, message) = status(&known(&json!({}), nodes.collect()));
    assert_eq!(count, 1000);
    assert!(message.ends_with("; and 995 more"), "{message}");
    assert!(message.len() <= 4096);
}

#[test]
fn a_status_that_was_written_and_a_heartbeat_change_nothing() {
    let mut all = known(&json!({}), vec![node("a", "u", 3, of_object())]);
    let now = Time(Timestamp::UNIX_EPOCH);
    let (name, _, status) = all.changes(&now).remove(0);
    all.wrote(&name, status.clone());
    let later = Time(Timestamp::from_second(60).unwrap());
    assert!(all.changes(&later).is_empty());
    let heartbeat: NodeEvent = Event::Apply(node("a", "u", 3, of_object()));
    assert!(!all.take_node(heartbeat));
    let mut seen = object(&json!({}));
    if let Ok(object) = &mut seen.0 {
        object.status = Some(status);
    }
    all.take_object(Event::Apply(seen));
    assert!(all.changes(&later).is_empty());
    assert!(all.take_node(Event::Delete(node("a", "u", 3, of_object()))));
    assert_eq!(all.changes(&later).remove(0).2.nodes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_repeated_and_changes_that_come_together_are_one_write() {
    let writes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&writes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let count = {
            let mut seen = seen.lock().unwrap();
            seen.push(path);
            seen.len()
        };
        async move {
            let (code, body) = match count {
                1 => (
                    500,
                    json!({ "code": 500, "message": "x", "reason": "x", "status": "Failure" }),
                ),
                _ => (
                    200,
                    serde_json::to_value(object(&json!({})).0.unwrap()).unwrap(),
                ),
            };
            let response = Response::builder().status(code);
            Ok::<_, std::convert::Infallible>(
                response
                    .body(Body::from(body.to_string().into_bytes()))
                    .unwrap(),
            )
        }
    });
    let client = Client::new(service, "default");
    let objects = [
        Event::Init,
        Event::InitApply(object(&json!({}))),
        Event::InitDone,
    ];
    let objects =
        futures_util::stream::iter(objects.map(Ok)).chain(futures_util::stream::pending());
    let many = (0..100).map(|n| Event::Apply(node(&format!("n{n}"), "u", 3, of_object())));
    let nodes = [Event::Init, Event::InitDone]
        .into_iter()
        .chain(many)
        .map(Ok);
    let nodes = futures_util::stream::iter(nodes).chain(futures_util::stream::pending());
    let follow = follow(&client, objects, nodes);
    let ended = tokio::time::timeout(Duration::from_secs(600), follow).await;
    assert!(ended.is_err());
    let path = "/apis/vmlet.dev/v1alpha1/nodeconfigs/c/status";
    assert_eq!(*writes.lock().unwrap(), [path, path]);
}

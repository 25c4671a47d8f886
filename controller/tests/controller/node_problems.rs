//! What the status says of nodes that lack something, by their conditions and their leases.
//!
//! Invariant: a list that does not grow with the cluster; who cannot run machines goes first.
//! Failure: none.

use std::collections::BTreeMap;

use controller::operator::adapters::views;
use controller::operator::assess::count;
use crds::{VmletNodes, VmletStatus};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const NOW: &str = "2026-01-02T03:04:05Z";

/// A node with this condition about machines, renewed then.
fn node(name: &str, condition: Option<(&str, &str, &str)>) -> Value {
    let mut conditions = vec![json!({ "type": "Ready", "status": "True" })];
    conditions.extend(condition.map(|(status, reason, renewed)| {
        json!({ "type": "VmletReady", "status": status, "reason": reason,
            "message": "a sentence", "lastHeartbeatTime": renewed })
    }));
    json!({ "metadata": { "name": name }, "status": { "conditions": conditions } })
}

fn lease(node: &str, daemon: &Value) -> Value {
    let facts = json!({ "daemon": daemon }).to_string();
    json!({
        "metadata": { "name": format!("vmlet-node-{node}"),
            "annotations": { "vmlet.dev/node-facts": facts } },
        "spec": { "renewTime": NOW },
    })
}

fn counted(nodes: Vec<Value>, leases: Vec<Value>) -> VmletNodes {
    let nodes: Vec<Node> = serde_json::from_value(nodes.into()).unwrap();
    let leases: Vec<Lease> = serde_json::from_value(leases.into()).unwrap();
    let now = Time(NOW.parse().unwrap());
    count(&views(&nodes, &leases, &BTreeMap::new(), &now))
}

/// Name and reason of each problem.
fn problems(counted: &VmletNodes) -> Vec<(&str, &str)> {
    let problems = counted.problems.iter();
    problems.map(|p| (&*p.name, &*p.reason)).collect()
}

#[test]
fn each_node_that_lacks_something_is_named_with_its_reason() {
    let reachable = json!({ "reachable": true });
    let nodes = vec![
        node("complete", Some(("True", "MachinesCanStart", NOW))),
        node("bare", Some(("True", "LandlockMissing", NOW))),
        node("emulates", Some(("True", "SoftwareEmulation", NOW))),
        node("starts", Some(("Unknown", "Starting", NOW))),
        node("refuses", Some(("False", "NoMachineCanStart", NOW))),
        node("silent", Some(("True", "MachinesCanStart", NOW))),
        node("away", Some(("True", "MachinesCanStart", NOW))),
        // Agents of an earlier version.
        node("older", None),
        node(
            "downgraded",
            Some(("False", "NoMachineCanStart", "2026-01-02T02:00:00Z")),
        ),
    ];
    let reaching = "complete bare emulates starts refuses older downgraded";
    let mut leases: Vec<_> = reaching
        .split(' ')
        .map(|name| lease(name, &reachable))
        .collect();
    let away = json!({ "reachable": false, "message": "connection\u{1b} refused" });
    leases.push(lease("away", &away));
    let counted = counted(nodes, leases);
    let numbers = [
        counted.targeted,
        counted.ready,
        counted.degraded,
        counted.limited,
    ];
    assert_eq!(numbers, [9, 6, 3, 2]);
    assert_eq!(counted.bad, ["away", "refuses", "silent"]);
    let expected = [
        ("away", "DaemonUnavailable"),
        ("refuses", "NoMachineCanStart"),
        ("silent", "AgentUnavailable"),
        ("emulates", "SoftwareEmulation"),
        ("bare", "LandlockMissing"),
    ];
    assert_eq!(problems(&counted), expected);
    assert_eq!(counted.problems[0].message, "connection refused");
}

#[test]
fn the_list_of_problems_is_bounded_and_begins_with_nodes_without_machines() {
    let reachable = json!({ "reachable": true });
    let name = |n: usize| format!("n{n:03}");
    let limited = |n| node(&name(n), Some(("True", "SoftwareEmulation", NOW)));
    let mut nodes: Vec<_> = (0..200).map(limited).collect();
    nodes.push(node("z", Some(("False", "NoMachineCanStart", NOW))));
    let mut leases: Vec<_> = (0..200).map(|n| lease(&name(n), &reachable)).collect();
    leases.push(lease("z", &reachable));
    let counted = counted(nodes, leases);
    assert_eq!((counted.limited, counted.degraded), (200, 1));
    assert_eq!(counted.problems.len(), VmletStatus::MOST_BAD_NODES);
    assert_eq!(problems(&counted)[0], ("z", "NoMachineCanStart"));
}

//! What Kubernetes knows of our parts, as conditions.
//!
//! Invariant: fifteen lettered cases, on objects as the API server returns them.
//! Failure: names the line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controller::operator::adapters::{
    Policy, RuntimeFacts, Wanted, Webhook, admission, definitions, deployment, missing, proxy,
    resource, runtime, views, webhook,
};
use controller::operator::{ComponentCondition, ComponentState, Conditions};
use crds::conditions::Status;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("fixtures/adapters.txt");
const VERSION: &str = "1.2.3";

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn found(state: ComponentState) -> Conditions {
    match state {
        ComponentState::Found(conditions) => conditions,
        state => panic!("{state:?}"),
    }
}

fn now() -> Time {
    Time("2026-01-02T03:04:05Z".parse().unwrap())
}

fn set(words: &[&str]) -> Conditions {
    let facts: BTreeMap<&str, u32> = words
        .iter()
        .map(|word| word.split_once('=').unwrap())
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    let of = |name: &str| facts.get(name).copied();
    let set = from(json!({
        "metadata": {"generation": of("generation").unwrap_or(1)},
        "spec": {"selector": {}, "template": {},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}},
        "status": {
            "desiredNumberScheduled": of("d").unwrap(), "currentNumberScheduled": 0, "numberReady": 0,
            "updatedNumberScheduled": of("u"), "numberAvailable": of("a"),
            "numberMisscheduled": of("m").unwrap_or(0),
            "observedGeneration": of("observed").unwrap_or(1),
        },
    }));
    let facts = RuntimeFacts {
        excluded: of("excluded").unwrap_or(0),
        short_for: Duration::from_secs(of("short").unwrap_or(0).into()),
        ..RuntimeFacts::default()
    };
    assert_eq!(missing(&set, facts.excluded) > 0, of("short").is_some());
    runtime(&set, &facts)
}

fn node(name: &str) -> Node {
    from(json!({
        "metadata": {"name": name, "labels": {"vmlet.dev/node": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn lease(node: &str, age: i64, version: &str) -> Lease {
    let renewed = now().0 - jiff::SignedDuration::from_secs(age);
    let facts = json!({"daemon": {"reachable": true},
        "proxy": {"reachable": true, "version": version, "runtimeReady": true}});
    from(json!({
        "metadata": {"name": format!("vmlet-node-{node}"),
            "annotations": {"vmlet.dev/node-facts": facts.to_string()}},
        "spec": {"renewTime": renewed.to_string()},
    }))
}

fn proxies(ages: &[&str]) -> Conditions {
    let names: Vec<_> = (0..ages.len()).map(|n| format!("n{n}")).collect();
    let nodes: Vec<_> = names.iter().map(|name| node(name)).collect();
    let leases: Vec<_> = names
        .iter()
        .zip(ages)
        .map(|(name, age)| lease(name, age.parse().unwrap(), VERSION))
        .collect();
    proxy(&views(&nodes, &leases, &BTreeMap::new(), &now()), VERSION)
}

fn controller(words: &[&str]) -> Conditions {
    let mut conditions = vec![];
    let mut replicas = vec![];
    for word in words {
        let (name, value) = word.split_once('=').unwrap();
        if name == "replicas" {
            replicas = value
                .split('/')
                .map(|n| n.parse::<i32>().unwrap())
                .collect();
            continue;
        }
        let (status, reason) = value.split_once('/').unwrap();
        conditions.push(json!({"type": name, "status": status, "reason": reason}));
    }
    let object = from(json!({
        "metadata": {"generation": 1},
        "spec": {"replicas": replicas[0], "selector": {}, "template": {}},
        "status": {"observedGeneration": 1, "conditions": conditions,
            "updatedReplicas": replicas[1], "availableReplicas": replicas[2]},
    }));
    found(deployment(&object, Duration::ZERO))
}

fn definition(stored: &[&str], storage: &str) -> Value {
    let versions: Vec<_> = ["v1alpha1", "v1"]
        .map(|name| json!({"name": name, "served": true, "storage": name == storage}))
        .to_vec();
    json!({
        "metadata": {"name": "things.vmlet.dev", "generation": 1},
        "spec": {"group": "vmlet.dev", "scope": "Namespaced", "versions": versions,
            "names": {"kind": "Thing", "plural": "things"}},
        "status": {"storedVersions": stored, "conditions": [
            {"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"}]},
    })
}

fn wanted() -> Vec<Wanted> {
    let name = "things.vmlet.dev".to_owned();
    let version = "v1".to_owned();
    vec![Wanted { name, version }]
}

fn shown(reported: &Option<ComponentCondition>) -> String {
    let reported = reported.as_ref().unwrap();
    let letter = &reported.status.as_str()[..1];
    match reported.message.split_once(": ") {
        Some(("NoTargetNodes", _)) => format!("{letter} NoTargetNodes"),
        _ => letter.to_owned(),
    }
}

#[test]
fn all_cases_hold() {
    let mut letters = BTreeSet::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<_> = line.split(" | ").collect();
        letters.insert(cells[0].chars().next().unwrap());
        let words: Vec<_> = cells[1].split(' ').collect();
        let all = match words[0] {
            "set" => set(&words[1..]),
            "proxies" => proxies(&words[1..]),
            "deployment" => controller(&words[1..]),
            "definition" => {
                let stored: Vec<_> = words[1]
                    .strip_prefix("stored=")
                    .unwrap()
                    .split(',')
                    .collect();
                let storage = words[2].strip_prefix("storage=").unwrap();
                found(definitions(
                    &wanted(),
                    &[from(definition(&stored, storage))],
                ))
            }
            "webhook" => webhook(&Webhook {
                must_answer: true,
                ready_endpoints: 1,
                wanted_endpoints: 1,
                authority_matches: true,
                rotating: false,
                valid_for: None,
            }),
            other => panic!("{other}"),
        };
        let row = [
            &all.available,
            &all.progressing,
            &all.degraded,
            &all.upgradeable,
        ]
        .map(shown);
        assert_eq!(row.as_slice(), &cells[2..], "{line}\n{all:?}");
    }
    assert_eq!(letters, ('a'..='o').collect());
}

fn status(reported: &Option<ComponentCondition>) -> Status {
    reported.as_ref().unwrap().status
}

#[test]
fn policies_count_only_together_with_a_binding_that_denies() {
    let policy = |observed: i64, warnings: Value| {
        from(json!({"metadata": {"generation": 2}, "spec": {},
            "status": {"observedGeneration": observed, "typeChecking": {"expressionWarnings": warnings}}}))
    };
    let binding =
        |actions: Value| from(json!({"spec": {"policyName": "p", "validationActions": actions}}));
    let good = Policy {
        name: "p".to_owned(),
        policy: Some(policy(2, json!([]))),
        binding: Some(binding(json!(["Deny"]))),
    };
    let all = admission(std::slice::from_ref(&good));
    assert_eq!(status(&all.available), Status::True);
    assert_eq!(status(&all.progressing), Status::False);
    let toothless = Policy {
        binding: Some(binding(json!(["Warn"]))),
        ..good.clone()
    };
    assert_eq!(status(&admission(&[toothless]).available), Status::False);
    let unbound = Policy {
        binding: None,
        ..good.clone()
    };
    assert_eq!(status(&admission(&[unbound]).available), Status::False);
    let unseen = Policy {
        policy: Some(policy(1, json!([]))),
        ..good.clone()
    };
    assert_eq!(status(&admission(&[unseen]).progressing), Status::True);
    let warned = json!([{"fieldRef": "spec", "warning": "no such field"}]);
    let warned = Policy {
        policy: Some(policy(2, warned)),
        ..good
    };
    assert_eq!(status(&admission(&[warned]).degraded), Status::True);
}

#[test]
fn a_kind_that_is_not_served_is_unavailable_and_one_that_is_absent_is_named() {
    let mut broken = definition(&["v1"], "v1");
    broken["spec"]["versions"][1]["served"] = json!(false);
    let all = found(definitions(&wanted(), &[from(broken)]));
    assert_eq!(status(&all.available), Status::False);
    assert_eq!(
        definitions(&wanted(), &[]),
        ComponentState::Nothing("things.vmlet.dev not found".to_owned())
    );
}

#[test]
fn a_dead_node_differs_from_a_node_with_a_dead_runtime() {
    let mut dead = json!(node("dead"));
    dead["status"]["conditions"][0]["status"] = json!("Unknown");
    let mut broken = json!(node("broken"));
    broken["status"]["conditions"][0]["status"] = json!("False");
    broken["status"]["conditions"][0]["message"] = json!("container runtime is down");
    let mut cordoned = json!(node("cordoned"));
    cordoned["spec"] = json!({"unschedulable": true});
    let nodes = [dead, broken, cordoned, json!(node("good"))].map(from);
    let leases = [lease("broken", 5, VERSION), lease("good", 5, "1.2.4")];
    let selector = BTreeMap::from([("vmlet.dev/node".to_owned(), "true".to_owned())]);
    let views = views(&nodes, &leases, &selector, &now());
    let seen: Vec<_> = views
        .iter()
        .map(|v| (&*v.name, v.excluded, v.is_ready(), v.is_bad()))
        .collect();
    let wanted = [
        ("broken", false, false, true),
        ("cordoned", true, false, false),
        ("dead", true, false, false),
        ("good", false, true, false),
    ];
    assert_eq!(seen, wanted);
    let all = proxy(&views, VERSION);
    assert_eq!(status(&all.available), Status::True);
    assert_eq!(status(&all.degraded), Status::True, "at once");
    assert!(all.progressing.unwrap().message.contains("good"));
    assert_eq!(status(&all.upgradeable), Status::True);
}

#[test]
fn other_resources_report_their_conditions() {
    let object = json!({"status": {"conditions": [
        {"type": "Available", "status": "True"}, {"type": "Degraded", "status": "odd", "message": "m"}, 7]}});
    let all = found(resource(&object));
    assert_eq!(status(&all.available), Status::True);
    assert_eq!(
        all.degraded,
        Some(ComponentCondition::new(Status::Unknown, "m"))
    );
    assert_eq!(all.progressing, None);
    assert_eq!(
        resource(&json!({"status": "odd"})),
        ComponentState::Nothing(String::new())
    );
}

#[test]
fn a_crash_looping_pod_is_a_fault_and_machines_at_risk_hold_an_upgrade() {
    let object = from(
        json!({"metadata": {}, "spec": {"selector": {}, "template": {}}, "status": {
        "desiredNumberScheduled": 10, "currentNumberScheduled": 10, "numberReady": 10,
        "updatedNumberScheduled": 10, "numberAvailable": 10, "numberMisscheduled": 0}}),
    );
    let facts = RuntimeFacts {
        restarting: Some("vmlet-node-x".to_owned()),
        holding: Some("n1".to_owned()),
        ..RuntimeFacts::default()
    };
    let all = runtime(&object, &facts);
    assert!(all.degraded.unwrap().message.contains("vmlet-node-x"));
    assert_eq!(status(&all.upgradeable), Status::False);
}

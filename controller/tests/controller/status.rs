//! The status of the installation, from what was read.
//!
//! Invariant: no API server; what was read is written down here.
//! Failure: the assertion shows the status.

use controller::operator::adapters::Wanted;
use controller::operator::assess::{Memory, assess, count};
use controller::operator::observe::Observation;
use controller::operator::{ComponentState, Rules, consolidate, status};
use crds::conditions::Status;
use crds::{ComponentRef, VmletSpec, VmletStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

fn now() -> Time {
    Time("2026-01-02T03:04:05Z".parse().unwrap())
}

fn nothing() -> Observation {
    Observation {
        daemon_set: Ok(None),
        pods: Ok(vec![]),
        deployment: Ok(None),
        definitions: Ok(vec![]),
        policies: Ok(vec![]),
        nodes: Ok(vec![]),
        leases: Ok(vec![]),
        others: vec![],
    }
}

fn daemon_set(uid: &str) -> Observation {
    let set = json!({
        "metadata": {"name": "vmlet-node", "namespace": "vmlet-system", "uid": uid},
        "spec": {"selector": {}, "template": {}},
    });
    Observation {
        daemon_set: Ok(Some(serde_json::from_value(set).unwrap())),
        ..nothing()
    }
}

fn other(name: &str) -> ComponentRef {
    ComponentRef {
        api_version: "cdi.kubevirt.io/v1beta1".to_owned(),
        kind: "CDI".to_owned(),
        namespace: None,
        name: name.to_owned(),
    }
}

#[test]
fn a_deleted_object_stays_listed_and_an_unobserved_one_is_removed() {
    let spec = VmletSpec {
        components: vec![other("a")],
        ..VmletSpec::default()
    };
    let mut seen = daemon_set("one");
    let object = |uid: &str| Ok(Some(json!({"metadata": {"uid": uid}})));
    seen.others = vec![(other("a"), object("two"))];
    let first = status::related(&[], &spec, &[], &seen);
    let uids: Vec<_> = first.iter().map(|o| o.uid.as_deref().unwrap()).collect();
    assert_eq!(uids, ["one", "two"]);
    assert_eq!(first[0].api_version, "apps/v1");

    assert_eq!(status::related(&first, &spec, &[], &nothing()), first);
    let again = status::related(&first, &spec, &[], &daemon_set("three"));
    assert_eq!(again[0].uid.as_deref(), Some("three"), "made again");

    let without = status::related(&first, &VmletSpec::default(), &[], &nothing());
    assert_eq!(without, first[..1]);
    assert!(status::related(&[], &spec, &[], &nothing()).is_empty());
}

#[test]
fn related_objects_are_limited_and_ours_come_first() {
    let spec = VmletSpec {
        components: (0..100).map(|n| other(&n.to_string())).collect(),
        ..VmletSpec::default()
    };
    let mut seen = daemon_set("one");
    let found = |wanted: &ComponentRef| {
        let object: Value = json!({"metadata": {"uid": "u"}});
        (wanted.clone(), Ok(Some(object)))
    };
    seen.others = spec.components.iter().map(found).collect();
    let related = status::related(&[], &spec, &[], &seen);
    assert_eq!((related.len(), related[0].kind.as_str()), (64, "DaemonSet"));
}

#[test]
fn what_did_not_change_is_written_the_same_and_other_conditions_are_left_alone() {
    let mut memory = Memory::default();
    let found = assess(&nothing(), &[], "1", &now(), &mut memory);
    let summary = consolidate(&found.components, None, &Rules::ours(false));
    let mut status = VmletStatus::default();
    let theirs = json!([{"type": "Theirs", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2025-01-01T00:00:00Z"}]);
    status.conditions = serde_json::from_value(theirs).unwrap();
    status::summarize(&mut status, &summary, Some(3), &now());
    assert_eq!(status.conditions.len(), 6);
    assert_eq!(status.conditions[0].type_, "Theirs");
    let before = status.clone();
    let later = Time("2026-01-02T04:00:00Z".parse().unwrap());
    status::summarize(&mut status, &summary, Some(3), &later);
    assert_eq!(status, before);
    assert_eq!(status::recorded(&status), None);
    status::record(&mut status, "1");
    status::record(&mut status, "2");
    assert_eq!(status::recorded(&status), Some("2"));
    assert_eq!(status.versions.len(), 1);
}

#[test]
fn a_read_that_fails_hides_nothing_of_the_other_parts() {
    let seen = Observation {
        deployment: Err("forbidden".to_owned()),
        ..daemon_set("one")
    };
    let kind = Wanted {
        name: "things.vmlet.dev".to_owned(),
        version: "v1".to_owned(),
    };
    let found = assess(&seen, &[kind], "1", &now(), &mut Memory::default());
    let names: Vec<_> = found.components.iter().map(|c| c.name.as_str()).collect();
    let order = [
        "Crds",
        "AdmissionPolicy",
        "Controller",
        "CriProxy",
        "Runtime",
    ];
    assert_eq!(names, order);
    assert_eq!(
        found.components[0].state,
        ComponentState::Nothing("things.vmlet.dev not found".to_owned())
    );
    assert_eq!(
        found.components[2].state,
        ComponentState::Failed("forbidden".to_owned())
    );
    assert!(matches!(
        found.components[4].state,
        ComponentState::Found(_)
    ));
    let summary = consolidate(&found.components, None, &Rules::ours(false));
    assert_eq!(summary.conditions[0].reason, "ReconcileFailed");
    assert!(
        summary.conditions[0]
            .message
            .contains("Controller: forbidden")
    );
    assert_eq!(summary.conditions[1].reason, "RuntimeNotAvailable");
}

#[test]
fn machines_that_would_end_with_a_restart_make_the_installation_not_upgradeable() {
    let seen = |bound: u32| {
        let facts = json!({"daemon": {"reachable": true, "version": "1", "boundMachines": bound}});
        let lease = json!({
            "metadata": {"name": "vmlet-node-a", "annotations": {"vmlet.dev/node-facts": facts.to_string()}},
            "spec": {"renewTime": "2026-01-02T03:04:00.000000Z"},
        });
        let node = json!({"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        Observation {
            nodes: Ok(vec![serde_json::from_value(node).unwrap()]),
            leases: Ok(vec![serde_json::from_value(lease).unwrap()]),
            ..nothing()
        }
    };
    let upgradeable = |bound: u32| {
        let found = assess(&seen(bound), &[], "1", &now(), &mut Memory::default());
        let ComponentState::Found(conditions) = &found.components[4].state else {
            panic!("{:?}", found.components[4]);
        };
        conditions.upgradeable.clone().unwrap()
    };
    assert_eq!(upgradeable(0).status, Status::True);
    let reported = upgradeable(2);
    assert_eq!(reported.status, Status::False);
    assert!(
        reported.message.contains("on a would not survive"),
        "{reported:?}"
    );
}

#[test]
fn without_a_daemon_set_the_agents_report_the_node_status() {
    let node = |name: &str| {
        let node = json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        serde_json::from_value(node).unwrap()
    };
    let lease = |name: &str, reachable: bool| {
        let facts = json!({"daemon": {"reachable": reachable, "version": "1"}});
        let lease = json!({
            "metadata": {"name": format!("vmlet-node-{name}"), "annotations": {"vmlet.dev/node-facts": facts.to_string()}},
            "spec": {"renewTime": "2026-01-02T03:04:00.000000Z"},
        });
        serde_json::from_value(lease).unwrap()
    };
    let seen = Observation {
        nodes: Ok(vec![node("a"), node("b"), node("plain")]),
        leases: Ok(vec![lease("a", true), lease("b", false)]),
        ..nothing()
    };
    let found = assess(&seen, &[], "1", &now(), &mut Memory::default());
    let counted = count(&found.nodes);
    assert_eq!(
        (counted.targeted, counted.ready, counted.degraded),
        (2, 1, 1)
    );
    assert_eq!(counted.bad, ["b"]);
    let runtime = &found.components[4];
    assert!(runtime.version_matches);
    let ComponentState::Found(conditions) = &runtime.state else {
        panic!("{runtime:?}");
    };
    assert!(
        conditions
            .progressing
            .as_ref()
            .unwrap()
            .message
            .contains("1 of 2")
    );
}

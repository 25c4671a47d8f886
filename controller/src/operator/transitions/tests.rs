//! The event of each transition.
//!
//! Invariant: statuses are made as passes make them, by consolidation.
//! Failure: the assertion shows the events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::operator::component::{Component, ComponentCondition, Conditions};
use crate::operator::status::{record, summarize};
use crate::operator::{Rules, consolidate, initial};

/// The status after a pass that found one part with these conditions.
fn after(old: &VmletStatus, conditions: Conditions, upgrade: Option<&str>) -> VmletStatus {
    let mut new = old.clone();
    let mut part = Component::found("Runtime", conditions);
    part.version_matches = upgrade.is_none();
    let summary = consolidate(&[part], upgrade, &Rules::ours(false));
    summarize(&mut new, &summary, Some(1), &now());
    new
}

fn now() -> Time {
    Time("2026-01-02T03:04:05Z".parse().unwrap())
}

fn reported(status: Status, message: &str) -> Option<ComponentCondition> {
    Some(ComponentCondition::new(status, message))
}

fn well() -> Conditions {
    Conditions {
        available: reported(Status::True, ""),
        progressing: reported(Status::False, ""),
        degraded: reported(Status::False, ""),
        upgradeable: reported(Status::True, ""),
    }
}

fn started() -> VmletStatus {
    let mut status = VmletStatus::default();
    record(&mut status, "1");
    summarize(&mut status, &initial(), Some(1), &now());
    status
}

fn reasons(old: &VmletStatus, new: &VmletStatus) -> Vec<&'static str> {
    transitions(old, new).iter().map(|one| one.reason).collect()
}

#[test]
fn an_installation_reports_its_start_and_readiness_once() {
    let start = started();
    assert_eq!(reasons(&VmletStatus::default(), &start), ["Initializing"]);
    let ready = after(&start, well(), None);
    assert_eq!(reasons(&start, &ready), ["Ready"]);
    assert!(transitions(&ready, &after(&ready, well(), None)).is_empty());
}

#[test]
fn the_worst_new_problem_is_one_event_with_the_message_of_its_condition() {
    let ready = after(&started(), well(), None);
    let rolling = Conditions {
        progressing: reported(Status::True, "2 of 3 pods"),
        ..well()
    };
    let rolling = after(&ready, rolling, None);
    let found = transitions(&ready, &rolling);
    assert_eq!((found[0].reason, found[0].is_warning), ("NotReady", true));
    assert!(found[0].message.contains("2 of 3 pods"), "{found:?}");

    let broken = Conditions {
        degraded: reported(Status::True, "a pod is missing"),
        ..well()
    };
    let broken = after(&rolling, broken, None);
    assert_eq!(reasons(&rolling, &broken), ["Degraded"]);

    let away = Conditions {
        available: reported(Status::False, "nothing serves"),
        degraded: reported(Status::True, "all pods are missing"),
        ..well()
    };
    let away = after(&broken, away, None);
    assert_eq!(reasons(&broken, &away), ["NotAvailable"]);
    assert_eq!(
        reasons(&ready, &away),
        ["NotAvailable"],
        "one event, not two"
    );
    assert_eq!(reasons(&away, &after(&away, well(), None)), ["Ready"]);
}

#[test]
fn another_message_of_the_same_condition_is_no_event() {
    let trouble = |words| Conditions {
        degraded: reported(Status::True, words),
        ..well()
    };
    let old = after(&started(), trouble("node a"), None);
    let new = after(&old, trouble("node b"), None);
    assert_ne!(old, new);
    assert!(transitions(&old, &new).is_empty());
}

#[test]
fn an_upgrade_has_a_beginning_and_an_end_and_only_faults_in_between() {
    let ready = after(&started(), well(), None);
    let begun = after(&ready, well(), Some("2"));
    let found = transitions(&ready, &begun);
    assert_eq!(reasons(&ready, &begun), ["Upgrading"]);
    assert!(found[0].message.contains("version 2"), "{found:?}");

    let restarting = Conditions {
        available: reported(Status::False, "one pod restarts"),
        ..well()
    };
    let restarting = after(&begun, restarting, Some("2"));
    assert!(transitions(&begun, &restarting).is_empty());
    let stuck = Conditions {
        degraded: reported(Status::True, "a pod does not start"),
        ..well()
    };
    assert_eq!(
        reasons(&begun, &after(&begun, stuck, Some("2"))),
        ["Degraded"]
    );

    let mut done = after(&restarting, well(), None);
    record(&mut done, "2");
    assert_eq!(reasons(&restarting, &done), ["Upgraded", "Ready"]);
}

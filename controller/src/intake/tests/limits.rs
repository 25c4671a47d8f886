//! Which machines a quota and a limit range wake.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the machines.

use crds::conditions::FAILURE;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ResourceQuota};
use kube::core::PartialObjectMeta;

use super::*;

const REFUSAL: &str = "create pod a: pods \"a\" is forbidden: exceeded quota: q";

/// A machine whose pass failed so, at this second.
fn failed(name: &str, namespace: &str, message: &str, second: i64) -> VirtualMachine {
    let mut vm = settled(name);
    vm.metadata.namespace = Some(namespace.to_owned());
    let since = Time(jiff::Timestamp::from_second(second).unwrap());
    let all = &mut vm.status.as_mut().unwrap().conditions;
    set(
        all,
        FAILURE,
        Status::True,
        "FailedCreate",
        message,
        None,
        &since,
    );
    vm
}

fn quota(version: u32, hard: &str, used: &str) -> ResourceQuota {
    serde_json::from_value(json!({
        "metadata": {
            "name": "q", "namespace": "default", "uid": "q", "resourceVersion": version.to_string(),
        },
        "spec": { "hard": { "memory": hard } },
        "status": { "hard": { "memory": hard }, "used": { "memory": used } },
    }))
    .unwrap()
}

fn range(version: &str) -> PartialObjectMeta<LimitRange> {
    of!("range", "default", version)
}

fn keys(adds: Vec<Add>) -> Vec<String> {
    adds.into_iter().map(|add| add.key.to_string()).collect()
}

#[test]
fn a_quota_with_more_room_wakes_the_machines_that_it_refused_and_no_others() {
    let (intake, mut feeds) = ours();
    for vm in [
        failed("a", "default", REFUSAL, 1),
        failed("b", "default", "image debian does not exist", 1),
        failed("c", "elsewhere", REFUSAL, 1),
        settled("d"),
    ] {
        feeds.vms.apply(Event::Apply(vm));
    }
    let mut woken = |event| keys(adds!(intake, feeds.quotas, event));
    let none: [&str; 0] = [];
    assert_eq!(
        woken(Event::Apply(quota(1, "1Gi", "1Gi"))),
        none,
        "a limit more"
    );
    assert_eq!(
        woken(Event::Apply(quota(2, "1Gi", "1Gi"))),
        none,
        "no change"
    );
    let less = quota(3, "1Gi", "512Mi");
    assert_eq!(woken(Event::Apply(less)), ["default/a"], "freed");
    let more = quota(4, "1Gi", "1000Mi");
    assert_eq!(woken(Event::Apply(more)), none, "taken");
    let raised = quota(5, "2Gi", "1000Mi");
    assert_eq!(woken(Event::Apply(raised)), ["default/a"], "raised");
    let gone = quota(6, "2Gi", "1000Mi");
    assert_eq!(woken(Event::Delete(gone)), ["default/a"], "deleted");
}

#[test]
fn a_limit_range_that_changes_wakes_them_too() {
    let (intake, mut feeds) = ours();
    feeds
        .vms
        .apply(Event::Apply(failed("a", "default", REFUSAL, 1)));
    feeds.vms.apply(Event::Apply(settled("b")));
    let mut woken = |event| keys(adds!(intake, feeds.limit_ranges, event));
    assert!(woken(Event::Init).is_empty());
    assert!(woken(Event::InitApply(range("1"))).is_empty());
    assert!(woken(Event::InitDone).is_empty(), "the first list");
    assert_eq!(woken(Event::Apply(range("2"))), ["default/a"]);
    assert!(woken(Event::Apply(range("2"))).is_empty(), "the same");
    assert_eq!(woken(Event::Delete(range("3"))), ["default/a"]);
    assert_eq!(
        woken(Event::Apply(range("4"))),
        ["default/a"],
        "a new one has defaults"
    );
}

#[test]
fn room_that_became_free_wakes_the_few_that_wait_longest_and_a_raise_all() {
    let (intake, mut feeds) = ours();
    for n in 0..100 {
        let vm = failed(&format!("vm-{n:02}"), "default", REFUSAL, 1000 - n);
        feeds.vms.apply(Event::Apply(vm));
    }
    feeds.quotas.apply(Event::Apply(quota(1, "1Gi", "1Gi")));
    let freed = Event::Apply(quota(2, "1Gi", "0"));
    let woken = keys(adds!(intake, feeds.quotas, freed));
    assert_eq!(woken.len(), 16);
    assert_eq!(woken[0], "default/vm-99");
    let raised = Event::Apply(quota(3, "100Gi", "0"));
    assert_eq!(keys(adds!(intake, feeds.quotas, raised)).len(), 100);
}

#[test]
fn other_labels_of_a_namespace_wake_the_machines_that_it_refused() {
    let (intake, mut feeds) = ours();
    feeds
        .vms
        .apply(Event::Apply(failed("a", "default", REFUSAL, 1)));
    feeds.vms.apply(Event::Apply(settled("b")));
    let namespace = |version: u32, enforce: &str| -> PartialObjectMeta<Namespace> {
        serde_json::from_value(json!({ "metadata": {
            "name": "default", "uid": "n", "resourceVersion": version.to_string(),
            "labels": { "pod-security.kubernetes.io/enforce": enforce },
        }}))
        .unwrap()
    };
    let mut woken = |event| keys(adds!(intake, feeds.namespaces, event));
    assert!(woken(Event::Apply(namespace(1, "restricted"))).is_empty());
    assert!(
        woken(Event::Apply(namespace(2, "restricted"))).is_empty(),
        "no label changed"
    );
    assert_eq!(woken(Event::Apply(namespace(3, "baseline"))), ["default/a"]);
}

//! What is decided for one location.
//!
//! Invariant: no API server, no clock.
//! Failure: none of its own.

use crds::{CacheLocationStatus, VirtualMachineTask};
use rstest::rstest;
use serde_json::{Value, json};

use super::location::{Effect, Facts, Verdict, judge};
use super::wanted::Want;
use crate::stores::Key;

const NOW: i64 = 1_000_000;

fn facts() -> Facts<'static> {
    Facts {
        node: "n1",
        old: None,
        want: None,
        task: None,
        pre_pull: None,
        is_listed: false,
        lists_all: true,
        was_pre_pulled: false,
        lives: true,
        is_able: true,
        is_private: false,
        held: None,
        now: NOW,
    }
}

/// A machine waits on the node since so many seconds.
fn waits(seconds: i64) -> Want {
    Want {
        waits_since: Some(NOW - seconds),
        ..Want::default()
    }
}

/// As the status has it, since so many seconds.
fn known(status: &str, reason: &str, seconds: i64) -> CacheLocationStatus {
    let since = jiff::Timestamp::from_second(NOW - seconds).unwrap();
    serde_json::from_value(json!({
        "node": "n1", "store": "default", "format": "qcow2",
        "conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": since.to_string(),
        }],
    }))
    .unwrap()
}

fn task(status: &Value) -> VirtualMachineTask {
    serde_json::from_value(json!({
        "metadata": { "name": "t" },
        "spec": { "nodeName": "n1", "vmName": "c", "vmUID": "u", "kind": "PullImage" },
        "status": status,
    }))
    .unwrap()
}

fn found(facts: &Facts<'_>) -> (String, Effect) {
    let verdict = judge(facts).expect("a location");
    let status = verdict.status.as_str();
    (format!("{status}/{}", verdict.reason), verdict.effect)
}

fn is(facts: &Facts<'_>, text: &str, effect: Effect) -> Verdict {
    assert_eq!(found(facts), (text.to_owned(), effect));
    judge(facts).unwrap()
}

#[test]
fn a_node_on_which_a_machine_starts_at_once_gets_no_task() {
    let want = waits(1);
    let mut facts = facts();
    facts.want = Some(&want);
    let pending = judge(&facts).unwrap();
    assert!(pending.is_pending && pending.effect == Effect::None);
    assert_eq!(pending.again, Some(2));
    facts.now += 2;
    let due = judge(&facts).unwrap();
    assert!(!due.is_pending);
    assert_eq!(found(&facts), ("False/Pulling".to_owned(), Effect::Pull));
    let seen = Want {
        is_seen: true,
        ..Want::default()
    };
    facts.want = Some(&seen);
    is(&facts, "True/Pulled", Effect::None);
}

/// The clock of the API server is an hour ahead, or behind.
#[rstest]
#[case(-3600)]
#[case(3600)]
fn a_wrong_clock_delays_no_pull(#[case] seconds: i64) {
    let want = waits(seconds);
    let mut facts = facts();
    facts.want = Some(&want);
    is(&facts, "False/Pulling", Effect::Pull);
}

#[test]
fn the_progress_is_shown_in_steps_and_the_end_is_recorded_before_the_task_goes() {
    let want = waits(60);
    let pulling = known("False", "Pulling", 50);
    let running = task(&json!({ "state": "Running", "progressPercent": 47 }));
    let mut facts = facts();
    facts.want = Some(&want);
    facts.old = Some(&pulling);
    facts.task = Some(&running);
    let shown = is(&facts, "False/Pulling", Effect::None);
    assert_eq!(shown.message, "node n1 pulls the image: 40 %");
    facts.lives = false;
    is(&facts, "Unknown/NodeUnavailable", Effect::None);
    facts.lives = true;
    let ended = task(&json!({ "state": "Success" }));
    facts.task = Some(&ended);
    is(&facts, "True/Pulled", Effect::None);
    let ready = known("True", "Pulled", 0);
    facts.old = Some(&ready);
    is(&facts, "True/Pulled", Effect::Clean);
}

#[test]
fn a_failed_pull_says_why_and_is_repeated_while_a_machine_waits() {
    let want = waits(60);
    let pulling = known("False", "Pulling", 50);
    let failed = task(&json!({ "state": "Error", "message": "404 Not Found" }));
    let mut facts = facts();
    facts.want = Some(&want);
    facts.old = Some(&pulling);
    facts.task = Some(&failed);
    facts.held = Some(std::time::Duration::from_secs(17));
    let shown = is(&facts, "False/Failed", Effect::None);
    assert_eq!(shown.message, "node n1: 404 Not Found");
    assert_eq!(shown.again, Some(17));
    facts.held = None;
    is(&facts, "False/Pulling", Effect::Pull);
    facts.want = None;
    assert_eq!(judge(&facts), None, "no machine waits");
}

#[test]
fn files_that_a_node_lost_are_pulled_again_where_a_machine_waits() {
    let want = waits(60);
    let listed = known("True", "Listed", 500);
    let mut facts = facts();
    facts.want = Some(&want);
    facts.old = Some(&listed);
    is(&facts, "False/Pulling", Effect::Pull);
    facts.lists_all = false;
    let young = waits(4);
    facts.want = Some(&young);
    let trusted = is(&facts, "True/Listed", Effect::None);
    assert_eq!(
        trusted.again,
        Some(6),
        "kubelet has ten seconds to start the pod"
    );
    facts.want = Some(&want);
    is(&facts, "False/Pulling", Effect::Pull);
    let checked = known("True", "Pulled", 2);
    facts.old = Some(&checked);
    is(&facts, "True/Pulled", Effect::None);
}

#[test]
fn a_pre_pull_fetches_lost_files_after_ten_minutes() {
    let requested = Want {
        is_pre_pulled: true,
        ..Want::default()
    };
    let listed = known("True", "Listed", 500);
    let mut facts = facts();
    facts.want = Some(&requested);
    facts.was_pre_pulled = true;
    facts.old = Some(&listed);
    let lost = is(&facts, "False/Missing", Effect::None);
    assert_eq!(lost.again, Some(600));
    let missing = known("False", "Missing", 590);
    facts.old = Some(&missing);
    assert_eq!(is(&facts, "False/Missing", Effect::None).again, Some(10));
    facts.now += 10;
    is(&facts, "False/Pulling", Effect::Pull);
    let failed = task(&json!({ "state": "Error", "message": "no space" }));
    facts.task = Some(&failed);
    facts.held = Some(std::time::Duration::from_secs(60));
    is(&facts, "False/Failed", Effect::None);
    facts.held = None;
    is(&facts, "False/Pulling", Effect::Pull);
}

#[test]
fn a_pre_pull_that_has_not_begun_or_goes_on_or_failed_is_shown() {
    let requested = Want {
        is_pre_pulled: true,
        ..Want::default()
    };
    let mut facts = facts();
    facts.want = Some(&requested);
    is(&facts, "Unknown/Waiting", Effect::None);
    let running = task(&json!({ "state": "Running", "progressPercent": 12 }));
    facts.pre_pull = Some(&running);
    is(&facts, "False/Pulling", Effect::None);
    let failed = task(&json!({ "state": "Error", "message": "no space" }));
    facts.pre_pull = Some(&failed);
    is(&facts, "False/Failed", Effect::None);
    let want = Want {
        is_pre_pulled: true,
        ..waits(60)
    };
    facts.want = Some(&want);
    is(&facts, "False/Pulling", Effect::Pull);
    facts.is_able = false;
    is(&facts, "Unknown/NodeUnavailable", Effect::None);
    facts.is_private = true;
    is(&facts, "False/Pulling", Effect::None);
}

#[test]
fn a_location_without_use_goes_after_a_day_and_one_with_a_disk_stays() {
    let ready = known("True", "Pulled", 500);
    let mut facts = facts();
    facts.old = Some(&ready);
    let unused = is(&facts, "True/Pulled", Effect::None);
    assert_eq!(unused.again, Some(86_400));
    let mut later = ready.clone();
    later.unused_since = unused.unused_since;
    facts.old = Some(&later);
    facts.now += 86_399;
    assert_eq!(judge(&facts).unwrap().again, Some(1));
    facts.now += 1;
    assert_eq!(judge(&facts), None);
    let disk = Want::default();
    facts.want = Some(&disk);
    assert_eq!(judge(&facts).unwrap().unused_since, None);
    let lost = known("True", "Listed", 500);
    facts.old = Some(&lost);
    assert_eq!(judge(&facts), None, "a disk does not need the files again");
}

#[test]
fn names_of_caches_differ_by_kind_and_namespace_and_fit() {
    let of =
        |kind: &str, namespace: &str, name: &str| super::name(kind, &Key::new(namespace, name));
    let one = of("VirtualMachineImage", "ns", "debian");
    assert!(one.starts_with("debian-") && one.len() == 23, "{one}");
    assert_ne!(one, of("VirtualMachineImage", "other", "debian"));
    assert_ne!(one, of("ClusterVirtualMachineImage", "", "debian"));
    let dotted = format!("{}.{}", "x".repeat(199), "y".repeat(53));
    assert!(!of("VirtualMachineImage", "ns", &dotted).contains(".-"));
    let long = "x".repeat(253);
    assert!(of("VirtualMachineImage", "ns", &long).len() <= 253);
}

//! Rows U: what a failure of one step means for the next.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::json;

use super::bench::*;
use crate::outcome::{Outcome, Stop};
use crate::reconcile::vm::update::{Aggregate, Step};

/// The result of a pass whose steps have these results, and how many of them ran.
fn through(steps: Vec<(Step, Outcome<()>)>, is_going_off: bool) -> (Outcome<()>, usize) {
    let mut aggregate = Aggregate::default();
    for (index, (step, result)) in steps.into_iter().enumerate() {
        if let std::ops::ControlFlow::Break(end) = aggregate.take(step, result, is_going_off) {
            return (end, index + 1);
        }
    }
    (aggregate.end(), usize::MAX)
}

fn failed(text: &'static str) -> Outcome<()> {
    Err(Stop::Failed(anyhow::anyhow!(text)))
}

#[tokio::test]
async fn u1_a_failed_status_turns_a_later_quiet_stop_into_a_retry() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "no json" } } });
    bench.edit(PODS, "vm", facts);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    assert!(failure(&bench.pass().await).contains("guest facts"));
    // The step that ends quietly ran all the same.
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[test]
fn u2_a_quiet_stop_alone_is_no_retry_and_ends_the_pass() {
    let (end, ran) = through(
        vec![(Step::Plain, Err(Stop::quiet("x"))), (Step::Plain, Ok(()))],
        false,
    );
    assert!(matches!(end, Err(Stop::NoRequeue { quiet: true, .. })));
    assert_eq!(ran, 1);
}

const BAD: &str = "no version";

#[tokio::test]
async fn u3a_a_failed_configuration_keeps_a_machine_from_power_changes() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let restart = json!({ "minMachineType": BAD, "nextRestartTime": "2027-01-15T07:59:00Z" });
    bench.edit(VMS, "vm", json!({ "spec": restart }));
    assert!(failure(&bench.pass().await).contains("minMachineType"));
    assert!(bench.tasks("GuestReboot").is_empty());
}

#[tokio::test]
async fn u3b_but_not_from_being_powered_off() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let off = json!({ "minMachineType": BAD, "runStrategy": "Halted" });
    bench.edit(VMS, "vm", json!({ "spec": off }));
    assert!(failure(&bench.pass().await).contains("minMachineType"));
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[test]
fn u4a_a_configuration_that_waits_ends_the_pass() {
    let steps = vec![
        (Step::Config, Err(Stop::wait("network"))),
        (Step::Plain, Ok(())),
    ];
    let (end, ran) = through(steps, false);
    assert!(matches!(end, Err(Stop::NoRequeue { quiet: false, .. })));
    assert_eq!(ran, 1);
}

#[test]
fn u4b_unless_the_machine_is_to_go_off() {
    let steps = vec![
        (Step::Config, Err(Stop::wait("network"))),
        (Step::Plain, Err(Stop::quiet("off"))),
    ];
    let (end, ran) = through(steps, true);
    assert!(matches!(end, Err(Stop::NoRequeue { quiet: true, .. })));
    assert_eq!(ran, 2);
}

#[tokio::test]
async fn u5a_a_machine_on_the_wrong_node_is_left_alone() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n2", true);
    bench.edit(PODS, "vm", json!({ "spec": { "nodeName": "n2" } }));
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    assert!(is_wait(&bench.pass().await));
    assert_eq!(
        bench.says("VirtualMachineLocationValid"),
        "False/NodeMismatch"
    );
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
}

#[test]
fn u5b_a_step_that_changed_the_object_ends_two_passes_quietly() {
    for _ in 0..2 {
        let steps = vec![
            (Step::Plain, Ok(())),
            (Step::Plain, Err(Stop::quiet("schema"))),
        ];
        let (end, ran) = through(steps, false);
        assert!(matches!(end, Err(Stop::NoRequeue { quiet: true, .. })));
        assert_eq!(ran, 2);
    }
}

#[test]
fn u5c_a_backup_that_was_written_ends_the_pass_quietly() {
    let steps = vec![
        (Step::Plain, Err(Stop::quiet("backed up"))),
        (Step::Config, failed("x")),
    ];
    assert!(matches!(
        through(steps, false),
        (Err(Stop::NoRequeue { quiet: true, .. }), 1)
    ));
}

#[test]
fn u6_two_failures_are_both_in_the_result() {
    let (end, _) = through(
        vec![
            (Step::Plain, failed("power")),
            (Step::Plain, failed("snapshot")),
        ],
        false,
    );
    let Err(Stop::Failed(error)) = end else {
        panic!("{end:?}");
    };
    let text = format!("{error:#}");
    assert!(
        text.contains("power") && text.contains("snapshot"),
        "{text}"
    );
}

#[tokio::test]
async fn a_failed_step_keeps_its_reason_among_several() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "no json" } } });
    bench.edit(PODS, "vm", facts);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("guest facts") && text.contains("delete pod"),
        "{text}"
    );
    assert!(bench.says("Failure").starts_with("True/"));
}

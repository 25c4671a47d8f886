//! The state of an instance, from its pod.
//!
//! Invariant: a live pod on a silent node has not ended, and one that never started has never run.
//! Failure: the case is in the test's name.

use k8s_openapi::api::core::v1::Pod;
use lifecycle::{EndCause, Instance, NodeState, Phase, Unstartable};
use rstest::rstest;
use serde_json::{Value, json};

fn read(status: impl Into<Value>, node: NodeState) -> Instance {
    let status: Value = status.into();
    let pod = json!({
        "metadata": {
            "uid": "u1",
            "annotations": {"vmlet.dev/vm-generation": "4", "vmlet.dev/vm-revision": "abc"},
        },
        "spec": {"nodeName": "node", "containers": []},
        "status": status,
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    Instance::from_pod(&pod, node)
}

fn container(state: &Value) -> Value {
    json!({"name": "vm", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state})
}

fn ended(code: i32, reason: &str, started: &str) -> Instance {
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "message": "text",
        "startedAt": started, "finishedAt": "2026-01-01T00:05:00Z"}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&state)]});
    read(status, NodeState::Ready)
}

const STARTED: &str = "2026-01-01T00:00:00Z";

#[rstest]
#[case(0, "GuestShutdown", Phase::Succeeded, EndCause::GuestShutdown)]
#[case(0, "Stopped", Phase::Succeeded, EndCause::Stopped)]
#[case(0, "Saved", Phase::Succeeded, EndCause::Saved)]
#[case(137, "GraceExceeded", Phase::Failed, EndCause::GraceExceeded)]
#[case(101, "GuestPanic", Phase::Failed, EndCause::GuestPanic)]
#[case(137, "OOMKilled", Phase::Failed, EndCause::OomKilled)]
#[case(128, "StartError", Phase::Failed, EndCause::StartError)]
#[case(0, "StartError", Phase::Failed, EndCause::StartError)]
#[case(0, "Completed", Phase::Succeeded, EndCause::Other("Completed".into()))]
#[case(255, "Unknown", Phase::Failed, EndCause::Other("Unknown".into()))]
fn an_end_is_told_by_code_and_reason(
    #[case] code: i32,
    #[case] reason: &str,
    #[case] phase: Phase,
    #[case] cause: EndCause,
) {
    let instance = ended(code, reason, STARTED);
    assert_eq!(instance.phase, phase);
    assert_eq!(instance.end.as_ref(), Some(&cause));
    assert_eq!(
        (instance.exit_code, instance.message.as_str()),
        (Some(code), "text")
    );
    assert_eq!(instance.ran_seconds(&crate::build::now()), Some(300));
    assert_eq!(cause.to_string(), reason);
}

#[test]
fn a_container_of_the_epoch_never_started() {
    let instance = ended(128, "StartError", "1970-01-01T00:00:00Z");
    assert!(!instance.ever_ran());
    assert_eq!(instance.ran_seconds(&crate::build::now()), None);
}

#[rstest]
#[case("Evicted")]
#[case("Terminated")]
#[case("NodeShutdown")]
#[case("Preempting")]
#[case("UnexpectedAdmissionError")]
#[case("OutOfcpu")]
#[case("OutOfmemory")]
fn a_pod_that_the_host_took_away_failed(#[case] reason: &str) {
    let status =
        json!({"phase": "Failed", "reason": reason, "message": "the node was low on memory"});
    let instance = read(status, NodeState::Ready);
    assert_eq!(instance.phase, Phase::Failed);
    assert_eq!(instance.end, Some(EndCause::Host(reason.into())));
    assert!(instance.disrupted);
}

#[rstest]
#[case(json!({"phase": "Failed", "reason": "DeadlineExceeded"}), Phase::Failed, "DeadlineExceeded")]
#[case(json!({"phase": "Failed"}), Phase::Failed, "Failed")]
#[case(json!({"phase": "Succeeded"}), Phase::Succeeded, "Succeeded")]
fn a_pod_without_containers_ends_with_its_own_phase(
    #[case] status: Value,
    #[case] phase: Phase,
    #[case] cause: &str,
) {
    let instance = read(status, NodeState::Ready);
    assert_eq!(instance.phase, phase);
    assert_eq!(instance.end, Some(EndCause::Other(cause.into())));
    assert!(!instance.disrupted);
}

#[test]
fn a_running_pod_with_a_reason_of_the_host_has_not_ended() {
    let status = json!({"phase": "Running", "reason": "NodeLost"});
    assert_eq!(read(status, NodeState::Ready).end, None);
}

#[test]
fn a_clean_exit_does_not_hide_a_disruption() {
    let state = json!({"terminated": {"exitCode": 0, "reason": "Stopped", "startedAt": STARTED}});
    let status = json!({
        "phase": "Succeeded",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
        "containerStatuses": [container(&state)],
    });
    let instance = read(status, NodeState::Ready);
    assert_eq!(instance.phase, Phase::Succeeded);
    assert!(instance.disrupted);
}

#[test]
fn a_running_container_is_a_running_instance_unless_its_node_is_silent() {
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "vmlet.dev/Paused", "status": "True"}],
        "containerStatuses": [container(&json!({"running": {"startedAt": STARTED}}))],
    });
    let instance = read(status.clone(), NodeState::Ready);
    assert_eq!(instance.phase, Phase::Running);
    assert_eq!(instance.paused.as_deref(), Some("PausedByUser"));
    assert_eq!(instance.ready, Some(true));
    assert_eq!(
        (instance.generation, instance.revision.as_deref()),
        (Some(4), Some("abc"))
    );
    assert_eq!(read(status, NodeState::NotReady).phase, Phase::Unknown);
}

#[test]
fn an_end_that_was_reported_stays_one_on_a_silent_node() {
    let state =
        json!({"terminated": {"exitCode": 0, "reason": "GuestShutdown", "startedAt": STARTED}});
    let status = json!({"phase": "Running", "containerStatuses": [container(&state)]});
    assert_eq!(read(status, NodeState::NotReady).phase, Phase::Succeeded);
}

#[rstest]
#[case("ContainerCreating", None)]
#[case("CreateContainerConfigError", None)]
#[case("ErrImagePull", Some(Unstartable::ErrImagePull))]
#[case("RegistryUnavailable", Some(Unstartable::ErrImagePull))]
#[case("ImagePullBackOff", Some(Unstartable::ImagePullBackOff))]
#[case("InvalidImageName", Some(Unstartable::InvalidImageName))]
fn a_container_that_waits_says_why(#[case] reason: &str, #[case] want: Option<Unstartable>) {
    let state = json!({"waiting": {"reason": reason, "message": "not found"}});
    let status = json!({"phase": "Pending", "containerStatuses": [container(&state)]});
    let instance = read(status, NodeState::Ready);
    assert_eq!(
        (instance.phase, instance.unstartable),
        (Phase::Scheduled, want)
    );
    assert_eq!(instance.message, "not found");
}

#[rstest]
#[case("Unschedulable", Phase::Scheduling, Some(Unstartable::Unschedulable))]
#[case("SchedulingGated", Phase::Pending, None)]
fn an_unscheduled_pod_reports_the_reason(
    #[case] reason: &str,
    #[case] phase: Phase,
    #[case] want: Option<Unstartable>,
) {
    let pod = json!({
        "metadata": {"uid": "u1", "deletionTimestamp": STARTED, "deletionGracePeriodSeconds": 30},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": reason, "message": "no room"}]},
    });
    let instance = Instance::from_pod(&serde_json::from_value(pod).unwrap(), NodeState::Ready);
    assert_eq!((instance.phase, instance.unstartable), (phase, want));
    assert_eq!(
        (instance.deleting, instance.grace_seconds),
        (true, Some(30))
    );
    assert!(!instance.is_live());
}

#[test]
fn a_pod_without_a_phase_is_pending() {
    let instance = Instance::from_pod(&Pod::default(), NodeState::Ready);
    assert_eq!(instance.phase, Phase::Pending);
}

#[rstest]
#[case(json!([]), false)]
#[case(json!([{"type": "DisruptionTarget", "status": "False"}]), false)]
#[case(json!([{"type": "Ready", "status": "True"}]), false)]
#[case(json!([{"type": "DisruptionTarget", "status": "True"}]), true)]
fn a_disruption_condition_marks_the_pod_as_disrupted(
    #[case] conditions: Value,
    #[case] want: bool,
) {
    let status = json!({"phase": "Running", "conditions": conditions});
    assert_eq!(read(status, NodeState::Ready).disrupted, want);
}

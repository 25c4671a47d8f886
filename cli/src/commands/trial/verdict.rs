//! What a pod reports about its guest: pure.
//!
//! Invariant: a pod that ended is never up, whatever its conditions are.
//! Failure: none; a pod that reports nothing waits for kubelet.

use k8s_openapi::api::core::v1::{ContainerState, Pod, PodCondition, PodStatus};

/// How far the guest is, in words for people.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    Waits(String),
    Up { node: String },
    Ended(String),
}

pub(super) fn state(pod: &Pod) -> State {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    if matches!(phase, "Succeeded" | "Failed") {
        return State::Ended(end(&status).unwrap_or_else(|| phase.to_owned()));
    }
    match node {
        Some(node) if is_true(condition(&status, "Ready")) => State::Up { node },
        Some(node) => State::Waits(format!("on node {node}: {}", step(&status))),
        None => State::Waits(unscheduled(&status)),
    }
}

/// What its container waits for.
fn step(status: &PodStatus) -> String {
    let Some(container) = container(status) else {
        return "kubelet has not begun".to_owned();
    };
    match container {
        ContainerState {
            waiting: Some(waiting),
            ..
        } => words(waiting.reason.as_deref(), waiting.message.as_deref()),
        _ => "it runs and is not ready".to_owned(),
    }
}

/// How it ended.
fn end(status: &PodStatus) -> Option<String> {
    let ended = container(status).and_then(|state| state.terminated.as_ref());
    if let Some(ended) = ended {
        let words = words(ended.reason.as_deref(), ended.message.as_deref());
        return Some(format!("exit code {}, {words}", ended.exit_code));
    }
    status
        .reason
        .is_some()
        .then(|| words(status.reason.as_deref(), status.message.as_deref()))
}

fn unscheduled(status: &PodStatus) -> String {
    let scheduled = condition(status, "PodScheduled");
    let message = scheduled.and_then(|one| one.message.as_deref());
    message.unwrap_or("no node is chosen yet").to_owned()
}

fn words(reason: Option<&str>, message: Option<&str>) -> String {
    let words = [reason, message].map(Option::unwrap_or_default);
    let words: Vec<_> = words.into_iter().filter(|one| !one.is_empty()).collect();
    words.join(": ")
}

fn container(status: &PodStatus) -> Option<&ContainerState> {
    let all = status.container_statuses.as_deref().unwrap_or_default();
    all.first().and_then(|one| one.state.as_ref())
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    let all = status.conditions.as_deref().unwrap_or_default();
    all.iter().find(|one| one.type_ == kind)
}

fn is_true(condition: Option<&PodCondition>) -> bool {
    condition.is_some_and(|one| one.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state_of(node: Option<&str>, status: &Value) -> State {
        let pod = json!({ "spec": { "nodeName": node, "containers": [] }, "status": status });
        state(&serde_json::from_value(pod).unwrap())
    }

    fn waits(words: &str) -> State {
        State::Waits(words.to_owned())
    }

    #[test]
    fn a_pod_is_up_when_it_is_ready_on_a_node() {
        let ready = |phase| json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": "True" }] });
        let node = "n1".to_owned();
        assert_eq!(state_of(Some("n1"), &ready("Running")), State::Up { node });
        assert_eq!(
            state_of(Some("n1"), &ready("Failed")),
            State::Ended("Failed".to_owned())
        );
    }

    #[test]
    fn a_pod_that_waits_says_what_for() {
        assert_eq!(state_of(None, &json!({})), waits("no node is chosen yet"));
        let scheduled =
            json!({ "type": "PodScheduled", "status": "False", "message": "0/1 nodes" });
        assert_eq!(
            state_of(None, &json!({ "conditions": [scheduled] })),
            waits("0/1 nodes")
        );
        assert_eq!(
            state_of(Some("n1"), &json!({})),
            waits("on node n1: kubelet has not begun")
        );
        let container = |state: Value| {
            json!({ "containerStatuses": [{
            "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }] })
        };
        let pull = json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } });
        assert_eq!(
            state_of(Some("n1"), &container(pull)),
            waits("on node n1: ErrImagePull: no such image")
        );
        let runs = container(json!({ "running": {} }));
        assert_eq!(
            state_of(Some("n1"), &runs),
            waits("on node n1: it runs and is not ready")
        );
        let mut ended = container(json!({ "terminated": { "exitCode": 137, "reason": "Error" } }));
        ended["phase"] = "Failed".into();
        assert_eq!(
            state_of(Some("n1"), &ended),
            State::Ended("exit code 137, Error".to_owned())
        );
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "no memory" });
        assert_eq!(
            state_of(Some("n1"), &evicted),
            State::Ended("Evicted: no memory".to_owned())
        );
    }
}

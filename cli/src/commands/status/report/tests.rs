use serde_json::json;

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn machine(status: impl Into<serde_json::Value>) -> VirtualMachine {
    let status: serde_json::Value = status.into();
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "metadata": {"name": "web", "namespace": "team-a", "uid": "u1"},
        "spec": {"imageName": "debian", "className": "small", "runStrategy": "RerunOnFailure", "paused": true},
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_machine_with_everything() {
    let vm = machine(json!({
        "printableStatus": "Running", "powerState": "PoweredOn", "nodeName": "node-1", "ready": true,
        "network": {"primaryIP4": "10.88.0.7", "primaryIP6": "fd00::7"},
        "guest": {"osName": "Debian\u{1b}[2J 12"},
        "instance": {"uid": "p0", "phase": "Failed", "reason": "GuestPanic", "exitCode": 101,
            "finishedAt": "2026-01-01T11:00:00Z", "message": "panic"},
        "startFailure": {"consecutiveFailCount": 2, "retryAfterTimestamp": "2026-01-01T12:00:40Z"},
        "stateChangeRequests": [{"action": "Stop", "uid": "p1"}, {"action": "Start"}],
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "PodReady", "message": "", "lastTransitionTime": "2026-01-01T11:59:30Z"},
            {"type": "RestartRequired", "status": "True", "reason": "SpecificationChanged", "message": "a restart applies it",
                "lastTransitionTime": "2026-01-01T11:58:00Z"},
        ],
    }));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "uid": "p1"}, "spec": {"nodeName": "node-1", "containers": []},
        "status": {"containerStatuses": [{"name": "vm", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T11:30:00Z"}}}]},
    }))
    .unwrap();
    let tasks: Vec<VirtualMachineTask> = serde_json::from_value(json!([{
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": {"name": "t", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"nodeName": "node-1", "vmName": "web", "vmUID": "u1", "kind": "Provision"},
        "status": {"state": "Success", "progressPercent": 100},
    }]))
    .unwrap();
    let report = Report {
        vm: &vm,
        pod: Some(&pod),
        tasks: Some(&tasks),
        events: Some(&[]),
        verbose: false,
        now: NOW.parse().unwrap(),
    };
    insta::assert_snapshot!(report.render(false));

    // What needs attention comes first, the rest only on request.
    let all = Report {
        verbose: true,
        ..report
    };
    let text = all.render(false);
    let needs = text.find("RestartRequired");
    let well = text.find("  Ready ");
    assert!(needs.is_some() && needs < well, "{text}");
    assert!(!text.contains("-v shows"), "{text}");
}

#[test]
fn a_machine_without_a_status() {
    let mut vm = machine(json!({}));
    vm.status = None;
    let report = Report {
        vm: &vm,
        pod: None,
        tasks: None,
        events: None,
        verbose: false,
        now: NOW.parse().unwrap(),
    };
    insta::assert_snapshot!(report.render(true));
}

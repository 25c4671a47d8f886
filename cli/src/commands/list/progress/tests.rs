use serde_json::{Value, json};

use super::*;

fn said(status: impl Into<Value>, tasks: impl Into<Value>, pods: impl Into<Value>) -> String {
    let (status, tasks, pods): (Value, Value, Value) = (status.into(), tasks.into(), pods.into());
    let vm = serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "metadata": {"name": "web"}, "spec": {"running": true}, "status": status,
    }))
    .unwrap();
    let around = Around {
        tasks: serde_json::from_value(tasks).unwrap(),
        pods: serde_json::from_value(pods).unwrap(),
    };
    progress(&vm, &around, "2026-01-01T12:00:00Z".parse().unwrap())
}

fn task(status: impl Into<Value>) -> Value {
    let status: Value = status.into();
    json!([{"apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask", "metadata": {"name": "t"},
        "spec": {"nodeName": "n", "vmName": "web", "vmUID": "u", "kind": "Provision"}, "status": status}])
}

fn pod(node: Option<&str>, state: impl Into<Value>) -> Value {
    let state: Value = state.into();
    json!([{"metadata": {"name": "web"}, "spec": {"nodeName": node, "containers": []},
        "status": {"containerStatuses": [{"name": "vm", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": state}]}}])
}

#[test]
fn the_way_of_a_machine_is_told_step_by_step() {
    let starting = || json!({"printableStatus": "Starting"});
    let none = || json!([]);
    let all = [
        said(starting(), none(), pod(None, json!({}))),
        said(
            starting(),
            none(),
            pod(
                Some("n"),
                json!({"waiting": {"reason": "ContainerCreating"}}),
            ),
        ),
        said(
            json!({"printableStatus": "Provisioning"}),
            task(json!({})),
            none(),
        ),
        said(
            json!({"printableStatus": "Provisioning"}),
            task(json!({"state": "Running", "progressPercent": 43})),
            none(),
        ),
        said(
            starting(),
            task(json!({"state": "Success"})),
            pod(Some("n"), json!({"running": {}})),
        ),
        said(json!({"printableStatus": "Running"}), none(), none()),
        said(
            json!({"printableStatus": "Running", "ready": true}),
            none(),
            none(),
        ),
        said(
            json!({"printableStatus": "CrashLoopBackOff",
                "startFailure": {"consecutiveFailCount": 3, "retryAfterTimestamp": "2026-01-01T12:01:30Z"}}),
            none(),
            none(),
        ),
        said(
            json!({"printableStatus": "ErrorPvcNotFound", "conditions": [{"type": "Failure", "status": "True",
                "reason": "x", "message": "claim data does not exist", "lastTransitionTime": "2026-01-01T12:00:00Z"}]}),
            none(),
            none(),
        ),
    ];
    assert_eq!(
        all,
        [
            "looking for a node",
            "getting the image",
            "Provision waits for its node",
            "Provision 43%",
            "booting",
            "booting",
            "",
            "failed 3 times, next start in 90s",
            "claim data does not exist",
        ]
    );
}

use serde_json::{Value, json};

use super::*;

fn reported(status: impl Into<Value>, tasks: impl Into<Value>, pods: impl Into<Value>) -> String {
    let status: Value = status.into();
    let tasks: Value = tasks.into();
    let pods: Value = pods.into();
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
fn the_progress_of_a_machine_is_shown_step_by_step() {
    let starting = || json!({"printableStatus": "Starting"});
    let none = || json!([]);
    let all = [
        reported(starting(), none(), pod(None, json!({}))),
        reported(
            starting(),
            none(),
            pod(
                Some("n"),
                json!({"waiting": {"reason": "ContainerCreating"}}),
            ),
        ),
        reported(
            json!({"printableStatus": "Provisioning"}),
            task(json!({})),
            none(),
        ),
        reported(
            json!({"printableStatus": "Provisioning"}),
            task(json!({"state": "Running", "progressPercent": 43})),
            none(),
        ),
        reported(
            starting(),
            task(json!({"state": "Success"})),
            pod(Some("n"), json!({"running": {}})),
        ),
        reported(json!({"printableStatus": "Running"}), none(), none()),
        reported(
            json!({"printableStatus": "Running", "ready": true}),
            none(),
            none(),
        ),
        reported(
            json!({"printableStatus": "CrashLoopBackOff",
                "startFailure": {"consecutiveFailCount": 3, "retryAfterTimestamp": "2026-01-01T12:01:30Z"}}),
            none(),
            none(),
        ),
        reported(
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

#[test]
fn a_guest_that_powers_itself_off_has_not_failed() {
    let waiting = |count: u32, code: Value| {
        let status = json!({
            "printableStatus": "CrashLoopBackOff",
            "startFailure": {
                "consecutiveFailCount": count, "retryAfterTimestamp": "2026-01-01T12:01:30Z",
            },
            "instance": { "uid": "u", "exitCode": code },
        });
        reported(status, json!([]), json!([]))
    };
    assert_eq!(
        waiting(2, json!(0)),
        "the guest powered itself off, next start in 90s"
    );
    assert_eq!(waiting(1, json!(1)), "failed once, next start in 90s");
}

#[test]
fn a_readiness_probe_that_fails_is_not_a_boot() {
    let ready = |reason: &str, message: &str| {
        let condition = json!({
            "type": "Ready", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        });
        let status = json!({ "printableStatus": "Running", "conditions": [condition] });
        reported(status, json!([]), json!([]))
    };
    let fails = "the readiness probe fails";
    assert_eq!(ready("NotReady", fails), fails);
    assert_eq!(ready("NotReady", "the pod is not ready"), "booting");
}

#[test]
fn an_obstacle_is_reported_with_the_message_of_its_source() {
    let condition = |kind: &str, message: &str| {
        json!({"type": kind, "status": "False", "reason": "NotReady", "message": message,
            "lastTransitionTime": "2026-01-01T12:00:00Z"})
    };
    let pulling = json!({"printableStatus": "ImagePullBackOff", "conditions": [
        condition("Ready", "there is no instance"),
        condition("VirtualMachineConditionImageCacheReady", "ErrImagePull: 404 Not Found"),
    ]});
    assert_eq!(
        reported(pulling, json!([]), json!([])),
        "ErrImagePull: 404 Not Found"
    );
    let placing = json!({"printableStatus": "ErrorUnschedulable", "conditions": [
        condition("VirtualMachineConditionPlacementReady", "0/1 nodes are available"),
        condition("Ready", "there is no instance"),
    ]});
    assert_eq!(
        reported(placing, json!([]), json!([])),
        "0/1 nodes are available"
    );
    let refused =
        json!({"waiting": {"reason": "CreateContainerError", "message": "too many vCPUs"}});
    assert_eq!(
        reported(
            json!({"printableStatus": "Starting"}),
            json!([]),
            pod(Some("n"), refused)
        ),
        "CreateContainerError: too many vCPUs"
    );
}

#[test]
fn a_stopping_machine_reports_the_end_of_its_grace_period() {
    let mut pods = pod(Some("n"), json!({"running": {}}));
    pods[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T12:05:00Z");
    for word in ["Stopping", "Terminating"] {
        assert_eq!(
            reported(json!({"printableStatus": word}), json!([]), pods.clone()),
            "asked to power off, has time until 12:05:00 UTC"
        );
    }
    assert_eq!(
        reported(json!({"printableStatus": "Stopping"}), json!([]), json!([])),
        ""
    );
}

/// Steps of a creation and a first start, by what a watch sees: objects of different kinds come in
/// any order.
#[test]
fn the_steps_come_in_one_order() {
    let of = |role: &str, mut pods: Value| {
        pods[0]["metadata"]["labels"] = json!({"vmlet.dev/role": role});
        if role == "instance" {
            pods[0]["metadata"]["annotations"] = json!({"vmlet.dev/vm-disk": "u"});
        }
        pods[0].clone()
    };
    let creating = || json!({"waiting": {"reason": "ContainerCreating"}});
    let holds = || of("provision", pod(Some("n"), json!({"running": {}})));
    let instance = |node, state: Value| of("instance", pod(node, state));
    let making = || task(json!({"state": "Running", "progressPercent": 43}));
    let made = || task(json!({"state": "Success"}));
    let new = || json!({ "printableStatus": "Provisioning" });
    let begun = || json!({ "printableStatus": "Provisioning", "nodeName": "n" });
    let starts = || json!({ "printableStatus": "Starting", "nodeName": "n" });
    let reported: Vec<_> = [
        (
            new(),
            json!([]),
            json!([of("provision", pod(None, json!({})))]),
        ),
        (
            new(),
            json!([]),
            json!([of("provision", pod(Some("n"), creating()))]),
        ),
        (new(), json!([]), json!([holds()])),
        (begun(), json!([]), json!([holds()])),
        (begun(), making(), json!([holds()])),
        (begun(), made(), json!([holds()])),
        (starts(), made(), json!([holds()])),
        (
            starts(),
            made(),
            json!([holds(), instance(None, json!({}))]),
        ),
        (starts(), made(), json!([instance(Some("n"), creating())])),
        (
            starts(),
            made(),
            json!([instance(Some("n"), json!({"running": {}}))]),
        ),
    ]
    .into_iter()
    .map(|(status, tasks, pods)| reported(status, tasks, pods))
    .collect();
    let steps = [
        "looking for a node",
        "getting the image",
        "waits for its turn to make the disk on node n",
        "making the disk",
        "Provision 43%",
        "Provision 100%",
        "starting",
        "starting",
        "starting",
        "booting",
    ];
    assert_eq!(reported, steps);
}

/// A machine whose place was given up has a new placeholder, and the conditions of the old one.
#[test]
fn a_placeholder_says_more_than_conditions_about_a_turn() {
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "True", "message": "",
            "lastTransitionTime": "2026-01-01T12:00:00Z"})
    };
    let status = || {
        json!({"printableStatus": "Provisioning", "conditions": [
            condition("VirtualMachineConditionPlacementReady"),
            condition("VirtualMachineConditionImageCacheReady"),
        ]})
    };
    let placed = |state: Value| {
        let mut pods = pod(Some("n"), state);
        pods[0]["metadata"]["labels"] = json!({"vmlet.dev/role": "provision"});
        reported(status(), json!([]), pods)
    };
    assert_eq!(
        reported(status(), json!([]), json!([])),
        "waits for its turn to make the disk"
    );
    assert_eq!(
        placed(json!({"running": {}})),
        "waits for its turn to make the disk on node n"
    );
    let pulling = json!({"waiting": {"reason": "ContainerCreating"}});
    assert_eq!(placed(pulling), "getting the image");
    // A task is nearer to the end.
    assert_eq!(
        reported(status(), task(json!({})), json!([])),
        "Provision waits for its node"
    );
}

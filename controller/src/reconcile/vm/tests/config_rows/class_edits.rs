//! A class that is edited: when machines that name it follow.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

async fn edited_class(annotations: Value) -> Bench {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    off(&mut bench).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "metadata": { "annotations": annotations } }),
    );
    bench.edit(
        CLASSES,
        "small",
        json!({ "spec": { "hardware": { "cpus": 8 } } }),
    );
    bench.settle().await.ok();
    on(&mut bench).await;
    bench
}

#[tokio::test]
async fn g3d_the_same_class_with_other_content_changes_nothing() {
    let bench = edited_class(json!({})).await;
    assert_eq!(cpus(&bench), "1");
    assert_eq!(bench.condition_text(SYNCED), "False/ClassUpdated");
}

#[tokio::test]
async fn an_edited_class_is_taken_over_as_a_whole_or_not_at_all() {
    for is_allowed in [false, true] {
        let mut bench = Bench::new();
        bench.running(json!({})).await;
        off(&mut bench).await;
        if is_allowed {
            let allows = json!({ "vmlet.dev/same-vm-class-resize": "" });
            bench.edit(VMS, "vm", json!({ "metadata": { "annotations": allows } }));
        }
        let edit = json!({
            "cpuModel": "host-model", "nodeSelector": { "disk": "ssd" }, "runtimeClassName": "other",
            "hardware": { "cpus": 2 }, "policies": { "resources": { "requests": { "cpu": "3" } } },
        });
        bench.edit(CLASSES, "small", json!({ "spec": edit }));
        bench.settle().await.ok();
        on(&mut bench).await;
        let pod = bench.pod();
        let annotations = &pod["metadata"]["annotations"];
        let spec = &pod["spec"];
        let has = [
            annotations["vmlet.dev/vcpu-count"] == "2",
            annotations["vmlet.dev/cpu-model"] == "host-model",
            spec["nodeSelector"]["disk"] == "ssd",
            spec["runtimeClassName"] == "other",
            spec["containers"][0]["resources"]["requests"]["cpu"] == "3",
        ];
        assert_eq!(has, [is_allowed; 5], "{pod}");
    }
}

/// What the guest keeps has to fit: a pod with less would be killed.
#[tokio::test]
async fn a_class_that_shrank_leaves_a_machine_the_memory_that_it_has() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    off(&mut bench).await;
    let less = json!({
        "hardware": { "memory": "64Mi" },
        "policies": { "resources": { "requests": { "memory": "32Mi" }, "limits": { "memory": "64Mi" } } },
    });
    bench.edit(CLASSES, "small", json!({ "spec": less }));
    on(&mut bench).await;
    let pod = bench.pod();
    assert_eq!(
        pod["metadata"]["annotations"]["vmlet.dev/memory"],
        json!("512Mi")
    );
    let resources = &pod["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"]["memory"], "512Mi");
    assert_eq!(resources["requests"]["memory"], "512Mi");
}

/// The API server refuses a pod that requests more than it may use.
#[tokio::test]
async fn a_class_that_reserves_more_than_the_guests_memory_gets_a_pod() {
    let mut bench = Bench::new();
    let more = json!({ "resources": { "requests": { "memory": "1Gi" } } });
    bench.edit(CLASSES, "small", json!({ "spec": { "policies": more } }));
    bench.running(json!({})).await;
    let resources = bench.pod()["spec"]["containers"][0]["resources"].clone();
    assert_eq!(resources["limits"]["memory"], "1Gi");
}

#[tokio::test]
async fn g3e_unless_the_machine_allows_it() {
    let bench = edited_class(json!({ "vmlet.dev/same-vm-class-resize": "" })).await;
    assert_eq!(cpus(&bench), "8");
    assert_eq!(bench.condition_text(SYNCED), "True/Synced");
}

/// A running machine with room, whose class is edited.
async fn edited_while_on(room: Value, hardware: Value) -> Bench {
    edited_of(json!({}), room, hardware).await
}

/// The same of a class with these policies.
async fn edited_of(policies: Value, room: Value, hardware: Value) -> Bench {
    let mut bench = Bench::new();
    bench.edit(
        CLASSES,
        "small",
        json!({ "spec": { "policies": policies } }),
    );
    let mut annotations = json!({ "vmlet.dev/same-vm-class-resize": "" });
    json_patch::merge(&mut annotations, &room);
    bench
        .running(json!({ "metadata": { "annotations": annotations } }))
        .await;
    bench.edit(
        CLASSES,
        "small",
        json!({ "spec": { "hardware": hardware } }),
    );
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn an_edited_class_reaches_a_running_machine_with_room() {
    let room = json!({ "vmlet.dev/max-vcpus": "4", "vmlet.dev/max-memory": "1Gi" });
    let more = json!({ "cpus": 2, "memory": "768Mi" });
    let mut bench = edited_while_on(room, more).await;
    let pod = bench.pod();
    assert_eq!(
        pod["metadata"]["annotations"]["vmlet.dev/max-memory"],
        "1Gi"
    );
    let resources = &pod["spec"]["containers"][0]["resources"];
    let wanted = json!({ "cpu": "2", "memory": "768Mi" });
    assert_eq!(resources["limits"], wanted);
    // A request of 0 keeps the pod's class of service.
    assert_eq!(
        resources["requests"],
        json!({ "cpu": "0", "memory": "768Mi" })
    );
    assert_eq!(bench.condition_text(SYNCED), "False/SameClassResize");
    assert_eq!(bench.status().hardware.unwrap().cpus, 1);

    let container = json!({ "name": "vm", "ready": true, "restartCount": 0, "image": "", "imageID": "",
        "resources": { "limits": { "cpu": "2", "memory": "805306368" } } });
    bench.edit(
        PODS,
        "vm",
        json!({ "status": { "containerStatuses": [container] } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/Synced");
    let hardware = bench.status().hardware.unwrap();
    assert_eq!(
        (hardware.cpus, hardware.memory.unwrap().0.as_str()),
        (2, "768Mi")
    );
}

#[tokio::test]
async fn only_a_class_with_a_size_of_its_own_for_pods_waits() {
    let room = json!({ "vmlet.dev/max-vcpus": "4", "vmlet.dev/max-memory": "1Gi" });
    for (resources, limit) in [
        (json!({ "requests": { "cpu": "100m" } }), "768Mi"),
        (json!({ "requests": { "memory": "512Mi" } }), "512Mi"),
        (json!({ "limits": { "cpu": "4" } }), "512Mi"),
    ] {
        let policies = json!({ "resources": resources });
        let hardware = json!({ "memory": "768Mi" });
        let bench = edited_of(policies, room.clone(), hardware).await;
        let limits = &bench.pod()["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits["memory"], limit, "{resources}");
    }
}

#[tokio::test]
async fn without_enough_room_it_waits_for_the_next_start() {
    let room = json!({ "vmlet.dev/max-vcpus": "4", "vmlet.dev/max-memory": "1Gi" });
    let no_room = json!({});
    for (room, hardware) in [
        (&no_room, json!({ "cpus": 2 })),
        (&room, json!({ "cpus": 5 })),
        (&room, json!({ "memory": "2Gi" })),
        (&room, json!({ "memory": "256Mi" })),
    ] {
        let bench = edited_while_on(room.clone(), hardware.clone()).await;
        let resources = bench.pod()["spec"]["containers"][0]["resources"].clone();
        assert_eq!(
            resources["limits"],
            json!({ "memory": "512Mi" }),
            "{hardware}"
        );
        assert_eq!(bench.condition_text(SYNCED), "False/SameClassResize");
    }
}

#[tokio::test]
async fn a_resize_that_kubelet_refuses_is_in_the_condition() {
    let room = json!({ "vmlet.dev/max-vcpus": "4" });
    let mut bench = edited_while_on(room, json!({ "cpus": 2 })).await;
    let refused = json!({ "type": "PodResizeInProgress", "status": "True", "reason": "Error",
        "message": "the guest does not follow", "lastTransitionTime": bench.time() });
    bench.edit(PODS, "vm", json!({ "status": { "conditions": [refused] } }));
    bench.settle().await.ok();
    let condition = bench.condition(SYNCED).unwrap();
    assert_eq!(condition.reason, "SameClassResize");
    assert!(
        condition.message.contains("does not follow"),
        "{condition:?}"
    );
}

//! Reverts of root disks in claims that fail, that are killed, and that are given up.
//!
//! Invariant: the machine has one root disk at every moment.
//! Failure: none of its own.

use http::Method;

use super::*;
use crate::shared::Shared;

#[tokio::test]
async fn a_controller_that_is_killed_after_any_write_makes_no_second_claim() {
    let mut killed = 0;
    for writes in 0..40 {
        let mut bench = ready().await;
        bench.edit(VMS, "vm", to(Some("s")));
        bench.server.lock().unwrap().writes_left = Some(writes);
        for _ in 0..20 {
            bench.pass().await.ok();
            let is_killed = bench.server.lock().unwrap().writes_left == Some(0);
            if is_killed {
                // Another process.
                bench.server.lock().unwrap().writes_left = None;
                bench.ctx.shared = Shared::default();
                killed += 1;
            }
            if bench.has_pod() && !bench.pod()["metadata"]["deletionTimestamp"].is_null() {
                bench.end("vm", 137, "Killed");
            }
            bind(&mut bench).await;
        }
        assert!(bench.status().snapshot_revert.is_none(), "{writes}");
        let now = claims(&bench);
        assert!(now[0].starts_with("vm-root-"), "{writes}: {now:?}");
        assert_eq!(
            bench.annotation("vm", RECORD),
            uid(&bench, &now[0]),
            "{writes}"
        );
        assert_eq!(all_claims(&bench).len(), 4, "{writes}");
        assert!(bench.has_pod(), "{writes}");
        assert_eq!(image_of_pod(&bench), "vmlet.dev/none", "{writes}");
        let is_over = bench.server.lock().unwrap().writes_left.is_some();
        if is_over {
            assert!(killed > 8, "{killed}");
            return;
        }
    }
    panic!("it never ends");
}

#[tokio::test]
async fn what_the_api_server_refuses_is_said_before_the_machine_is_powered_off() {
    let mut bench = ready().await;
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, 1);
    bench.edit(VMS, "vm", to(Some("s")));
    let text = failure(&bench.pass().await);
    assert!(text.contains("failed to create claim vm-root-"), "{text}");
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert!(bench.status().snapshot_revert.is_none());
    assert_eq!(all_claims(&bench).len(), 2);
}

#[tokio::test]
async fn a_revert_that_is_given_up_leaves_the_machine_on_its_claims() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, usize::MAX);
    bench.end("vm", 137, "Killed");
    let text = failure(&bench.settle().await);
    assert!(text.contains("failed to create claim vm-root-"), "{text}");
    let failed = "False/VirtualMachineSnapshotRevertFailed";
    assert_eq!(bench.condition_text(REVERT), failed);
    assert!(!bench.has_pod());
    bench.reported();
    bench.edit(VMS, "vm", to(None));
    bench.settle().await.ok();
    let text = said(&mut bench, "RevertEnded");
    assert!(text.contains("keeps its claims"), "{text}");
    assert_eq!(claims(&bench), ["data"]);
    assert_eq!(all_claims(&bench).len(), 2);
    assert_eq!(image_of_pod(&bench), "vmlet.dev/none");
    assert!(bench.pod().pointer(GENERATION).is_none());
}

#[tokio::test]
async fn no_claim_of_the_storage_class_is_made_while_the_machine_reverts() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.refuse(Method::POST, "persistentvolumeclaims", 500, usize::MAX);
    bench.end("vm", 137, "Killed");
    failure(&bench.settle().await);
    let earlier = bench.get(CLAIMS, "vm-root");
    bench.remove(CLAIMS, "vm-root");
    bench.server.lock().unwrap().refusals.clear();
    let text = failure(&bench.settle().await);
    assert!(text.contains("claim vm-root no longer exists"), "{text}");
    assert!(bench.try_get(CLAIMS, "vm-root").is_none());
    bench.put(CLAIMS, earlier);
    bench.sync();
    bench.settle().await.ok();
    assert!(claims(&bench)[0].starts_with("vm-root-"));
}

#[tokio::test]
async fn a_snapshot_stays_while_the_machine_reverts_to_it() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.delete_snapshot("s");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_some());
    bench.end("vm", 137, "Killed");
    bench.settle().await.ok();
    assert!(claims(&bench)[0].starts_with("vm-root-"));
    bench.settle().await.ok();
    assert!(bench.status().snapshot_revert.is_none());
    let ready = bench.get(SNAPSHOTS, "s")["status"]["conditions"].to_string();
    assert!(ready.contains("is not bound yet"), "{ready}");
    bind(&mut bench).await;
    bench.settle().await.ok();
    assert!(bench.try_get(SNAPSHOTS, "s").is_none());
}

#[tokio::test]
async fn the_owner_ends_a_revert_on_a_node_that_does_not_report() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.node("n1", false);
    bench.settles().await;
    let stalled = "False/VirtualMachineSnapshotRevertTaskFailed";
    assert_eq!(bench.condition_text(REVERT), stalled);
    let message = bench.condition(REVERT).unwrap().message;
    assert!(message.contains("node n1 does not report"), "{message}");
    bench.edit(VMS, "vm", to(None));
    bench.settle().await.ok();
    assert!(bench.status().snapshot_revert.is_none());
    assert_eq!(claims(&bench), ["data"]);
}

/// A tool that applies the author's files removes the volume of the new claim: the machine would then start from the claim
/// of its storage class without an image, and that claim is empty.
#[tokio::test]
async fn a_machine_whose_own_claim_is_empty_does_not_revert_until_its_guest_has_run() {
    let mut bench = in_class("Halted").await;
    taken(&mut bench).await;
    bench.edit(VMS, "vm", to(Some("s")));
    let text = failure(&bench.settle().await);
    assert!(
        text.contains("claim vm-root") && text.contains("has no content yet"),
        "{text}"
    );
    let failed = "False/VirtualMachineSnapshotRevertFailed";
    assert_eq!(bench.condition_text(REVERT), failed);
    assert!(bench.status().snapshot_revert.is_none());
    assert_eq!(all_claims(&bench).len(), 2, "no claim is made");

    bench.edit(VMS, "vm", to(None));
    let on = json!({ "spec": { "runStrategy": "Always" } });
    bench.edit(VMS, "vm", on.clone());
    bench.settle().await.ok();
    runs(&mut bench).await;
    reverts(&mut bench).await;
    bind(&mut bench).await;
    bench.edit(VMS, "vm", on);
    bench.settle().await.ok();
    runs(&mut bench).await;
    // As the author's files have it.
    let data = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": [data] } }));
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    let claims = bench.pod()["spec"]["volumes"].to_string();
    assert!(claims.contains("\"vm-root\""), "{claims}");
    assert_eq!(image_of_pod(&bench), "vmlet.dev/none", "it has content");
}

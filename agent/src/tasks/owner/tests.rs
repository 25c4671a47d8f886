//! Which tasks are run, against an API server that the test plays.
//!
//! Invariant: a request that the test does not expect fails it.
//! Failure: the sentence or the error.

use crds::VirtualMachineTask;
use crds::guard::Guarded;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;

fn task(kind: &str, metadata: &Value) -> Object {
    let mut made = json!({
        "metadata": { "name": "t", "namespace": "ns", "uid": "t-1" },
        "spec": {
            "nodeName": "n1", "vmName": "web", "vmUID": "disk-1", "kind": kind,
            "snapshot": { "uid": "s-1" }, "source": { "diskUID": "disk-2" },
        },
    });
    let fields = made["metadata"].as_object_mut().unwrap();
    fields.extend(metadata.as_object().unwrap().clone());
    let made: VirtualMachineTask = serde_json::from_value(made).unwrap();
    Object::from_api(Guarded(Ok(made))).unwrap()
}

fn labelled(kind: &str) -> Object {
    task(kind, &json!({ "labels": { "vmlet.dev/vm-uid": "m-1" } }))
}

fn failure(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
        "reason": reason, "code": code,
    })
}

/// The verdict while the machine of that name has this UID; 404 without one.
async fn verdict(object: &Object, uid: Option<&str>) -> Result<Option<String>, String> {
    let (service, mut api) = mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "default");
    let answer = async {
        let (request, reply) = api.next_request().await.unwrap();
        let path = request.uri().path();
        assert_eq!(
            path,
            "/apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachines/web"
        );
        let body = match uid {
            Some("?") => (500, failure(500, "InternalError")),
            Some(uid) => (
                200,
                json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": { "name": "web", "namespace": "ns", "uid": uid },
                }),
            ),
            None => (404, failure(404, "NotFound")),
        };
        let response = Response::builder().status(body.0);
        reply.send_response(
            response
                .body(Body::from(body.1.to_string().into_bytes()))
                .unwrap(),
        );
        std::future::pending::<()>().await;
    };
    tokio::select! {
        found = refusal(&client, object) => found,
        () = answer => unreachable!("it is asked once"),
    }
}

#[tokio::test]
async fn a_task_of_an_earlier_machine_neither_destroys_nor_makes_data() {
    for kind in [
        "Revert",
        "DeleteDisk",
        "DeleteSnapshot",
        "Provision",
        "CloneDisk",
        "RestoreBackup",
    ] {
        let task = labelled(kind);
        assert_eq!(verdict(&task, Some("m-1")).await, Ok(None), "{kind}");
        for uid in [Some("m-2"), None] {
            let refused = verdict(&task, uid).await.unwrap().unwrap();
            assert!(refused.contains("ns/web with UID m-1"), "{refused}");
        }
        assert!(verdict(&task, Some("?")).await.is_err(), "{kind}");
    }
}

#[tokio::test]
async fn the_owner_counts_before_the_label() {
    let owner = json!({ "ownerReferences": [{
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "web", "uid": "m-2",
    }], "labels": { "vmlet.dev/vm-uid": "m-1" } });
    let task = task("DeleteDisk", &owner);
    assert_eq!(verdict(&task, Some("m-2")).await, Ok(None));
    assert!(verdict(&task, Some("m-1")).await.unwrap().is_some());
}

#[tokio::test]
async fn tasks_that_lose_nothing_and_those_of_administrators_need_no_machine() {
    let (service, mut api) = mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "default");
    for task in [labelled("GuestShutdown"), task("DeleteDisk", &json!({}))] {
        assert_eq!(refusal(&client, &task).await, Ok(None));
    }
    drop(client);
    assert!(api.next_request().await.is_none(), "a request was sent");
}

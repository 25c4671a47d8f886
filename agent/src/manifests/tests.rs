//! Whose manifest a disk gets.
//!
//! Invariant: values only.
//! Failure: the machine whose manifest was made.

use http::{Request, Response};
use kube::client::Body;
use nodeapi::Deadlines;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;

const UID: &str = "6f0f2d8e-5a1b-4c77-9d3e-766d6c657401";
const OLD: &str = "7f0f2d8e-5a1b-4c77-9d3e-766d6c657401";

fn object(status: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": { "name": "vm", "namespace": "ns", "uid": UID },
        "spec": { "className": "small", "imageName": "debian" },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn status() -> Value {
    json!({
        "uniqueID": format!("n1/{UID}"), "nodeName": "n1", "biosUUID": UID, "instanceUUID": UID,
    })
}

fn disk(uid: &str) -> Disk {
    Disk {
        vm_uid: uid.to_owned(),
        vm_name: "ns/vm".to_owned(),
        complete: true,
        ..Disk::default()
    }
}

#[test]
fn a_disk_gets_the_manifest_of_the_machine_that_has_it() {
    let text = manifest(&object(&status()), &disk(UID), "n1")
        .unwrap()
        .unwrap();
    let made = MachineManifest::from_json(&text).unwrap();
    assert_eq!((made.uid.as_str(), made.record.node.as_str()), (UID, "n1"));
    assert_eq!(made.spec["imageName"], "debian");
    // The machine has the disk of an earlier one.
    let mut adopted = status();
    adopted["diskUID"] = json!(OLD);
    let text = manifest(&object(&adopted), &disk(OLD), "n1")
        .unwrap()
        .unwrap();
    assert_eq!(MachineManifest::from_json(&text).unwrap().uid, UID);
    assert_eq!(manifest(&object(&adopted), &disk(UID), "n1"), Ok(None));
    // It was made again, elsewhere.
    assert_eq!(manifest(&object(&status()), &disk(UID), "n2"), Ok(None));
}

#[test]
fn the_manifest_of_an_earlier_machine_stays_while_no_other_one_has_its_disk() {
    assert_eq!(manifest(&object(&status()), &disk(OLD), "n1"), Ok(None));
    assert_eq!(manifest(&object(&Value::Null), &disk(OLD), "n1"), Ok(None));
    assert_eq!(manifest(&object(&json!({})), &disk(UID), "n1"), Ok(None));
}

#[test]
fn an_object_that_is_too_large_or_cannot_be_read_has_no_manifest() {
    let mut large = object(&status());
    large.data["spec"]["text"] = json!("x".repeat(64 << 10));
    let refused = manifest(&large, &disk(UID), "n1").unwrap_err();
    assert!(refused.contains("too large"), "{refused}");
    let refused = manifest(&object(&json!({ "nodeName": 7 })), &disk(UID), "n1").unwrap_err();
    assert!(refused.contains("cannot be read"), "{refused}");
}

#[test]
fn an_older_daemon_and_one_that_is_away_are_no_failures_of_a_machine() {
    assert!(is_nothing_to_keep(Code::Unimplemented) && is_nothing_to_keep(Code::NotFound));
    assert!(is_passing(Code::Unavailable) && is_passing(Code::DeadlineExceeded));
    for code in [Code::Internal, Code::InvalidArgument] {
        assert!(!is_nothing_to_keep(code) && !is_passing(code), "{code:?}");
    }
}

#[test]
fn one_machine_that_cannot_be_read_keeps_no_other_from_its_manifest() {
    let api = |code: u16| {
        let status = kube::core::Status::failure("refused", "Refused").with_code(code);
        kube::Error::Api(Box::new(status))
    };
    let garbled = serde_json::from_str::<u8>("x").unwrap_err();
    for error in [kube::Error::SerdeError(garbled), api(403), api(400)] {
        assert!(matches!(problem(&error), Problem::Failed(_)), "{error:?}");
    }
    for code in [401, 429, 500, 503] {
        assert!(matches!(problem(&api(code)), Problem::Passing(_)), "{code}");
    }
}

type Server = Handle<Request<Body>, Response<Body>>;

/// A keeper without a daemon, and the API server that the test plays.
fn keeper() -> (Keeper, Server) {
    let (service, api) = mock::pair();
    let client = kube::Client::new(service, "default");
    let keeper = Keeper {
        client: client.clone(),
        daemon: nodeapi::connect("/nonexistent/socket", Deadlines::default()).unwrap(),
        cluster: Cluster::new(client),
        node: "n1".to_owned(),
        namespace: "vmlet-system".to_owned(),
        interval: ROUND,
    };
    (keeper, api)
}

/// The API server answers one request; returns its path and body.
async fn answer(api: &mut Server, code: u16, body: &Value) -> (String, Value) {
    let (request, reply) = api.next_request().await.unwrap();
    let path = request.uri().path().to_owned();
    let sent = request.into_body().collect_bytes().await.unwrap();
    let body = Body::from(body.to_string().into_bytes());
    reply.send_response(Response::builder().status(code).body(body).unwrap());
    (path, serde_json::from_slice(&sent).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_list_of_disks_that_stays_away_is_a_failure_of_all_machines() {
    let (mut keeper, mut api) = keeper();
    let mut rounds = Rounds::new(keeper.interval);
    assert!(keeper.round(&mut rounds).await.is_err());
    assert_eq!(rounds.report(Instant::now()), None);
    tokio::time::advance(Duration::from_secs(600)).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "n1" },
    });
    let reported = answer(&mut api, 200, &lease);
    let (round, (path, change)) = tokio::join!(keeper.round(&mut rounds), reported);
    assert!(round.is_err());
    assert!(path.ends_with("/leases/vmlet-node-n1"), "{path}");
    let text = change["metadata"]["annotations"][names::BACKUP_FAILURES].as_str();
    let failures: Value = serde_json::from_str(text.unwrap()).unwrap();
    let text = failures["*"].as_str().unwrap();
    assert!(text.contains("not compared"), "{text}");
    assert_eq!(rounds.report(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_is_another_obstacle_than_one_that_is_silent() {
    let (mut keeper, mut api) = keeper();
    let mut rounds = Rounds::new(keeper.interval);
    let disks = [disk(UID)];
    let forbidden = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no right",
        "reason": "Forbidden", "code": 403,
    });
    let refused = answer(&mut api, 403, &forbidden);
    let (compared, (path, _)) = tokio::join!(keeper.compare_all(&disks, &mut rounds), refused);
    assert!(path.ends_with("/namespaces/kube-system"), "{path}");
    assert!(
        matches!(&compared, Err(Obstacle::Other(text)) if text.contains("no right")),
        "{compared:?}"
    );
    let compared = keeper.compare_all(&disks, &mut rounds).await;
    assert_eq!(compared, Err(Obstacle::Silent(SILENT.to_owned())));
}

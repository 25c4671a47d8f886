use serde_json::{Value, json};

use super::*;

fn object(kind: &str, name: &str, source: impl Into<Value>, status: impl Into<Value>) -> Value {
    let source: Value = source.into();
    let status: Value = status.into();
    let mut object = json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"source": source},
        "status": status,
    });
    if kind == "VirtualMachineImage" {
        object["metadata"]["namespace"] = json!("team-a");
    }
    object
}

fn ready(status: &str, reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T11:00:00Z"})
}

fn good() -> Row {
    let status = json!({"type": "qcow2", "nodeCount": 3, "disks": [{"name": "root", "limit": "2Gi"}],
        "conditions": [ready("True", "Known", "all is well")]});
    let source = json!({"http": {"url": "https://images.example/debian.qcow2"}});
    let image = object("ClusterVirtualMachineImage", "debian", source, status);
    let now = "2026-01-01T12:00:00Z".parse().unwrap();
    Row::of_cluster(&serde_json::from_value(image).unwrap(), now)
}

fn bad(name: &str, source: Value, status: impl Into<Value>) -> Row {
    let image = object("VirtualMachineImage", name, source, status);
    let now = "2026-01-01T12:00:00Z".parse().unwrap();
    Row::of_namespace(&serde_json::from_value(image).unwrap(), now)
}

fn rows() -> Vec<Row> {
    let status = json!({"conditions": [ready("False", "Unreachable", "no answer from \
        registry.example\u{1b}[2J\n")]});
    vec![
        bad(
            "broken",
            json!({"oci": {"reference": "registry.example/x:1"}}),
            status,
        ),
        bad("fresh", json!({"pvc": {"name": "disk"}}), json!({})),
        good(),
    ]
}

#[test]
fn an_image_that_is_ready_has_no_message() {
    insta::assert_snapshot!(render(&[good()], Columns::default()), @r"
    NAME    SCOPE    TYPE   SIZE  NODES  READY  AGE
    debian  cluster  qcow2  2Gi   3      True   60m
    ");
}

#[test]
fn a_program_that_is_not_ready_reports_the_reason() {
    insta::assert_snapshot!(render(&rows(), Columns::default()), @r"
    NAME    SCOPE      TYPE   SIZE  NODES  READY               AGE  MESSAGE
    broken  namespace  -      -     -      False: Unreachable  60m  no answer from registry.example�[2J
    fresh   namespace  -      -     -      -                   60m
    debian  cluster    qcow2  2Gi   3      True                60m
    ");
}

#[test]
fn namespaces_and_sources_are_columns_of_their_own() {
    let columns = Columns {
        namespace: true,
        source: true,
    };
    insta::assert_snapshot!(render(&rows(), columns), @r"
    NAMESPACE  NAME    SCOPE      TYPE   SIZE  NODES  READY               AGE  SOURCE                               MESSAGE
    team-a     broken  namespace  -      -     -      False: Unreachable  60m  oci:registry.example/x:1             no answer from registry.example�[2J
    team-a     fresh   namespace  -      -     -      -                   60m  pvc:disk
    -          debian  cluster    qcow2  2Gi   3      True                60m  https://images.example/debian.qcow2
    ");
}

#[test]
fn pulls_before_machines_are_a_column_if_an_image_has_them() {
    let pulls = |failed: u32| {
        let status = json!({"prePull": {"desired": 5, "ready": 2, "failed": failed}});
        bad("wanted", json!({"oci": {"reference": "x/y"}}), status)
    };
    insta::assert_snapshot!(render(&[pulls(0), pulls(1), good()], Columns::default()), @r"
    NAME    SCOPE      TYPE   SIZE  NODES  PRE-PULL        READY  AGE
    wanted  namespace  -      -     -      2/5             -      60m
    wanted  namespace  -      -     -      2/5 (1 failed)  -      60m
    debian  cluster    qcow2  2Gi   3      -               True   60m
    ");
}

use crds::guard::Guarded;
use serde_json::json;

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn machine(name: &str, status: impl Into<serde_json::Value>) -> VirtualMachine {
    let status: serde_json::Value = status.into();
    let spec = json!({"imageName": "debian", "className": "small", "runStrategy": "Always"});
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": spec,
        "status": status,
    }))
    .unwrap()
}

fn rows() -> Vec<Row> {
    let now = NOW.parse().unwrap();
    let running = json!({"printableStatus": "Running", "ready": true, "nodeName": "node-1",
        "network": {"primaryIP4": "10.88.0.7"}});
    vec![
        Row::for_machine(&machine("web", running), String::new(), now),
        Row::for_machine(
            &machine(
                "data\u{1b}[2J",
                json!({"printableStatus": "CrashLoopBackOff"}),
            ),
            "x".into(),
            now,
        ),
        Row::for_machine(&machine("new", json!({})), String::new(), now),
    ]
}

#[test]
fn the_table_has_dashes_for_what_is_unknown() {
    insta::assert_snapshot!(render(&rows(), Columns::default(), false));
}

#[test]
fn wide_tables_and_all_namespaces_have_more_columns() {
    let columns = Columns {
        namespace: true,
        wide: true,
        progress: true,
    };
    insta::assert_snapshot!(render(&rows(), columns, false));
}

#[test]
fn a_machine_that_cannot_be_read_is_a_row_with_the_reason() {
    let object = json!({
        "metadata": {"name": "new", "namespace": "team-a", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"running": true}, "status": {"printableStatus": "OfANewerVersion"},
    });
    let read = serde_json::from_str::<Guarded<VirtualMachine>>(&object.to_string());
    let unreadable = read.unwrap().0.unwrap_err();
    let row = Row::unreadable(&unreadable, NOW.parse().unwrap());
    assert!(row.has_progress());
    let cells = row.cells(Columns {
        progress: true,
        ..Columns::default()
    });
    assert_eq!(cells[..6], ["new", "-", "-", "-", "-", "60m"]);
    assert!(
        cells[6].starts_with("cannot be read: unknown variant `OfANewerVersion`"),
        "{cells:?}"
    );
}

#[test]
fn only_the_status_is_coloured() {
    let plain = render(&rows(), Columns::default(), false);
    let coloured = render(&rows(), Columns::default(), true);
    assert_eq!(coloured.matches("\u{1b}[0m").count(), 2);
    assert!(coloured.contains("\u{1b}[32mRunning"), "{coloured}");
    let uncoloured = ["\u{1b}[32m", "\u{1b}[31m", "\u{1b}[0m"]
        .iter()
        .fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(uncoloured, plain);
}

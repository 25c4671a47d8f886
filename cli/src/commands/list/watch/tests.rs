use serde_json::{Value, json};

use super::*;

fn machine(status: impl Into<Value>) -> Guarded<VirtualMachine> {
    let status: Value = status.into();
    let object = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"running": true}, "status": status,
    });
    serde_json::from_str(&object.to_string()).unwrap()
}

fn task(percent: u32) -> VirtualMachineTask {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": {"name": "web-provision-1", "namespace": "default"},
        "spec": {"nodeName": "n", "vmName": "web", "vmUID": "u1", "kind": "Provision"},
        "status": {"state": "Running", "progressPercent": percent},
    }))
    .unwrap()
}

#[test]
fn a_changed_line_is_printed() {
    let mut screen = Screen::new(
        Columns {
            progress: true,
            ..Columns::default()
        },
        false,
    );
    let provisioning = machine(json!({"printableStatus": "Provisioning"}));
    let mut lines = vec![screen.table.header()];
    let mut take = |change| lines.push(screen.take(change));
    take(Change::Machine(Event::InitApply(provisioning.clone())));
    take(Change::Machine(Event::Apply(provisioning)));
    take(Change::Task(Event::Apply(task(10))));
    take(Change::Task(Event::Apply(task(10))));
    take(Change::Task(Event::Apply(task(90))));
    take(Change::Task(Event::Delete(task(90))));
    let running = machine(json!({"printableStatus": "Running", "ready": true}));
    take(Change::Machine(Event::Apply(running.clone())));
    take(Change::Machine(Event::Delete(running)));
    insta::assert_snapshot!(lines.concat());
}

#[test]
fn a_machine_that_cannot_be_read_is_a_line_until_it_can() {
    let columns = Columns {
        progress: true,
        ..Columns::default()
    };
    let mut screen = Screen::new(columns, false);
    let bad = || machine(json!({"printableStatus": "OfANewerVersion"}));
    let line = screen.take(Change::Machine(Event::InitApply(bad())));
    assert!(
        line.starts_with("web") && line.contains("cannot be read"),
        "{line}"
    );
    assert_eq!(screen.take(Change::Machine(Event::Apply(bad()))), "");
    let good = machine(json!({"printableStatus": "Running", "ready": true}));
    let line = screen.take(Change::Machine(Event::Apply(good)));
    assert!(line.contains("Running"), "{line}");
}

#[test]
fn a_task_that_cannot_be_read_changes_nothing() {
    let bad = json!({"metadata": {"name": "t"}, "spec": {"kind": "Future"}});
    let bad = serde_json::from_str::<Guarded<VirtualMachineTask>>(&bad.to_string()).unwrap();
    assert!(readable(Event::Apply(bad)).is_none());
    assert!(readable(Event::Apply(Guarded(Ok(task(1))))).is_some());
}

#[test]
fn a_watch_that_breaks_off_says_the_servers_words_only() {
    let answer = json!({ "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "eve cannot list pods" });
    let answer: kube::core::Status = serde_json::from_value(answer).unwrap();
    let error = watcher::Error::InitialListFailed(kube::Error::Api(answer.boxed()));
    assert_eq!(
        broken(&error),
        "the watch broke off and is begun again: eve cannot list pods: Forbidden"
    );
}

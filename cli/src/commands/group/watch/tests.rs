use serde_json::{Value, json};

use super::super::status::tests::{group, member};
use super::*;

const LINKED: (&str, &str, &str) = ("GroupLinked", "", "");
const SYNCED: (&str, &str, &str) = ("PowerStateSynced", "", "");

fn judge(members: &Value) -> Verdict {
    let group = group(members);
    Target::requested(&group, PowerState::PoweredOn).judge(&group)
}

#[test]
fn a_group_is_done_when_each_member_has_the_power_state() {
    let synced = |name| member(name, "PoweredOn", &[LINKED, SYNCED]);
    assert_eq!(
        judge(&json!([synced("db"), synced("web")])),
        Verdict::Reached
    );
    let waits = member(
        "web",
        "PoweredOff",
        &[LINKED, ("PowerStateSynced", "Pending", "later")],
    );
    assert_eq!(judge(&json!([synced("db"), waits])), Verdict::Open);
}

#[test]
fn a_member_that_follows_no_group_is_not_waited_for() {
    let left = ("PowerStateSynced", "NotSupported", "it runs once");
    let left = member("web", "PoweredOff", &[LINKED, left]);
    let mut missing = member(
        "db",
        "",
        &[("GroupLinked", "NotFound", "it does not exist")],
    );
    missing["powerState"] = Value::Null;
    let failed = judge(&json!([left, missing]));
    let words =
        "members do not follow: web: NotSupported it runs once; db: NotFound it does not exist";
    assert_eq!(failed, Verdict::Failed(words.to_owned()));
}

#[test]
fn what_is_reported_of_an_earlier_request_is_no_answer() {
    let before = group(&json!([member("db", "PoweredOn", &[LINKED, SYNCED])]));
    let mut after = before.clone();
    after.metadata.generation = Some(3);
    let target = Target::requested(&after, PowerState::PoweredOn);
    assert_eq!(target.judge(&before), Verdict::Open);
    after.spec.next_force_power_state_sync_time = Some("2026-01-02T00:00:00Z".to_owned());
    after.metadata.generation = Some(2);
    let target = Target::requested(&after, PowerState::PoweredOn);
    assert_eq!(
        target.judge(&after),
        Verdict::Open,
        "the change is an earlier one"
    );
    let mut off = before.clone();
    off.spec.power_state = Some(PowerState::PoweredOff);
    assert!(matches!(target.judge(&off), Verdict::Failed(_)));
}

#[test]
fn a_member_is_printed_when_it_changes() {
    let mut screen = Screen::new();
    let waits = ("PowerStateSynced", "Pending", "it changes at 12:00");
    let first = group(&json!([member("db", "PoweredOff", &[LINKED, waits])]));
    assert!(screen.take(&first).contains("it changes at 12:00"));
    assert_eq!(screen.take(&first), "");
    let second = group(&json!([member("db", "PoweredOn", &[LINKED, SYNCED])]));
    let line = screen.take(&second);
    assert!(
        line.contains("vm/db") && line.contains("PoweredOn"),
        "{line}"
    );
}

use serde_json::{Value, json};

use super::*;

fn machine(name: &str, uid: &str, status: &Value) -> VirtualMachine {
    let object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"running": true}, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn running(instance: &str, ready: bool) -> VirtualMachine {
    machine(
        "web",
        "u",
        &json!({"printableStatus": "Running", "ready": ready, "instance": {"uid": instance}}),
    )
}

fn word(word: &str) -> VirtualMachine {
    machine("web", "u", &json!({"printableStatus": word}))
}

#[test]
fn each_goal_is_reached_by_its_own_state() {
    let judge = |goal, vm: &VirtualMachine| Target::new(&running("1", true), goal).judge(Some(vm));
    for (goal, reached, open) in [
        (Goal::Ready, running("1", true), running("1", false)),
        (Goal::Restarted, running("2", true), running("1", true)),
        (Goal::Paused, word("Paused"), running("1", true)),
        (Goal::Suspended, word("Suspended"), word("Stopping")),
        (Goal::Stopped, word("Stopped"), word("Stopping")),
    ] {
        assert_eq!(judge(goal, &reached), Verdict::Reached, "{goal:?}");
        assert_eq!(judge(goal, &open), Verdict::Open, "{goal:?}");
    }
    assert_eq!(judge(Goal::Followed, &word("Stopped")), Verdict::Open);
}

#[test]
fn a_guest_that_has_ended_since_is_not_waited_for() {
    let stopped = |instance: &str| {
        machine(
            "web",
            "u",
            &json!({"printableStatus": "Stopped",
                "instance": {"uid": instance, "finishedAt": "2026-01-01T00:00:00Z"}}),
        )
    };
    let target = Target::new(&stopped("1"), Goal::Ready);
    assert_eq!(target.judge(Some(&stopped("1"))), Verdict::Open);
    let ended = target.judge(Some(&stopped("2")));
    assert!(matches!(ended, Verdict::Failed(why) if why.contains("ended")));
}

#[test]
fn a_machine_that_is_gone_or_another_one_is_decided() {
    let target = |goal| Target::new(&word("Stopped"), goal);
    let another = machine(
        "web",
        "v",
        &json!({"printableStatus": "Running", "ready": true}),
    );
    for vm in [None, Some(&another)] {
        assert_eq!(target(Goal::Deleted).judge(vm), Verdict::Reached);
        let failed = target(Goal::Ready).judge(vm);
        assert_eq!(failed, Verdict::Failed("was deleted"));
    }
}

fn guarded(vm: &VirtualMachine) -> Guarded<VirtualMachine> {
    let text = serde_json::to_string(vm).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn all_machines_are_decided_before_the_wait_ends() {
    let web = word("Starting");
    let db = machine("db", "w", &json!({}));
    let targets = vec![
        Target::new(&web, Goal::Stopped),
        Target::new(&db, Goal::Ready),
    ];
    let mut open = Open::new(targets);
    open.take(&Event::Init);
    open.take(&Event::InitApply(guarded(&web)));
    assert_eq!(open.targets.len(), 2);
    // The other one was deleted before the list.
    open.take(&Event::InitDone);
    assert_eq!(open.failed, ["db was deleted"]);
    open.take(&Event::Apply(guarded(&word("Stopped"))));
    assert!(open.targets.is_empty() && open.failed.len() == 1);
}

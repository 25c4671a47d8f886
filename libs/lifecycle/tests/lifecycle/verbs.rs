//! What the verbs write, by strategy.
//!
//! Invariant: the table has every verb in every situation that matters to it.
//! Failure: all that differ are listed at once.

use crds::vm::StateChangeAction;
use crds::{PowerState, RunStrategy, VirtualMachine};
use lifecycle::DesiredState;
use lifecycle::verbs::{Change, Verb, verb};
use rstest::rstest;
use serde_json::{Value, json};

use crate::build::{Case, UID};

mod spelling;

/// situation | verb | outcome
const TABLE: &str = "
Halted none -                   | start        | runStrategy=Always
false none -                    | start        | running=true
PoweredOff none -               | start        | powerState=PoweredOn
PoweredOff none -               | start:paused | powerState=PoweredOn paused
Halted running -                | start        | runStrategy=Always
Always none -                   | start        | refused
Once none -                     | start        | refused
Manual none -                   | start        | Start
Manual none -                   | start:paused | Start
Manual none Start               | start        | refused
Manual none Stop≠               | start        | Start
Manual running -                | start        | refused
Manual unknown -                | start        | Start
Manual running,deleting Stop=   | start        | Start
Manual failed/ran -             | start        | Stop,Start
RerunOnFailure succeeded/ran -  | start        | Stop,Start
RerunOnFailure failed/ran -     | start        | refused
RerunOnFailure none -           | start        | Start
Suspended none - saved          | start        | powerState=PoweredOn

Halted none -                   | stop         | refused
Halted running -                | stop         | refused
Halted running -                | stop:5       | Stop
PoweredOn running -             | stop         | powerState=PoweredOff
true running -                  | stop         | running=false
Always running -                | stop:0       | runStrategy=Halted Stop
Always none -                   | stop:0       | runStrategy=Halted
Once running -                  | stop         | runStrategy=Halted
Manual running -                | stop         | Stop
Manual running Stop=            | stop         | refused
Manual running Stop=            | stop:5       | Stop
Manual running Stop=,Start      | stop         | Stop
Manual running,deleting - follows=down  | stop | refused
Manual running,deleting - follows=again | stop | Stop
Manual running,deleting - follows=down status=Always | stop | Stop
Manual running - follows=down   | stop         | Stop
Manual none -                   | stop         | refused
Manual none Start               | stop         | nothing
Manual none - follows=again     | stop         | Stop
Manual none - follows=again status=Always | stop | refused
Manual succeeded/ran,deleting - follows=again | stop | Stop
Manual succeeded/ran -          | stop         | refused
RerunOnFailure running -        | stop         | Stop
RerunOnFailure none - follows=again | stop     | Stop
RerunOnFailure none -           | stop         | refused
Suspended none - saved          | stop         | powerState=PoweredOff

Halted none -                   | restart      | refused
Once running -                  | restart      | refused
Suspended none -                | restart      | refused
Always none -                   | restart      | refused
Always running -                | restart      | Stop,Start
PoweredOn running -             | restart      | Stop,Start
Manual running Stop≠            | restart      | Stop,Start
Manual running Stop=,Start      | restart      | refused
Manual running Stop=,Start      | restart:force | Stop,Start
Manual running Stop≠,Start      | restart:force | refused
Manual running Start            | restart:force | refused
RerunOnFailure running -        | restart      | Stop,Start

PoweredOn running -             | suspend      | powerState=Suspended
Manual running -                | suspend      | powerState=Suspended remember=runStrategy=Manual
true running -                  | suspend      | powerState=Suspended remember=running=true
Always pending -                | suspend      | refused
Halted running -                | suspend      | refused
Suspended none -                | suspend      | refused
Suspended none - saved          | resume       | powerState=PoweredOn
Always running -                | resume       | refused
Always halting - paused         | resume       | refused

Always running -                | pause        | paused
Always running - paused         | pause        | refused
Always pending -                | pause        | refused
Always halting - paused         | unpause      | unpaused
Suspended running -             | pause        | refused
Suspended halting - paused      | unpause      | refused
Suspended none - saved paused   | unpause      | unpaused
Always running -                | unpause      | refused

Always running - deletion       | start        | refused
Always running - deletion       | stop         | refused
Always running - deletion       | stop:0       | Stop
Always none - deletion          | stop:0       | refused
both running -                  | stop         | refused
";

fn parse(word: &str) -> Verb {
    let (name, option) = word.split_once(':').unwrap_or((word, ""));
    match name {
        "start" => Verb::Start {
            paused: option == "paused",
        },
        "stop" => Verb::Stop {
            grace_seconds: option.parse().ok(),
        },
        "restart" => Verb::Restart {
            force: option == "force",
        },
        "suspend" => Verb::Suspend,
        "resume" => Verb::Resume,
        "pause" => Verb::Pause,
        "unpause" => Verb::Unpause,
        other => panic!("unknown verb {other:?}"),
    }
}

fn show(change: &Change) -> String {
    let mut words = Vec::new();
    words.extend(
        change
            .desired_state
            .map(|desired_state| desired_state.to_string()),
    );
    words.extend(
        change
            .remember
            .map(|desired_state| format!("remember={desired_state}")),
    );
    words.extend(
        change
            .paused
            .map(|on| if on { "paused" } else { "unpaused" }.to_owned()),
    );
    if let Some(requests) = &change.requests {
        let names = requests.iter().map(|r| match r.action {
            StateChangeAction::Start => "Start",
            StateChangeAction::Stop => "Stop",
        });
        let names: Vec<_> = names.collect();
        words.push(if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(",")
        });
    }
    words.join(" ")
}

fn request(case: &Case, verb_: Verb) -> Result<Change, lifecycle::verbs::Conflict> {
    verb(
        &case.spec,
        &case.status,
        &case.meta,
        case.instance.as_ref(),
        verb_,
    )
}

#[test]
fn every_verb_writes_the_change_of_the_table() {
    let mut wrong = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let [given, verb_, want] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}");
        };
        let case = Case::parse(given);
        let got = request(&case, parse(verb_)).map_or_else(|_| "refused".into(), |c| show(&c));
        if got != want {
            wrong.push(format!("{line}\n   got {got}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[rstest]
#[case("Halted none -", "stop", "it is stopped already")]
#[case(
    "Halted running -",
    "stop",
    "it is being stopped already; only a shorter grace period helps"
)]
#[case(
    "Always running - deletion",
    "stop",
    "it is being deleted; only a shorter grace period helps"
)]
#[case("Always none - deletion", "stop", "it is being deleted")]
#[case("Suspended none -", "suspend", "it is suspended already")]
#[case("Halted none -", "suspend", "it is not running")]
fn a_refusal_gives_its_reason(#[case] given: &str, #[case] verb: &str, #[case] reason: &str) {
    let conflict = request(&Case::parse(given), parse(verb)).unwrap_err();
    assert_eq!(conflict.to_string(), reason);
}

#[rstest]
#[case::of_a_class(json!({ "storageClass": "fast" }), Some("its root disk is a claim"))]
#[case::named(volume(&json!({ "claimName": "a", "root": true })), Some("its root disk is a claim"))]
#[case::a_directory(volume(&json!({ "claimName": "a", "mountPath": "/srv" })), Some("it mounts directories"))]
#[case::a_further_disk(volume(&json!({ "claimName": "a" })), None)]
fn memory_that_cannot_be_saved_is_not_asked_for(
    #[case] more: Value,
    #[case] refusal: Option<&str>,
) {
    let mut case = Case::parse("Always running -");
    let mut spec = serde_json::to_value(&case.spec).unwrap();
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    case.spec = serde_json::from_value(spec.clone()).unwrap();
    match (request(&case, Verb::Suspend), refusal) {
        (Err(conflict), Some(wanted)) => assert!(conflict.to_string().starts_with(wanted)),
        (answer, wanted) => assert!(answer.is_ok() && wanted.is_none(), "{answer:?}"),
    }
    let shares = json!({ "metadata": { "annotations": { "vmlet.dev/shares": "off" } } });
    spec["template"] = shares;
    case.spec = serde_json::from_value(spec).unwrap();
    let is_disk = refusal.is_some_and(|wanted| wanted.contains("root disk"));
    assert_eq!(request(&case, Verb::Suspend).is_err(), is_disk);
}

fn volume(claim: &Value) -> Value {
    json!({ "volumes": [{ "name": "a", "persistentVolumeClaim": claim }] })
}

#[rstest]
#[case::has_ended("Succeeded", None)]
#[case::is_to_be_replaced("Running", Some("Stop"))]
fn a_stop_calls_off_the_replacement_of_an_instance_whose_end_is_not_on_record(
    #[case] phase: &str,
    #[case] want: Option<&str>,
) {
    let mut case = Case::parse("RerunOnFailure none -");
    let last = case.status.instance.as_mut().unwrap();
    last.phase = Some(phase.to_owned());
    last.afterwards = None;
    let change = request(&case, parse("stop")).ok();
    assert_eq!(change.map(|c| show(&c)).as_deref(), want);
}

#[test]
fn a_forced_stop_names_the_instance_and_leaves_no_time() {
    let case = Case::parse("Always running -");
    let requests = request(
        &case,
        Verb::Stop {
            grace_seconds: Some(0),
        },
    )
    .unwrap()
    .requests
    .unwrap();
    assert_eq!(requests[0].uid.as_deref(), Some(UID));
    assert_eq!(requests[0].data["gracePeriodSeconds"], "0");
}

#[test]
fn a_guest_that_a_full_disk_stopped_is_unpaused_by_an_annotation_of_its_own() {
    for (given, paused) in [
        ("Always halting -", None),
        ("Always halting - paused", Some(false)),
    ] {
        let mut case = Case::parse(given);
        case.instance.as_mut().unwrap().paused = Some("PausedIOError".into());
        let instance = case.instance.as_ref();
        let change = verb(
            &case.spec,
            &case.status,
            &case.meta,
            instance,
            Verb::Unpause,
        )
        .unwrap();
        assert_eq!(
            (change.unpause.as_deref(), change.paused),
            (Some(UID), paused)
        );
        let mut vm = VirtualMachine::new("vm", case.spec.clone());
        vm.metadata.resource_version = Some("7".into());
        let patch = change.object_patch(&vm).unwrap().to_string();
        assert!(
            patch.contains(r#""vmlet.dev/unpause-request":"now/7""#),
            "{patch}"
        );
    }
}

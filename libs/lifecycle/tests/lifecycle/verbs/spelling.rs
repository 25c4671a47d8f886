//! The spelling of the desired state that verbs change and bring back.
//!
//! Invariant: what a verb writes is one patch.
//! Failure: the assertion shows the change.

use super::*;

#[rstest]
#[case("resume")]
#[case("stop")]
fn the_remembered_spelling_is_removed_when_it_is_used(#[case] verb: &str) {
    let mut case = Case::parse("Suspended none - saved");
    case.meta.resume = Some(DesiredState::Running(true));
    assert!(request(&case, parse(verb)).unwrap().forget);
}

#[rstest]
#[case(DesiredState::Running(true))]
#[case(DesiredState::PowerState(PowerState::PoweredOn))]
#[case(DesiredState::RunStrategy(RunStrategy::Always))]
#[case(DesiredState::RunStrategy(RunStrategy::RerunOnFailure))]
#[case(DesiredState::RunStrategy(RunStrategy::Manual))]
#[case(DesiredState::RunStrategy(RunStrategy::Once))]
fn every_spelling_that_runs_a_machine_is_remembered(#[case] desired_state: DesiredState) {
    let key = crds::names::RESUME_STATE.to_owned();
    let annotations = [(key, desired_state.to_string())].into();
    assert_eq!(DesiredState::remembered(&annotations), Some(desired_state));
}

#[test]
fn resuming_brings_the_old_spelling_back() {
    let mut case = Case::parse("Suspended none - saved");
    let remembered = |text: &str| {
        let key = crds::names::RESUME_STATE.to_owned();
        DesiredState::remembered(&[(key, text.to_owned())].into())
    };
    case.meta.resume = remembered("runStrategy=RerunOnFailure");
    assert_eq!(
        show(&request(&case, Verb::Resume).unwrap()),
        "runStrategy=RerunOnFailure"
    );
    case.meta.resume = remembered("running=true");
    assert_eq!(show(&request(&case, Verb::Resume).unwrap()), "running=true");
    assert_eq!(
        show(
            &request(
                &case,
                Verb::Stop {
                    grace_seconds: None
                }
            )
            .unwrap()
        ),
        "running=false"
    );
    case.meta.resume = remembered("runStrategy=Manual");
    assert_eq!(
        show(&request(&case, Verb::Resume).unwrap()),
        "Start",
        "the controller does the rest"
    );
    case.status.state_change_requests = crate::build::requests("Start");
    let action = case.pass().action;
    let manual = DesiredState::RunStrategy(RunStrategy::Manual);
    assert_eq!(
        action,
        lifecycle::Action::Patch(lifecycle::Patch::DesiredState(manual))
    );
    for text in [
        "runStrategy=Halted",
        "powerState=Suspended",
        "x",
        "=",
        "running=",
    ] {
        assert_eq!(remembered(text), None, "{text}");
    }
}

#[test]
fn a_change_of_spelling_is_one_patch_that_tests_the_old_one() {
    let case = Case::parse("Manual running -");
    let change = request(&case, Verb::Suspend).unwrap();
    let mut vm = VirtualMachine::new("vm", case.spec.clone());
    assert_eq!(
        change.object_patch(&vm).unwrap(),
        json!([
            {"op": "test", "path": "/spec/runStrategy", "value": "Manual"},
            {"op": "remove", "path": "/spec/runStrategy"},
            {"op": "add", "path": "/spec/powerState", "value": "Suspended"},
            {"op": "add", "path": "/metadata/annotations", "value": {"vmlet.dev/resume-state": "runStrategy=Manual"}},
        ])
    );
    assert_eq!(change.status_patch(&vm), None);
    vm.metadata.annotations = Some(
        [(
            "vmlet.dev/resume-state".to_owned(),
            "running=true".to_owned(),
        )]
        .into(),
    );
    vm.spec = crate::build::spec("Suspended");
    let forget = Change {
        desired_state: Some(DesiredState::Running(true)),
        forget: true,
        ..Change::default()
    };
    let patch = forget.object_patch(&vm).unwrap();
    assert_eq!(
        patch[3],
        json!({"op": "remove", "path": "/metadata/annotations/vmlet.dev~1resume-state"})
    );
    // The former name of the annotation.
    vm.metadata.annotations = Some(
        [(
            "vmlet.dev/resume-wish".to_owned(),
            "running=true".to_owned(),
        )]
        .into(),
    );
    assert_eq!(
        DesiredState::remembered(vm.metadata.annotations.as_ref().unwrap()),
        Some(DesiredState::Running(true))
    );
    let patch = forget.object_patch(&vm).unwrap();
    assert_eq!(
        patch[3],
        json!({"op": "remove", "path": "/metadata/annotations/vmlet.dev~1resume-wish"})
    );
}

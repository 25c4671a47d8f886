//! What a group makes of the desired state of a member.
//!
//! Invariant: the spelling stays; a strategy that a power-off replaces comes back.
//! Failure: the case is a line of the table.

use std::collections::BTreeMap;

use crds::{PowerState, VirtualMachineSpec};
use lifecycle::group::{Record, is_changed_directly, member_change, waits_for_group};
use rstest::rstest;
use serde_json::json;

const RECORD: &str = "vmlet.dev.protected/group-power-state";
const RESUME: &str = "vmlet.dev/resume-state";

fn spec(desired: &str) -> VirtualMachineSpec {
    let (field, value) = desired.split_once('=').unwrap();
    let value = match value {
        "true" => json!(true),
        "false" => json!(false),
        word => json!(word),
    };
    serde_json::from_value(json!({ "imageName": "debian", field: value })).unwrap()
}

fn annotated(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

const ON: PowerState = PowerState::PoweredOn;
const OFF: PowerState = PowerState::PoweredOff;
const SUSPENDED: PowerState = PowerState::Suspended;

#[rstest]
#[case("powerState=PoweredOff", ON, "powerState=PoweredOn")]
#[case("powerState=PoweredOn", ON, "powerState=PoweredOn")]
#[case("powerState=PoweredOn", OFF, "powerState=PoweredOff")]
#[case("powerState=PoweredOn", SUSPENDED, "powerState=Suspended")]
#[case("powerState=PoweredOff", SUSPENDED, "powerState=PoweredOff")]
#[case("powerState=Suspended", ON, "powerState=PoweredOn")]
#[case("powerState=Suspended", OFF, "powerState=PoweredOff")]
#[case("running=true", OFF, "running=false")]
#[case("running=false", ON, "running=true")]
#[case(
    "running=true",
    SUSPENDED,
    "powerState=Suspended remembers running=true"
)]
#[case("runStrategy=Always", OFF, "runStrategy=Halted")]
#[case("runStrategy=Halted", ON, "runStrategy=Always")]
#[case("runStrategy=RerunOnFailure", ON, "runStrategy=RerunOnFailure")]
#[case("runStrategy=RerunOnFailure", OFF, "runStrategy=Halted restores")]
fn a_member_follows_in_its_own_spelling(
    #[case] from: &str,
    #[case] to: PowerState,
    #[case] want: &str,
) {
    let change = member_change(&spec(from), &BTreeMap::new(), to).unwrap();
    let mut text = change.desired_state.to_string();
    if let Some(remembered) = change.remember {
        text += &format!(" remembers {remembered}");
    }
    if change.restores_rerun {
        text += " restores";
    }
    assert_eq!(text, want);
    assert_eq!(change.forget, from.ends_with("Suspended"));
}

#[rstest]
#[case("runStrategy=Manual", OFF, "runStrategy Manual")]
#[case("runStrategy=Manual", ON, "runStrategy Manual")]
#[case("runStrategy=Once", OFF, "runStrategy Once")]
#[case("runStrategy=Once", ON, "runStrategy Once")]
fn a_member_that_follows_requests_or_runs_once_is_refused(
    #[case] from: &str,
    #[case] to: PowerState,
    #[case] words: &str,
) {
    let refusal = member_change(&spec(from), &BTreeMap::new(), to).unwrap_err();
    assert!(refusal.to_string().contains(words), "{refusal}");
    // It waits for no group either.
    assert!(!waits_for_group(&spec(from), &BTreeMap::new(), "uid", to));
    // Nor does it while it is suspended: its strategy would be lost.
    let suspended = annotated(&[(RESUME, from)]);
    let refusal = member_change(&spec("powerState=Suspended"), &suspended, to).unwrap_err();
    assert!(refusal.to_string().contains(words), "{refusal}");
    let claim =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "c", "root": true } });
    let mut with_claim = spec("powerState=PoweredOn");
    with_claim.volumes = serde_json::from_value(json!([claim])).unwrap();
    let refusal = member_change(&with_claim, &BTreeMap::new(), SUSPENDED).unwrap_err();
    assert!(refusal.to_string().contains("is a claim"), "{refusal}");
}

#[test]
fn the_strategy_before_a_power_off_comes_back_unless_the_owner_changed_it() {
    let record = |desired: &str| Record {
        group: "uid".to_owned(),
        change: "2026-01-01T12:00:00Z".to_owned(),
        desired: desired.to_owned(),
        restores_rerun: true,
    };
    let halted = record("runStrategy=Halted").to_string();
    assert_eq!(
        halted,
        "uid/2026-01-01T12:00:00Z/runStrategy=Halted/RerunOnFailure"
    );
    let annotations = annotated(&[(RECORD, &halted)]);
    assert_eq!(
        Record::read(&annotations),
        Some(record("runStrategy=Halted"))
    );
    let on = member_change(&spec("runStrategy=Halted"), &annotations, ON).unwrap();
    assert_eq!(on.desired_state.to_string(), "runStrategy=RerunOnFailure");
    // Off once more: it is still to come back.
    let off = member_change(&spec("runStrategy=Halted"), &annotations, OFF).unwrap();
    assert!(off.restores_rerun);
    let direct = spec("runStrategy=Always");
    assert!(is_changed_directly(&direct, &annotations));
    assert!(
        !member_change(&direct, &annotations, OFF)
            .unwrap()
            .restores_rerun
    );
    // A suspended one that had the strategy.
    let suspended = annotated(&[(RESUME, "runStrategy=RerunOnFailure")]);
    let off = member_change(&spec("powerState=Suspended"), &suspended, OFF).unwrap();
    assert_eq!(off.desired_state.to_string(), "runStrategy=Halted");
    assert!(off.restores_rerun && off.forget);
}

#[rstest]
#[case("uid/time/running=true", true)]
#[case("other/time/running=true", false)]
#[case("uid/time", false)]
#[case("uid/time/running=true/Always", false)]
#[case("uid/time/running=true/RerunOnFailure/", false)]
#[case("", false)]
fn a_text_that_is_no_record_of_the_group_counts_as_none(#[case] text: &str, #[case] is_one: bool) {
    let annotations = annotated(&[(RECORD, text)]);
    let running = spec("running=true");
    assert_eq!(waits_for_group(&running, &annotations, "uid", ON), !is_one);
    assert!(!is_changed_directly(&running, &annotations));
}

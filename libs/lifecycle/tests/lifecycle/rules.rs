//! Power, times and revisions.
//!
//! Invariant: a time that has passed acts once; one that cannot be read never does.
//! Failure: the case is in the test's name.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::vm::InlineHardware;
use crds::{PowerState, VirtualMachineSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lifecycle::power::{Delay, Restart, delay, power_off_seconds, power_on_check, restart};
use lifecycle::revision;
use rstest::rstest;

use crate::build::{Case, ago, instance, now};

fn annotated(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

#[rstest]
#[case("2026-01-01T12:00:30Z", Ok(Delay::For(Duration::from_secs(30))))]
#[case("2026-01-01T12:00:00Z", Ok(Delay::Over))]
#[case("2025-01-01T12:00:00+02:00", Ok(Delay::Over))]
#[case("tomorrow", Err(()))]
fn a_group_may_delay_power(#[case] value: &str, #[case] want: Result<Delay, ()>) {
    let annotations = annotated("vmlet.dev.protected/apply-power-state-time", value);
    assert_eq!(delay(&annotations, &now()).map_err(|_| ()), want);
    assert_eq!(delay(&BTreeMap::new(), &now()), Ok(Delay::None));
}

#[test]
fn a_check_holds_a_power_on_back_by_its_presence() {
    let annotations = annotated("poweron.check.vmlet.dev/backup", "");
    assert_eq!(
        power_on_check(&annotations),
        Some("poweron.check.vmlet.dev/backup")
    );
    assert_eq!(power_on_check(&annotated("vmlet.dev/other", "x")), None);
}

#[test]
fn a_restart_time_is_used_once_and_only_while_the_guest_runs() {
    let due = |at: &str, last: Option<Time>, seen: &str| {
        let spec = VirtualMachineSpec {
            next_restart_time: Some(at.to_owned()),
            ..VirtualMachineSpec::default()
        };
        restart(&spec, last.as_ref(), instance(seen).as_ref(), &now())
    };
    let at = "2026-01-01T11:59:00Z";
    let now = || Ok(Restart::Due(ago(60)));
    assert_eq!(due(at, None, "running"), now());
    assert_eq!(due(at, Some(ago(60)), "running"), Ok(Restart::None));
    assert_eq!(due(at, Some(ago(61)), "running"), now());
    let to_come = due("2026-01-01T12:00:01Z", None, "running");
    assert_eq!(to_come, Ok(Restart::In(Duration::from_secs(1))));
    for seen in [
        "none",
        "pending",
        "failed/ran",
        "unknown",
        "running,deleting",
    ] {
        assert_eq!(due(at, None, seen), Ok(Restart::None), "{seen}");
    }
    assert!(due("now", None, "running").is_err());
    assert_eq!(due("", None, "running"), Ok(Restart::None));
}

#[rstest]
#[case(None, 300)]
#[case(Some("4m"), 240)]
#[case(Some("1h0m1.5s"), 3602)]
#[case(Some("0s"), 1)]
#[case(Some("1ms"), 1)]
#[case(Some("1500ms"), 2)]
#[case(Some("2000ms"), 2)]
#[case(Some("168h"), 604_800)]
#[case(Some("167h59m59.5s"), 604_800)]
#[case(Some("169h"), 604_800)]
#[case(Some(""), 300)]
#[case(Some("5"), 300)]
#[case(Some("m"), 300)]
#[case(Some("-4m"), 300)]
#[case(Some("4d"), 300)]
#[case(Some("1..2s"), 300)]
#[case(Some("999999999999999999999999h"), 300)]
fn a_guest_has_whole_seconds_up_to_a_week(#[case] text: Option<&str>, #[case] want: u32) {
    let spec = VirtualMachineSpec {
        power_off_timeout: text.map(str::to_owned),
        ..VirtualMachineSpec::default()
    };
    assert_eq!(power_off_seconds(&spec), want);
}

#[test]
fn s57_only_what_an_instance_is_built_from_makes_a_revision() {
    let plain = VirtualMachineSpec::default();
    let same = VirtualMachineSpec {
        power_state: Some(PowerState::PoweredOn),
        paused: true,
        next_restart_time: Some("2026-01-01T12:00:00Z".into()),
        bios_uuid: Some("chosen later".into()),
        ..VirtualMachineSpec::default()
    };
    assert_eq!(revision::for_spec(&plain), revision::for_spec(&same));
    let bigger = VirtualMachineSpec {
        hardware: Some(InlineHardware {
            cpus: 2,
            memory: Quantity("1Gi".into()),
        }),
        ..VirtualMachineSpec::default()
    };
    assert_ne!(revision::for_spec(&plain), revision::for_spec(&bigger));
    assert_eq!(revision::for_spec(&plain).len(), 16);
}

#[test]
fn s57_a_restart_is_required_until_the_instance_is_of_this_revision() {
    let mut case = Case::parse("Always running -");
    assert!(
        !revision::is_restart_required(&case.machine()),
        "of a foreign pod nothing is known"
    );
    case.instance.as_mut().unwrap().revision = Some("older".into());
    assert!(revision::is_restart_required(&case.machine()));
    case.instance.as_mut().unwrap().revision = Some(revision::for_spec(&case.spec));
    assert!(!revision::is_restart_required(&case.machine()));
}

/// Each line: a specification, and its revision. A change of any of them is a new version of the rules
/// in `src/revision.rs`, or every machine requires a restart after the upgrade.
#[test]
fn revisions_that_running_instances_have_are_made_for_ever() {
    let fixture = include_str!("../fixtures/revisions.tsv");
    assert_eq!(fixture.lines().count(), 3);
    let changed = fixture.lines().filter_map(|line| {
        let (spec, revision) = line.split_once('\t').unwrap();
        let read: VirtualMachineSpec = serde_json::from_str(spec).unwrap();
        let is_current = revision::is_current(revision, &read);
        (!is_current).then(|| format!("{spec}\t{}", revision::for_spec(&read)))
    });
    let changed: Vec<_> = changed.collect();
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

#[test]
fn an_instance_of_a_newer_controller_requires_no_restart() {
    let spec = VirtualMachineSpec::default();
    for (revision, is_current) in [("2-0011223344556677", true), ("0011223344556677", false)] {
        assert_eq!(
            revision::is_current(revision, &spec),
            is_current,
            "{revision}"
        );
    }
}

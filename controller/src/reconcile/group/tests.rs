//! Times of tiers, and the cycles that names make.
//!
//! Invariant: pure; no API server is called.
//! Failure: the assertion shows the times.

use std::cell::RefCell;

use crds::{BootTier, GroupPowerChange, PowerState, VirtualMachineGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::change::{Gate, schedule};
use super::family;
use crate::stores::{Key, Stores};

fn second(number: i64) -> Timestamp {
    Timestamp::from_second(number).unwrap()
}

fn change(power_state: PowerState, times: &[i64]) -> GroupPowerChange {
    GroupPowerChange {
        power_state,
        time: Time(second(0)),
        force_sync_time: None,
        parent: None,
        start_time: Time(second(0)),
        tier_times: times.iter().map(|at| Time(second(*at))).collect(),
    }
}

fn tiers() -> Vec<BootTier> {
    serde_json::from_value(json!([
        { "powerOnDelay": "5s", "powerOffDelay": "1s" },
        { "waitForReady": true, "readyTimeout": "1m", "powerOffDelay": "300ms" },
        { "powerOnDelay": "10s" },
    ]))
    .unwrap()
}

fn seconds(times: &[Time]) -> Vec<i64> {
    times.iter().map(|time| time.0.as_second()).collect()
}

#[test]
fn a_tier_that_waits_keeps_those_after_it_and_only_while_powering_on() {
    let asked = RefCell::new(Vec::new());
    let is_ready = |answer: bool| {
        let asked = &asked;
        move |tier: usize| {
            asked.borrow_mut().push(tier);
            answer
        }
    };
    let on = change(PowerState::PoweredOn, &[]);
    let made = schedule(&on, &tiers(), is_ready(false), second(20));
    assert_eq!(seconds(&made.times), [5]);
    let gate = Gate {
        tier: 1,
        until: Some(second(65)),
        again: None,
    };
    assert_eq!(made.gate, Some(gate));
    assert_eq!(*asked.borrow(), [0], "the tier before");

    let made = schedule(&on, &tiers(), is_ready(true), second(20));
    assert_eq!((seconds(&made.times), made.gate), (vec![5, 20, 30], None));
    // Ready before it was to be powered on: that is another run of it.
    let made = schedule(&on, &tiers(), is_ready(true), second(4));
    let gate = Gate {
        again: Some(second(5)),
        ..gate
    };
    assert_eq!((seconds(&made.times), made.gate), (vec![5], Some(gate)));
    let made = schedule(&on, &tiers(), is_ready(false), second(65));
    assert_eq!(
        (seconds(&made.times), made.overdue),
        (vec![5, 65, 75], vec![1])
    );

    let off = change(PowerState::PoweredOff, &[]);
    let made = schedule(&off, &tiers(), is_ready(false), second(20));
    assert_eq!((seconds(&made.times), made.gate), (vec![0, 1, 2], None));
    let suspend = change(PowerState::Suspended, &[]);
    let made = schedule(&suspend, &tiers(), is_ready(false), second(20));
    assert_eq!(seconds(&made.times), [0, 0, 0]);
}

#[test]
fn times_on_record_stay_whatever_the_delays_are_now() {
    let on = change(PowerState::PoweredOn, &[7, 9]);
    let made = schedule(&on, &tiers(), |_| false, second(20));
    assert_eq!((seconds(&made.times), made.gate), (vec![7, 9, 19], None));
}

fn group(name: &str, above: Option<&str>) -> VirtualMachineGroup {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineGroup",
        "metadata": { "name": name, "namespace": "ns", "uid": name },
        "spec": { "groupName": above },
    }))
    .unwrap()
}

#[test]
fn a_cycle_is_found_by_names_from_within_and_from_below_and_too_many_levels_are_refused() {
    let (stores, mut feeds) = Stores::new();
    let pairs = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "e")];
    for (name, above) in pairs {
        feeds.groups.apply(Event::Apply(group(name, Some(above))));
    }
    let cycle = |name: &str| {
        let group = family::find(&stores, &Key::new("ns", name)).unwrap();
        family::cycle(&stores, &group)
    };
    assert!(cycle("a").unwrap().contains("b -> c -> b"));
    assert!(cycle("b").unwrap().contains("b -> c -> b"));
    assert_eq!(cycle("d"), None, "the group above does not exist");
    for level in 0..20 {
        let above = format!("l{}", level + 1);
        let group = group(&format!("l{level}"), Some(&above));
        feeds.groups.apply(Event::Apply(group));
    }
    assert!(cycle("l0").unwrap().contains("more than 16"));
    assert_eq!(cycle("l12"), None);
}

//! The priority of every documented case, under the documented rules and under those of the
//! reference source.
//!
//! Invariant: seventy numbered vectors; each is also played through a real object where one can
//! hold it.
//! Failure: names the line.

use std::collections::BTreeSet;

use controller::priority::{
    Additions, Event, Facts, LevelOverrides, Levels, Machine, Mapped, Profile, pod_contradicts,
};
use crds::{PowerState, VirtualMachine};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("fixtures/priority.txt");

/// An object as a line describes it.
#[derive(Debug, Default)]
struct Object<'a> {
    annotation: Option<&'a str>,
    other: bool,
    machine: Machine<'a>,
    created: &'a str,
    ip: &'a str,
    synced: &'a str,
}

fn power(text: &str) -> Option<PowerState> {
    match text {
        "On" => Some(PowerState::PoweredOn),
        "Off" => Some(PowerState::PoweredOff),
        "Sus" => Some(PowerState::Suspended),
        "" => None,
        _ => panic!("power {text}"),
    }
}

impl<'a> Object<'a> {
    fn parse(text: &'a str) -> Self {
        let (words, annotation) = match text.split_once(" annotation=\"") {
            Some((words, rest)) => (words, rest.strip_suffix('"')),
            None => match text.strip_prefix("annotation=\"") {
                Some(rest) => ("", rest.strip_suffix('"')),
                None => (text, None),
            },
        };
        let mut object = Self {
            annotation,
            created: "C0",
            synced: "0",
            ..Self::default()
        };
        for word in words.split_whitespace() {
            object.word(word);
        }
        object.machine.created = object.created == "C+";
        object.machine.has_address = !object.ip.is_empty();
        object.machine.promoted = object.synced == "T";
        object
    }

    fn word(&mut self, word: &'a str) {
        match word {
            "stable" => {
                for word in ["C+", "On/On", "net=on", "ip=4", "promo=Online/T"] {
                    self.word(word);
                }
            }
            "C+" | "C-" | "C?" | "C0" | "nil" => self.created = word,
            "deleting" => self.machine.deleting = true,
            "contradicted" => self.machine.pod_contradicts = true,
            "other" => self.other = true,
            "net=on" => self.machine.network_enabled = Some(true),
            "net=off" => self.machine.network_enabled = Some(false),
            "net=absent" => self.machine.network_enabled = None,
            _ => self.pair(word),
        }
    }

    fn pair(&mut self, word: &'a str) {
        if word.starts_with("note=") {
            return;
        }
        if let Some(ip) = word.strip_prefix("ip=") {
            self.ip = ip;
        } else if let Some(promotion) = word.strip_prefix("promo=") {
            (self.machine.promotion, self.synced) = promotion.split_once('/').unwrap();
        } else {
            let (wanted, observed) = word.split_once('/').unwrap();
            (self.machine.wanted, self.machine.observed) = (power(wanted), power(observed));
        }
    }

    fn facts(&self) -> Facts<'a> {
        Facts {
            annotation: self.annotation,
            machine: (!self.other).then(|| self.machine.clone()),
        }
    }

    /// The same as an object of the API; `None` when no object can be so.
    fn to_vm(&self) -> Option<VirtualMachine> {
        if self.other || self.machine.promotion == "disabled" {
            return None;
        }
        let mut conditions = vec![];
        let mut add = |kind: &str, status: &str| {
            conditions.push(
                json!({"type": kind, "status": status, "reason": "Some", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}),
            );
        };
        match self.created {
            "C+" => add("VirtualMachineCreated", "True"),
            "C-" => add("VirtualMachineCreated", "False"),
            "C?" => add("VirtualMachineCreated", "Unknown"),
            _ => add("Ready", "True"),
        }
        match self.synced {
            "T" => add("VirtualMachineDiskPromotionSynced", "True"),
            "F" => add("VirtualMachineDiskPromotionSynced", "False"),
            "U" => add("VirtualMachineDiskPromotionSynced", "Unknown"),
            _ => {}
        }
        let mut metadata = json!({"name": "vm", "namespace": "default"});
        if let Some(annotation) = self.annotation {
            metadata["annotations"] = json!({"vmlet.dev.protected/reconcile-priority": annotation});
        }
        if self.machine.deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let mut spec = json!({"className": "small"});
        if let Some(enabled) = self.machine.network_enabled {
            spec["network"] = json!({"disabled": !enabled});
        }
        if !self.machine.promotion.is_empty() {
            spec["promoteDisksMode"] = json!(self.machine.promotion);
        }
        let mut status = json!({"conditions": conditions});
        if let Some(observed) = self.machine.observed {
            status["powerState"] = json!(observed);
        }
        let mut network = json!({});
        if self.ip.contains('4') {
            network["primaryIP4"] = json!("10.0.0.4");
        }
        if self.ip.contains('6') {
            network["primaryIP6"] = json!("fd00::6");
        }
        status["network"] = network;
        let vm = json!({"apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": metadata, "spec": spec, "status": status});
        Some(serde_json::from_value(vm).unwrap())
    }
}

fn event(text: &str) -> Event {
    match text {
        "create" => Event::Create { initial: false },
        "create initial" => Event::Create { initial: true },
        "update" => Event::Update { unchanged: false },
        "update unchanged" => Event::Update { unchanged: true },
        "delete" => Event::Delete,
        "generic" => Event::Generic,
        "mapped" => Event::Mapped(Mapped::Changed),
        "mapped initial" => Event::Mapped(Mapped::Initial),
        _ => panic!("event {text}"),
    }
}

fn priority(profile: &Profile, how: &str, facts: &Facts<'_>) -> i64 {
    match how.strip_prefix("requeue ") {
        Some(dequeued) => profile
            .of_requeue(facts)
            .unwrap_or_else(|| dequeued.parse().unwrap()),
        None => profile.priority(event(how), facts),
    }
}

#[test]
fn all_vectors_hold_under_both_profiles() {
    let mut numbers = BTreeSet::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let [number, how, object, page, parity] =
            line.split(" | ").collect::<Vec<_>>().try_into().unwrap();
        numbers.insert(number.parse::<u32>().unwrap());
        let object = Object::parse(object);
        let facts = object.facts();
        let (on, off) = page.split_once(", ").unwrap_or((page, page));
        let parity = if parity == "-" { off } else { parity };
        for (profile, wanted) in [
            (Profile::page(Additions::ON), on),
            (Profile::page(Additions::OFF), off),
            (Profile::parity(), parity),
        ] {
            let found = priority(&profile, how, &facts);
            assert_eq!(found.to_string(), wanted, "{line} under {profile:?}");
        }
        if let Some(vm) = object.to_vm() {
            let read = Facts::of_machine(&vm, object.machine.wanted)
                .contradicted(object.machine.pod_contradicts);
            let mut facts = facts;
            // An object without a mode has that of the schema.
            if let Some(machine) = facts.machine.as_mut().filter(|it| it.promotion.is_empty()) {
                machine.promotion = "Online";
            }
            assert_eq!(read, facts, "{line}");
        }
    }
    assert_eq!(numbers, (1..=70).collect());
}

#[test]
fn without_limits_the_annotation_may_be_any_number() {
    let facts = Facts::of_other(Some("2147483648"));
    let mut profile = Profile::page(Additions::ON);
    let update = Event::Update { unchanged: false };
    assert_eq!(profile.priority(update, &facts), -2);
    profile.override_limits = None;
    assert_eq!(profile.priority(update, &facts), 2_147_483_648);
    profile.override_limits = Some(-1000..=1000);
    for (text, wanted) in [
        ("1000", 1000),
        ("1001", -2),
        ("-1000", -1000),
        ("-1001", -2),
    ] {
        assert_eq!(
            profile.priority(update, &Facts::of_other(Some(text))),
            wanted
        );
    }
}

#[test]
fn a_deployment_may_choose_numbers() {
    let chosen: LevelOverrides = toml::from_str("initial = -100\nunchanged = -100").unwrap();
    let profile = Profile {
        levels: chosen.apply(Levels::PAGE),
        ..Profile::page(Additions::ON)
    };
    let facts = Facts::default();
    assert_eq!(
        profile.priority(Event::Create { initial: true }, &facts),
        -100,
        "the start-up list"
    );
    assert_eq!(profile.levels.creating, 100);
    assert!(toml::from_str::<LevelOverrides>("creatng = 1").is_err());
    let all = Levels::PAGE.all();
    assert_eq!(all, [-4, -3, -2, -1, 0, 96, 97, 98, 99, 100]);
    assert_eq!(Levels::PAGE.lowest_of_states(), 96);
}

#[test]
fn a_pod_contradicts_a_status_that_has_its_machine_on() {
    let on = Object::parse("stable").to_vm().unwrap();
    let off = Object::parse("C+ Off/Off").to_vm().unwrap();
    let pod = |phase: Value| -> Pod {
        serde_json::from_value(json!({"metadata": {}, "status": {"phase": phase}})).unwrap()
    };
    let running = pod(json!("Running"));
    let ended = pod(json!("Failed"));
    assert!(pod_contradicts(&on, Some(&ended)));
    assert!(pod_contradicts(&on, None));
    assert!(!pod_contradicts(&on, Some(&running)));
    assert!(!pod_contradicts(&off, Some(&ended)));
}

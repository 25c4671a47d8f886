//! Every documented case of the installation's status, under the reference rules and under ours.
//!
//! Invariant: forty-eight numbered cases; each holds under all three sets of rules, with the lines
//! that differ.
//! Failure: names the line.

use std::collections::{BTreeMap, BTreeSet};

use controller::operator::{
    Component, ComponentCondition, ComponentState, Conditions, Kind, Rules, Summary, consolidate,
    gone, initial, invalid_request,
};
use crds::Health;
use crds::conditions::Status;

const VECTORS: &str = include_str!("fixtures/consolidation.txt");

fn healthy(name: &str) -> Component {
    let reported = |status| Some(ComponentCondition::new(status, "words"));
    let conditions = Conditions {
        available: reported(Status::True),
        progressing: reported(Status::False),
        degraded: reported(Status::False),
        upgradeable: None,
    };
    Component::found(name, conditions)
}

/// `COMPONENT: WORDS`, or `COMPONENT WORDS`.
fn change(components: &mut [Component], words: &str) {
    let (name, words) = words.split_at(1);
    let component = components.iter_mut().find(|c| c.name == name).unwrap();
    match words.trim_start_matches([':', ' ']) {
        "no conditions" => component.state = ComponentState::Nothing(String::new()),
        "apply fails" => component.state = ComponentState::Failed("refused".to_owned()),
        "created in this pass" | "updated in this pass" => component.touched = true,
        "old version" => component.version_matches = false,
        "ok" => {}
        words => {
            let ComponentState::Found(conditions) = &mut component.state else {
                panic!("{words}");
            };
            let words = words
                .replace(" versions match", "")
                .replace(" explicit", "")
                .replace(" missing", "=missing");
            for word in words.split(' ') {
                let (kind, status) = word.split_once('=').unwrap();
                let reported = |status| Some(ComponentCondition::new(status, "words"));
                let reported = match status {
                    "T" => reported(Status::True),
                    "F" => reported(Status::False),
                    "Unknown" => reported(Status::Unknown),
                    "missing" => None,
                    _ => panic!("{word}"),
                };
                match kind {
                    "Av" => conditions.available = reported,
                    "Pr" => conditions.progressing = reported,
                    "De" => conditions.degraded = reported,
                    "Up" => conditions.upgradeable = reported,
                    _ => panic!("{word}"),
                }
            }
        }
    }
}

fn summary(input: &str, rules: &Rules) -> Summary {
    if input == "first pass on a new object" {
        return initial();
    }
    if input.starts_with("object deleted") {
        return gone();
    }
    let (upgrade, input) = match input.strip_prefix("upgrade; ") {
        Some(input) => (Some("2"), input),
        None => (None, input),
    };
    let mut components = ["A", "B", "C"].map(healthy);
    if !input.starts_with("all healthy") {
        for words in input.split(", ") {
            change(&mut components, words);
        }
    }
    consolidate(&components, upgrade, rules)
}

/// As the table writes it.
fn shown(summary: &Summary, kind: Kind) -> String {
    let Some(found) = summary.conditions.iter().find(|c| c.kind == kind) else {
        return "-".to_owned();
    };
    let reason = match found.reason.as_str() {
        "ReconcileCompleted" => "rc",
        "ComponentsDegraded" => "degraded",
        "Upgrading" => "upgrading",
        "StatusUnknown" => "",
        reason => reason,
    };
    let status = &found.status.as_str()[..1];
    format!("{status} {reason}").trim_end().to_owned()
}

fn row(summary: &Summary) -> [String; 7] {
    let external = match (&summary.external.upgradeable, &*summary.external.reason) {
        (true, _) => "T".to_owned(),
        (false, "AlreadyPerformingUpgrade") => "F upg".to_owned(),
        (false, reason) => format!("F {reason}"),
    };
    let health = match summary.health {
        Some(Health::Healthy) => "healthy",
        Some(Health::Warning) => "warning",
        Some(Health::Error) => "error",
        None => "-",
    };
    let ready = summary
        .ready
        .map_or("-", |ready| if ready { "yes" } else { "no" });
    [
        shown(summary, Kind::Available),
        shown(summary, Kind::Progressing),
        shown(summary, Kind::Degraded),
        shown(summary, Kind::Upgradeable),
        external,
        health.to_owned(),
        ready.to_owned(),
    ]
}

#[test]
fn all_cases_hold_under_the_reference_rules_and_under_ours() {
    // By number: input and the row under each set of rules.
    let mut cases = BTreeMap::<u32, (&str, BTreeMap<&str, Vec<&str>>)>::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<_> = line.split(" | ").collect();
        let (number, rules) = cells[0].split_once(' ').unwrap();
        let case = cases
            .entry(number.parse().unwrap())
            .or_insert((cells[1], BTreeMap::new()));
        assert_eq!(case.0, cells[1], "{line}");
        assert!(
            case.1.insert(rules, cells[2..].to_vec()).is_none(),
            "{line}"
        );
    }
    assert_eq!(
        cases.keys().copied().collect::<BTreeSet<_>>(),
        (1..=48).collect()
    );
    let mut different = Vec::new();
    for (number, (input, rows)) in &cases {
        let reference = &rows["reference"];
        let sets = [
            ("reference", Rules::REFERENCE),
            ("strict", Rules::ours(true)),
            ("lenient", Rules::ours(false)),
        ];
        for (name, rules) in sets {
            let found = summary(input, &rules);
            let wanted = rows.get(name).unwrap_or(reference);
            assert_eq!(row(&found).as_slice(), wanted, "{number} {input}, {name}");
            let complete = match *number {
                36..=38 => "F ReconcileFailed",
                47 => "U Init",
                48 => "-",
                _ => "T rc",
            };
            assert_eq!(shown(&found, Kind::ReconcileComplete), complete, "{number}");
        }
        if rows.contains_key("lenient") && !rows.contains_key("strict") {
            different.push(*number);
        }
    }
    // Without `strict` only Available of these differs.
    assert_eq!(different, [5, 10, 13, 24, 31, 43]);
}

#[test]
fn a_message_names_every_component_in_visiting_order_and_stays_short() {
    let mut components = ["A", "B", "C"].map(healthy);
    change(&mut components, "C: De=T");
    change(&mut components, "A: De=T");
    let found = consolidate(&components, None, &Rules::ours(false));
    let degraded = &found.conditions[3];
    assert_eq!(degraded.reason, "CDegraded");
    assert_eq!(
        degraded.message,
        "A is degraded: words; C is degraded: words"
    );
    let long = Conditions {
        degraded: Some(ComponentCondition::new(Status::True, "é".repeat(5000))),
        ..Conditions::default()
    };
    let found = consolidate(&[Component::found("A", long)], None, &Rules::ours(false));
    assert!(found.conditions[3].message.len() <= 1024);
    assert!(found.conditions[3].message.ends_with('…'));
}

#[test]
fn a_component_without_conditions_is_named_with_the_cause_if_there_is_one() {
    for (detail, words) in [
        (
            "its Deployment does not exist",
            "Controller: its Deployment does not exist",
        ),
        ("", "Controller reports no conditions"),
    ] {
        let component = Component::nothing("Controller", detail);
        let found = consolidate(&[component], None, &Rules::ours(false));
        let available = found.conditions.iter().find(|c| c.kind == Kind::Available);
        assert_eq!(available.unwrap().message, words);
    }
}

#[test]
fn an_upgrade_names_what_it_waits_for_and_ends_when_everything_has_the_version() {
    let mut components = ["A", "B", "C"].map(healthy);
    change(&mut components, "B old version");
    let found = consolidate(&components, Some("2"), &Rules::ours(false));
    assert!(!found.upgraded);
    assert_eq!(
        found.conditions[2].message,
        "now upgrading to version 2, waiting for B"
    );
    let found = consolidate(&["A", "B"].map(healthy), Some("2"), &Rules::ours(false));
    assert!(found.upgraded);
    assert_eq!(found.ready, Some(true));
}

#[test]
fn an_object_with_another_name_gets_a_condition_with_the_right_name() {
    let found = invalid_request("other", "default");
    assert_eq!(shown(&found, Kind::ReconcileComplete), "F InvalidRequest");
    assert_eq!(shown(&found, Kind::Available), "U");
    assert!(found.conditions[0].message.contains("default"));
}

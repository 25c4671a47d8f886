//! The decision table, line by line.
//!
//! Invariant: the fixture has every line of the table that it was taken from, with both outcomes.
//! Failure: all lines that differ are listed at once.

use std::collections::BTreeSet;

use crds::vm::Afterwards;
use lifecycle::{Action, Decision, DesiredState, Patch, Waiting};

use crate::build::{Case, requests};

const TABLE: &str = include_str!("../fixtures/decisions.tsv");
/// Lines of the table; groups of numbers that behave alike share one.
const LINES: usize = 73;

struct Line<'a> {
    row: &'a str,
    /// A row of the table: strategy, instance, request, extra, action, request after, status.
    theirs: Vec<&'a str>,
    given: Vec<&'a str>,
    action: &'a str,
    left: &'a str,
    word: &'a str,
    follows: &'a str,
    mark: &'a str,
}

fn lines() -> Vec<Line<'static>> {
    let rows = TABLE.lines().filter(|l| !l.starts_with('#')).skip(1);
    rows.map(|line| {
        let cells: Vec<_> = line.split('\t').collect();
        assert_eq!(cells.len(), 14, "{line}");
        Line {
            row: cells[0],
            theirs: cells[1..8].to_vec(),
            given: cells[8].split(" | ").filter(|g| !g.is_empty()).collect(),
            action: cells[9],
            left: cells[10],
            word: cells[11],
            follows: cells[12],
            mark: cells[13],
        }
    })
    .collect()
}

/// The value for the vector at `index`: one for all, or one each.
fn nth(cell: &str, index: usize) -> &str {
    let values: Vec<_> = cell.split(" | ").collect();
    if values.len() == 1 {
        values[0]
    } else {
        values[index]
    }
}

fn action(case: &Case, decision: &Decision) -> String {
    let on = || DesiredState::from_spec(&case.spec).unwrap().unwrap().on();
    let mut text = match &decision.action {
        Action::Nothing => "nothing".to_owned(),
        Action::Wait(Waiting::Pending) => "wait:pending".into(),
        Action::Wait(Waiting::Deletion) => "wait:deletion".into(),
        Action::Wait(Waiting::BackOff) => "wait:backoff".into(),
        Action::Wait(Waiting::Volumes) => "wait:volumes".into(),
        Action::Wait(Waiting::Held) => "wait:held".into(),
        Action::Create { paused: true, .. } => "create:paused".into(),
        Action::Create { restore: true, .. } => "create:restore".into(),
        Action::Create { .. } => "create".into(),
        Action::Delete { .. } => "delete".into(),
        Action::Shutdown { .. } => "shutdown".into(),
        Action::Save { .. } => "save".into(),
        Action::DiscardSaved => "discard".into(),
        Action::Pause { .. } => "pause".into(),
        Action::Unpause { .. } => "unpause".into(),
        Action::Patch(Patch::DesiredState(desired_state)) if *desired_state == on() => {
            "patch:on".into()
        }
        Action::Patch(Patch::DesiredState(desired_state)) => format!("patch:{desired_state}"),
        Action::Patch(Patch::Paused) => "patch:paused".into(),
        Action::RemoveFinalizer => "finish".into(),
    };
    if decision.release {
        text.push_str("+release");
    }
    if decision.failure.is_some() {
        text.push_str("+failure");
    }
    text
}

/// What is recorded to follow the instance that is there, or the last one.
fn follows(decision: &Decision) -> &'static str {
    match decision.status.instance.as_ref().and_then(|i| i.afterwards) {
        None => "-",
        Some(Afterwards::StayDown) => "down",
        Some(Afterwards::StartAgain) => "again",
    }
}

#[test]
fn every_row_of_the_table_has_its_decision() {
    let mut wrong = Vec::new();
    for line in lines() {
        for (index, given) in line.given.iter().enumerate() {
            let case = Case::parse(given);
            let decision = case.pass();
            let word = decision.status.printable_status;
            let got = [
                action(&case, &decision),
                format!("{:?}", decision.status.state_change_requests),
                word.map_or("-".to_owned(), |word| format!("{word:?}")),
                follows(&decision).to_owned(),
            ];
            let want = [
                nth(line.action, index).to_owned(),
                format!("{:?}", requests(nth(line.left, index))),
                nth(line.word, index).to_owned(),
                nth(line.follows, index).to_owned(),
            ];
            if got != want {
                wrong.push(format!(
                    "{} [{given}]\n   got {got:?}\n  want {want:?}",
                    line.row
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_is_whole() {
    let lines = lines();
    assert_eq!(lines.len(), LINES);
    let mut numbers = BTreeSet::new();
    let mut deletions = BTreeSet::new();
    for line in &lines {
        for part in line.row.split(", ") {
            let of_deletion = part.starts_with('D');
            let plain = part.replace('D', "");
            let (from, to) = plain.split_once('-').unwrap_or((&plain, &plain));
            for number in from.parse::<u32>().unwrap()..=to.parse().unwrap() {
                let set = if of_deletion {
                    &mut deletions
                } else {
                    &mut numbers
                };
                assert!(set.insert(number), "{number} occurs twice");
            }
        }
    }
    assert_eq!(numbers, (1..=78).collect());
    assert_eq!(deletions, (1..=8).collect());
}

#[test]
fn only_rows_of_a_receiver_have_no_counterpart() {
    let without: Vec<_> = lines().into_iter().filter(|l| l.given.is_empty()).collect();
    let rows: Vec<_> = without.iter().map(|l| l.row).collect();
    assert_eq!(rows, ["35-36", "74", "75", "76", "77"]);
    assert!(without.iter().all(|l| l.mark == "no counterpart"));
}

/// A line that is marked as theirs must not hide a difference.
#[test]
fn unmarked_lines_show_the_expectation_of_the_table() {
    for line in lines().iter().filter(|l| l.mark == "=") {
        let theirs = line.theirs[6];
        for word in line.word.split(" | ") {
            // Line 43 has its second case in the column before, and 78 does not change the status.
            let is_said = matches!((line.row, word), ("43", "Starting") | ("78", "-"));
            let is_theirs = is_said
                || theirs.contains(word)
                || (line.row == "59" && theirs == "Provisioning etc.");
            assert!(is_theirs, "{}: {word} is not in {theirs:?}", line.row);
        }
    }
}

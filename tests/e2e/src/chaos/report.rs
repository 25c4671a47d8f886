//! The printed report of a chaos run.
//!
//! Invariant: each round is printed before it runs, so that the last line names what broke.
//! Failure: none.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::Plan;
use super::boots::Testimony;
use super::machines::name;
use super::operation::{Kind, Operation, Outcome};
use super::script::Round;
use super::transfers::Complete;
use super::verdict::Results;

/// What happened.
#[derive(Debug)]
pub struct Report {
    plan: Plan,
    rounds: u32,
    deaths: BTreeMap<&'static str, u32>,
    changes: BTreeMap<&'static str, u32>,
    operations: BTreeMap<Kind, Played>,
    /// How often a controller stopped because the API server was away for too long.
    pub(super) lost_leases: u32,
    /// Transfers that had their end.
    pub(super) transfers: Complete,
    pub(super) results: Results,
    /// What each phase took, in their order.
    phases: Vec<(&'static str, Duration)>,
    /// Since when the present one runs.
    phase_began: Instant,
    pub(super) testimony: Testimony,
}

/// How often an operation was dealt.
#[derive(Debug, Clone, Copy, Default)]
struct Played {
    requested: u32,
    skipped: u32,
}

impl Report {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            rounds: 0,
            deaths: BTreeMap::new(),
            changes: BTreeMap::new(),
            operations: BTreeMap::new(),
            lost_leases: 0,
            transfers: Complete::default(),
            results: Results::default(),
            phases: Vec::new(),
            phase_began: Instant::now(),
            testimony: Testimony::default(),
        }
    }

    /// A deadline for the machines of the plan.
    pub(super) fn patience(&self, within: Duration) -> Duration {
        self.plan.patience(within)
    }

    /// A phase has ended, and the next one begins.
    pub(super) fn ended(&mut self, phase: &'static str) {
        let took = self.phase_began.elapsed();
        self.phase_began += took;
        eprintln!("chaos: {phase}: {:.0} s", took.as_secs_f64());
        self.phases.push((phase, took));
    }

    pub(super) fn announce(&mut self, at: Duration, round: &Round) {
        self.rounds += 1;
        for change in &round.changes {
            *self.changes.entry(change.name).or_default() += 1;
            if change.name == Kind::Promote.name() {
                self.operations.entry(Kind::Promote).or_default().requested += 1;
            }
        }
        for victim in &round.victims {
            *self.deaths.entry(victim.program).or_default() += 1;
        }
        let changes = round.changes.iter();
        let changes: Vec<_> = changes
            .map(|change| format!("{} {}", name(change.machine), change.name))
            .collect();
        let operation = round
            .operation
            .map_or("", |operation| operation.kind.name());
        let victims = round.victims.iter();
        let victims: Vec<_> = victims
            .map(|victim| format!("{} of node {}", victim.program, victim.node))
            .collect();
        eprintln!(
            "chaos: {:>4} s, round {}: {}; {operation}; kill {} after {:?} for {:?}",
            at.as_secs(),
            self.rounds,
            changes.join(", "),
            victims.join(" and "),
            round.before,
            round.dead,
        );
    }

    /// What an operation was done with.
    pub(super) fn played(&mut self, operation: Operation, outcome: &Outcome) {
        let played = self.operations.entry(operation.kind).or_default();
        let kind = operation.kind.name();
        match outcome {
            Outcome::Requested(what) => {
                played.requested += 1;
                eprintln!("chaos:         {kind}: {what}");
            }
            Outcome::Skipped(why) => {
                played.skipped += 1;
                eprintln!("chaos:         {kind}: skipped: {why}");
            }
        }
    }

    /// What was not done once, in words: nothing of it has been proved.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let played = |kind: &Kind| {
            let played = self.operations.get(kind);
            played.is_some_and(|played| played.requested > 0)
        };
        let kinds = Kind::ALL.into_iter();
        let kinds = kinds.filter(|kind| !played(kind)).map(Kind::name);
        let results = [
            (self.transfers.exports == 0, "complete export"),
            (self.transfers.uploads == 0, "complete upload"),
            (self.testimony.returns == 0, "boot after a revert"),
            (self.testimony.copies == 0, "boot of a copy"),
            (self.results.backups == 0, "complete backup"),
            (
                self.results.promoted_online == 0,
                "promotion of a running machine",
            ),
        ];
        let results = results.into_iter().filter(|(is_missing, _)| *is_missing);
        kinds.chain(results.map(|(_, result)| result)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            plan,
            rounds,
            testimony,
            ..
        } = self;
        let lost = self.lost_leases;
        writeln!(f, "killed: {}; leases lost: {lost}", counts(&self.deaths))?;
        writeln!(f, "changed: {}", counts(&self.changes))?;
        let operations = self.operations.iter();
        let operations = operations.map(|(kind, played)| match played.skipped {
            0 => format!("{} {}", kind.name(), played.requested),
            skipped => format!("{} {} (skipped {skipped})", kind.name(), played.requested),
        });
        writeln!(
            f,
            "operations: {}",
            operations.collect::<Vec<_>>().join(", ")
        )?;
        let missing = self.missing();
        if !missing.is_empty() {
            writeln!(f, "not once: {}", missing.join(", "))?;
        }
        let phases = self.phases.iter();
        let phases = phases.map(|(phase, took)| format!("{phase} {:.0} s", took.as_secs_f64()));
        writeln!(f, "phases: {}", phases.collect::<Vec<_>>().join(", "))?;
        write!(
            f,
            "chaos: passed: seed {}, {} machines on {} nodes, {} s: {rounds} rounds, {} kills, {} changes, {} \
             operations; all in their desired states in the end; {} boots of {} disks, {} of them after a revert, \
             none shared; {} machines made of others; {} disks promoted while their guests ran; {} backups in the \
             end, {} of them by the schedule; {} exports and {} uploads complete; nothing left",
            plan.seed,
            plan.machines,
            plan.nodes,
            plan.duration.as_secs(),
            self.deaths.values().sum::<u32>(),
            self.changes.values().sum::<u32>(),
            self.operations
                .values()
                .map(|one| one.requested)
                .sum::<u32>(),
            testimony.boots,
            testimony.disks,
            testimony.returns,
            testimony.copies,
            self.results.promoted_online,
            self.results.backups,
            self.results.scheduled,
            self.transfers.exports,
            self.transfers.uploads,
        )
    }
}

fn counts(counts: &BTreeMap<&str, u32>) -> String {
    let words: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_only_skipped_is_missing() {
        let plan = Plan {
            duration: Duration::from_secs(60),
            seed: 7,
            machines: 6,
            nodes: 2,
        };
        let mut report = Report::new(plan);
        let results = [
            "complete export",
            "complete upload",
            "boot after a revert",
            "boot of a copy",
            "complete backup",
            "promotion of a running machine",
        ];
        let all = [&Kind::ALL.map(Kind::name)[..], &results].concat();
        assert_eq!(report.missing(), all);
        for kind in Kind::ALL {
            let operation = Operation { kind, choice: 0 };
            report.played(operation, &Outcome::Skipped("nothing".to_owned()));
            assert!(report.missing().contains(&kind.name()));
            report.played(operation, &Outcome::Requested("it".to_owned()));
            assert!(!report.missing().contains(&kind.name()));
        }
        assert_eq!(report.missing(), results);
        report.transfers = Complete {
            exports: 1,
            uploads: 1,
        };
        report.testimony.returns = 1;
        report.testimony.copies = 1;
        report.results = Results {
            promoted_online: 1,
            backups: 1,
            scheduled: 0,
        };
        let text = report.to_string();
        assert!(text.contains("snapshot 1 (skipped 1)"), "{text}");
        assert!(!text.contains("not once"), "{text}");
    }
}

//! The printed report of a chaos run.
//!
//! Invariant: each round is printed before it runs, so that the last line names what broke.
//! Failure: none.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::Plan;
use super::machines::name;
use super::script::Round;
use super::witness::Testimony;

/// What happened.
#[derive(Debug)]
pub struct Report {
    plan: Plan,
    rounds: u32,
    deaths: BTreeMap<&'static str, u32>,
    changes: BTreeMap<&'static str, u32>,
    /// How often a controller stopped because the API server was away for too long.
    pub(super) lost_leases: u32,
    /// What each phase took, in their order.
    phases: Vec<(&'static str, Duration)>,
    /// Since when the present one runs.
    phase_began: Instant,
    pub(super) testimony: Testimony,
}

impl Report {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            rounds: 0,
            deaths: BTreeMap::new(),
            changes: BTreeMap::new(),
            lost_leases: 0,
            phases: Vec::new(),
            phase_began: Instant::now(),
            testimony: Testimony::default(),
        }
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
        }
        for program in &round.victims {
            *self.deaths.entry(program).or_default() += 1;
        }
        let changes = round.changes.iter();
        let changes: Vec<_> = changes
            .map(|change| format!("{} {}", name(change.machine), change.name))
            .collect();
        eprintln!(
            "chaos: {:>4} s, round {}: {}; kill {} after {:?} for {:?}",
            at.as_secs(),
            self.rounds,
            changes.join(", "),
            round.victims.join(" and "),
            round.before,
            round.dead,
        );
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
        let phases = self.phases.iter();
        let phases = phases.map(|(phase, took)| format!("{phase} {:.0} s", took.as_secs_f64()));
        writeln!(f, "phases: {}", phases.collect::<Vec<_>>().join(", "))?;
        write!(
            f,
            "chaos: passed: seed {}, {} machines, {} s: {rounds} rounds, {} kills, {} changes; all in their desired \
             states in the end; {} boots of {} disks, none shared, nothing left",
            plan.seed,
            plan.machines,
            plan.duration.as_secs(),
            self.deaths.values().sum::<u32>(),
            self.changes.values().sum::<u32>(),
            testimony.boots,
            testimony.disks,
        )
    }
}

fn counts(counts: &BTreeMap<&str, u32>) -> String {
    let words: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
    words.join(", ")
}

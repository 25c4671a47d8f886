//! What happens in a schedule, all of it by its seed.
//!
//! Invariant: a plan is one line of text, and the text is the plan; each part of the world has random
//! numbers of its own, so that a plan with fewer faults leaves the other parts as they were.
//! Failure: none; a text that is no plan is refused with a panic.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use fastrand::Rng;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// Watches of some kinds are seconds behind those of others.
    Lag,
    /// Watches break off and list again, also twice.
    Relists,
    /// Requests are refused, or their answers are lost before or after the effect.
    Answers,
    /// The controller is killed between two writes.
    Crashes,
    /// The clock of the controller steps.
    Clock,
    /// Nodes do not report for some minutes.
    Nodes,
    /// Tasks fail.
    Tasks,
    /// Guests end by themselves.
    Guests,
}

impl Fault {
    pub(super) const ALL: [Self; 8] = [
        Self::Lag,
        Self::Relists,
        Self::Answers,
        Self::Crashes,
        Self::Clock,
        Self::Nodes,
        Self::Tasks,
        Self::Guests,
    ];
}

/// What takes part beside machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A group of two machines.
    Groups,
    /// A set with up to three machines of its own.
    ReplicaSets,
    /// Snapshots, with and without memory, and reverts.
    Snapshots,
    /// Backups to one target.
    Backups,
    /// The image changes, and nodes pull it before machines need it.
    Images,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [
        Self::Groups,
        Self::ReplicaSets,
        Self::Snapshots,
        Self::Backups,
        Self::Images,
    ];
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How many changes of desired states users make.
    pub(super) changes: usize,
    pub(super) faults: BTreeSet<Fault>,
    pub(super) kinds: BTreeSet<Kind>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let changes = random.usize(2..12);
        let mut faults = BTreeSet::from(Fault::ALL);
        faults.retain(|_| random.u8(..4) > 0);
        let mut kinds = BTreeSet::from(Kind::ALL);
        kinds.retain(|_| random.bool());
        Self {
            seed,
            changes,
            faults,
            kinds,
        }
    }

    /// Random numbers of one part of the world.
    pub(super) fn random(&self, part: &str) -> Rng {
        let mut hasher = DefaultHasher::new();
        (self.seed, part).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    /// Plans with a little less, for the search of what a failure needs.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let without = |fault: &Fault| {
            let mut plan = self.clone();
            plan.faults.remove(fault);
            plan
        };
        let without_kind = |kind: &Kind| {
            let mut plan = self.clone();
            plan.kinds.remove(kind);
            plan
        };
        let mut all: Vec<_> = self.kinds.iter().map(without_kind).collect();
        all.extend(self.faults.iter().map(without));
        for changes in [self.changes / 2, self.changes.saturating_sub(1)] {
            if changes < self.changes {
                let plan = self.clone();
                all.push(Self { changes, ..plan });
            }
        }
        all
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = listed(&self.faults);
        let kinds = listed(&self.kinds);
        write!(f, "{}/{}/{faults}/{kinds}", self.seed, self.changes)
    }
}

fn listed<T: fmt::Debug>(chosen: &BTreeSet<T>) -> String {
    let names: Vec<_> = chosen.iter().map(|one| format!("{one:?}")).collect();
    names.join(",")
}

/// Those that a text names.
fn chosen<T: Copy + Ord + fmt::Debug>(all: &[T], text: &str) -> Result<BTreeSet<T>, String> {
    let names = text.split(',').filter(|name| !name.is_empty());
    let known = |name: &str| {
        let found = all.iter().find(|one| format!("{one:?}") == name);
        found
            .copied()
            .ok_or_else(|| format!("there is no fault or kind {name}"))
    };
    names.map(known).collect()
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/');
        let mut next = || {
            parts
                .next()
                .ok_or("SEED/CHANGES/FAULT,FAULT/KIND,KIND is expected")
        };
        let seed = next()?.parse().map_err(|_| "the seed is no number")?;
        let changes = next()?.parse();
        let changes = changes.map_err(|_| "the number of changes is no number")?;
        let faults = chosen(&Fault::ALL, next()?)?;
        let kinds = chosen(&Kind::ALL, next()?)?;
        Ok(Self {
            seed,
            changes,
            faults,
            kinds,
        })
    }
}

#[test]
fn a_plan_survives_being_written() {
    for seed in 0..50 {
        let plan = Plan::new(seed);
        assert_eq!(plan.to_string().parse(), Ok(plan));
    }
    assert!("7/3/Wind/".parse::<Plan>().is_err());
    assert!("7/3/Lag/Clouds".parse::<Plan>().is_err());
    assert!("7/3/Lag".parse::<Plan>().is_err());
}

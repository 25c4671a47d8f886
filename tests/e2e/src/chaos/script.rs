//! The script of a chaos run, round by round: a pure function of the seed.
//!
//! Invariant: the same seed and numbers of machines and nodes give the same rounds in the same order;
//! how many of them are played depends on the time that the machine underneath needs.
//! Failure: none.

use std::time::Duration;

use fastrand::Rng;

use super::desired::{DesiredState, Mode, Promotion};
use super::operation::{Deck, Kind, Operation};

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On the first node, for the whole cluster.
    Cluster,
    /// On every node.
    Node,
}

/// Who dies, in the order in which they are started again: those who need others come after them.
/// kubelet and containerd are not ours.
pub(super) const PROGRAMS: [(&str, Place); 7] = [
    ("kube-apiserver", Place::Cluster),
    ("libvirtd", Place::Node),
    ("vmlet-tapmanager", Place::Node),
    ("vmlet", Place::Node),
    ("vmlet-criproxy", Place::Node),
    ("vmlet-agent", Place::Node),
    ("vmlet-controller", Place::Cluster),
];

/// A change of one desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// Number of the machine.
    pub(super) machine: usize,
    /// All that it shall be from now on.
    pub(super) desired: DesiredState,
    /// What is new about that.
    pub(super) name: &'static str,
}

/// A program that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) program: &'static str,
    /// Number of its node, from 1 on.
    pub(super) node: usize,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) changes: Vec<Change>,
    /// `None` where a change of the round is all of it.
    pub(super) operation: Option<Operation>,
    /// From the last change to the blow.
    pub(super) before: Duration,
    /// One or two, in the order of [`PROGRAMS`].
    pub(super) victims: Vec<Victim>,
    /// How long they stay dead.
    pub(super) dead: Duration,
    /// From their return to the next round.
    pub(super) after: Duration,
}

/// The rounds.
#[derive(Debug)]
pub(super) struct Script {
    rng: Rng,
    deck: Deck,
    desired: Vec<DesiredState>,
    nodes: usize,
}

impl Script {
    /// All machines begin with [`DesiredState::FIRST`].
    pub(super) fn new(seed: u64, machines: usize, nodes: usize) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            deck: Deck::default(),
            desired: vec![DesiredState::FIRST; machines],
            nodes,
        }
    }

    /// The next round.
    pub(super) fn round(&mut self) -> Round {
        let count = self.rng.usize(1..=2);
        let mut changes: Vec<_> = (0..count).map(|_| self.change()).collect();
        let mut operation = Some(self.deck.deal(&mut self.rng));
        if let Some(promote) = operation.take_if(|dealt| dealt.kind == Kind::Promote) {
            changes.push(self.promote(promote.choice));
        }
        Round {
            changes,
            operation,
            before: self.pause(3000),
            victims: self.victims(),
            dead: self.pause(4000),
            after: self.pause(6000),
        }
    }

    fn victims(&mut self) -> Vec<Victim> {
        let first = self.rng.usize(..PROGRAMS.len());
        // Sometimes the same one again: then it dies alone.
        let second = match self.rng.u8(..4) {
            0 => self.rng.usize(..PROGRAMS.len()),
            _ => first,
        };
        let node = self.rng.usize(1..=self.nodes);
        let chosen = PROGRAMS.into_iter().enumerate();
        let chosen = chosen.filter(|(n, _)| *n == first || *n == second);
        let victim = |(_, (program, place))| Victim {
            program,
            node: match place {
                Place::Cluster => 1,
                Place::Node => node,
            },
        };
        chosen.map(victim).collect()
    }

    fn change(&mut self) -> Change {
        let machine = self.rng.usize(..self.desired.len());
        let old = self.desired[machine];
        let (desired, name) = self.other(old);
        self.desired[machine] = desired;
        Change {
            machine,
            desired,
            name,
        }
    }

    /// Off, with a disk that is to be independent of its image.
    fn promote(&mut self, choice: usize) -> Change {
        let machine = choice % self.desired.len();
        let desired = DesiredState {
            mode: Mode::Off,
            promotion: Promotion::Offline,
            ..self.desired[machine]
        };
        self.desired[machine] = desired;
        let name = Kind::Promote.name();
        Change {
            machine,
            desired,
            name,
        }
    }

    /// Machines are on most of the time, and mostly exist.
    fn other(&mut self, old: DesiredState) -> (DesiredState, &'static str) {
        let mode = match self.rng.u8(..21) {
            0..=2 => Mode::On,
            3 => Mode::Once,
            4..=6 => Mode::Off,
            7..=9 => Mode::Suspended,
            10 | 11 => Mode::Always,
            12 => Mode::Halted,
            13 | 14 => Mode::RerunOnFailure,
            15 => Mode::Manual,
            16 | 17 => Mode::Gone,
            18 => return (self.promoted(old), "promoteDisksMode"),
            _ => return (resized(old), "class"),
        };
        // The API server refuses to suspend what is off, and nothing is born so.
        let mode = match mode {
            Mode::Suspended if old.mode.is_off() => Mode::On,
            other => other,
        };
        (DesiredState { mode, ..old }, mode.name())
    }

    fn promoted(&mut self, old: DesiredState) -> DesiredState {
        let number = self.rng.usize(..Promotion::ALL.len());
        let promotion = Promotion::ALL[number];
        DesiredState { promotion, ..old }
    }

    fn pause(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.rng.u64(..millis))
    }
}

fn resized(old: DesiredState) -> DesiredState {
    let class = match old.class {
        "large" => "small",
        _ => "large",
    };
    DesiredState { class, ..old }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::operation::CARDS;
    use super::*;

    fn rounds(seed: u64, count: usize) -> Vec<Round> {
        let mut script = Script::new(seed, 6, 2);
        (0..count).map(|_| script.round()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_rounds_and_another_one_others() {
        assert_eq!(rounds(7, 200), rounds(7, 200));
        assert_eq!(rounds(7, 200)[..50], rounds(7, 50));
        assert_ne!(rounds(7, 200), rounds(8, 200));
    }

    #[test]
    fn twenty_minutes_of_rounds_kill_every_program_on_every_node_and_use_every_desired_state() {
        let all = rounds(1, 120);
        let died: BTreeSet<_> = all
            .iter()
            .flat_map(|round| &round.victims)
            .map(|victim| (victim.program, victim.node))
            .collect();
        for (program, place) in PROGRAMS {
            let nodes = match place {
                Place::Cluster => 1..=1,
                Place::Node => 1..=2,
            };
            for node in nodes {
                assert!(died.contains(&(program, node)), "{program} of node {node}");
            }
            let others = match place {
                Place::Cluster => died.contains(&(program, 2)),
                Place::Node => false,
            };
            assert!(!others, "there is no {program} on node 2");
        }
        let has = |name| all.iter().flat_map(|r| &r.changes).any(|c| c.name == name);
        for name in [
            "PoweredOn",
            "PoweredOff",
            "Suspended",
            "Always",
            "Halted",
            "RerunOnFailure",
            "Manual",
            "Once",
            "deleted",
            "class",
            "promoteDisksMode",
        ] {
            assert!(has(name), "{name}");
        }
        assert!(all.iter().any(|r| r.victims.len() == 2));
    }

    #[test]
    fn three_minutes_of_rounds_have_an_operation_of_each_kind() {
        for seed in 0..50 {
            let mut seen = BTreeSet::new();
            for round in rounds(seed, CARDS) {
                seen.extend(round.operation.map(|one| one.kind.name()));
                seen.extend(round.changes.iter().map(|change| change.name));
            }
            for kind in Kind::ALL {
                assert!(seen.contains(kind.name()), "seed {seed}: {}", kind.name());
            }
        }
    }

    #[test]
    fn a_powered_off_machine_gets_no_save_task() {
        let mut script = Script::new(3, 4, 1);
        let mut desired = [DesiredState::FIRST; 4];
        for _ in 0..500 {
            for change in script.round().changes {
                let old = desired[change.machine];
                assert!(
                    change.desired.mode != Mode::Suspended || !old.mode.is_off(),
                    "{change:?} after {old:?}"
                );
                desired[change.machine] = change.desired;
            }
        }
    }
}

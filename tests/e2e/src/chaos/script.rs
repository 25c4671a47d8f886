//! The script of a chaos run, round by round: a pure function of the seed.
//!
//! Invariant: the same seed and number of machines give the same rounds in the same order; how many
//! of them are played depends on the time that the machine underneath needs.
//! Failure: none.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

/// Who dies: ours, except the tapmanager, whose death `cluster_restarts` covers, and the API
/// server. In the order in which they are started again: those who need the API server come after
/// it.
pub(super) const PROGRAMS: [&str; 5] = [
    "kube-apiserver",
    "vmlet",
    "vmlet-criproxy",
    "vmlet-agent",
    "vmlet-controller",
];

/// The desired state of a machine, in both fields that have more than two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    On,
    Off,
    Suspended,
    Always,
    Halted,
    RerunOnFailure,
    Manual,
    Once,
    /// No object at all.
    Gone,
}

/// What a machine shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DesiredState {
    pub(super) mode: Mode,
    pub(super) class: &'static str,
}

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

/// One round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) changes: Vec<Change>,
    /// From the last change to the blow.
    pub(super) before: Duration,
    /// One or two of [`PROGRAMS`], in their order.
    pub(super) victims: Vec<&'static str>,
    /// How long they stay dead.
    pub(super) dead: Duration,
    /// From their return to the next round.
    pub(super) after: Duration,
}

/// The rounds.
#[derive(Debug)]
pub(super) struct Script {
    rng: Rng,
    desired: Vec<DesiredState>,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::On => "PoweredOn",
            Self::Off => "PoweredOff",
            Self::Suspended => "Suspended",
            Self::Always => "Always",
            Self::Halted => "Halted",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Manual => "Manual",
            Self::Once => "Once",
            Self::Gone => "deleted",
        }
    }

    const fn is_off(self) -> bool {
        matches!(self, Self::Off | Self::Halted | Self::Gone)
    }
}

impl DesiredState {
    pub(super) const FIRST: Self = Self {
        mode: Mode::On,
        class: "large",
    };

    /// The fields of a specification, `null` where one must not be.
    pub(super) fn spec(self) -> Value {
        let name = self.mode.name();
        let (power, strategy) = match self.mode {
            Mode::On | Mode::Off | Mode::Suspended => (json!(name), Value::Null),
            _ => (Value::Null, json!(name)),
        };
        json!({ "className": self.class, "powerState": power, "runStrategy": strategy })
    }
}

impl Script {
    /// All machines begin with [`DesiredState::FIRST`].
    pub(super) fn new(seed: u64, machines: usize) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            desired: vec![DesiredState::FIRST; machines],
        }
    }

    /// The next round.
    pub(super) fn round(&mut self) -> Round {
        let count = self.rng.usize(1..=2);
        let changes = (0..count).map(|_| self.change()).collect();
        let first = self.rng.usize(..PROGRAMS.len());
        // Sometimes the same one again: then it dies alone.
        let second = if self.rng.u8(..4) == 0 {
            self.rng.usize(..PROGRAMS.len())
        } else {
            first
        };
        let victims = (0..PROGRAMS.len())
            .filter(|n| *n == first || *n == second)
            .map(|n| PROGRAMS[n])
            .collect();
        Round {
            changes,
            before: self.pause(3000),
            victims,
            dead: self.pause(4000),
            after: self.pause(6000),
        }
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

    /// Machines are on most of the time, and mostly exist.
    fn other(&mut self, old: DesiredState) -> (DesiredState, &'static str) {
        let mode = match self.rng.u8(..20) {
            0..=2 => Mode::On,
            3 => Mode::Once,
            4..=6 => Mode::Off,
            7..=9 => Mode::Suspended,
            10 | 11 => Mode::Always,
            12 => Mode::Halted,
            13 | 14 => Mode::RerunOnFailure,
            15 => Mode::Manual,
            16 | 17 => Mode::Gone,
            _ => return Self::resized(old),
        };
        // The API server refuses to suspend what is off, and nothing is born so.
        let mode = match mode {
            Mode::Suspended if old.mode.is_off() => Mode::On,
            other => other,
        };
        (DesiredState { mode, ..old }, mode.name())
    }

    fn resized(old: DesiredState) -> (DesiredState, &'static str) {
        let class = if old.class == "large" {
            "small"
        } else {
            "large"
        };
        (DesiredState { class, ..old }, "class")
    }

    fn pause(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.rng.u64(..millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(seed: u64, count: usize) -> Vec<Round> {
        let mut script = Script::new(seed, 10);
        (0..count).map(|_| script.round()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_rounds_and_another_one_others() {
        assert_eq!(rounds(7, 200), rounds(7, 200));
        assert_eq!(rounds(7, 200)[..50], rounds(7, 50));
        assert_ne!(rounds(7, 200), rounds(8, 200));
    }

    #[test]
    fn twenty_minutes_of_rounds_kill_every_program_and_use_every_desired_state() {
        let all = rounds(1, 100);
        for program in PROGRAMS {
            assert!(
                all.iter().any(|r| r.victims.contains(&program)),
                "{program}"
            );
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
        ] {
            assert!(has(name), "{name}");
        }
        assert!(all.iter().any(|r| r.victims.len() == 2));
    }

    #[test]
    fn a_powered_off_machine_gets_no_save_task() {
        let mut script = Script::new(3, 4);
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

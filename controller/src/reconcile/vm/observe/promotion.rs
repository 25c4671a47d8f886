//! Whether the root disk of a machine is to be flattened now.
//!
//! Invariant: a pure decision; a guest is never disturbed during its first boot, and a disk is never
//! flattened for a machine in another state than its mode names.
//! Failure: none here.

use crds::vm::PromoteDisksMode;

/// What is known of a machine with a linked disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `spec.promoteDisksMode`.
    pub(crate) mode: PromoteDisksMode,
    /// A pod of it exists.
    pub(crate) has_pod: bool,
    /// Its guest runs, and is to go on.
    pub(crate) runs: bool,
    /// It is off, and is to stay so.
    pub(crate) stays_off: bool,
    /// An administrator paused it.
    pub(crate) is_paused: bool,
    /// The agent in its guest answers.
    pub(crate) answers: bool,
    /// Seconds for which the guest has run.
    pub(crate) ran: i64,
    /// Seconds after which its first boot counts as completed without an answer.
    pub(crate) first_boot: i64,
}

/// What to do about the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is not its turn, for this reason; look again after so many seconds.
    Waits(&'static str, Option<i64>),
    /// The node is to flatten it.
    Due {
        /// The machine is off; else it runs.
        offline: bool,
    },
}

/// Decides. Snapshots of a disk will forbid it here.
pub(crate) const fn decide(facts: Facts) -> Turn {
    if facts.is_paused {
        return Turn::Waits("the machine is paused", None);
    }
    match facts.mode {
        PromoteDisksMode::Disabled => Turn::Waits("promoteDisksMode is Disabled", None),
        PromoteDisksMode::Offline if facts.stays_off && !facts.has_pod => {
            Turn::Due { offline: true }
        }
        PromoteDisksMode::Offline => {
            Turn::Waits("the root disk is flattened when the machine is off", None)
        }
        PromoteDisksMode::Online if !facts.runs => {
            Turn::Waits("the root disk is flattened when the machine runs", None)
        }
        PromoteDisksMode::Online if facts.answers || facts.ran >= facts.first_boot => {
            Turn::Due { offline: false }
        }
        PromoteDisksMode::Online => Turn::Waits(
            "the root disk is flattened after the first boot of the guest",
            Some(facts.first_boot - facts.ran),
        ),
    }
}

/// Seconds before a task whose failure may pass is tried again, for a disk that has not been
/// flattened for this long: the longer, the longer.
pub(crate) fn back_off(unsynced: i64) -> i64 {
    (unsynced / 2).clamp(30, 1800)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: Facts = Facts {
        mode: PromoteDisksMode::Online,
        has_pod: true,
        runs: true,
        stays_off: false,
        is_paused: false,
        answers: true,
        ran: 5,
        first_boot: 600,
    };
    const OFF: Facts = Facts {
        mode: PromoteDisksMode::Offline,
        has_pod: false,
        runs: false,
        stays_off: true,
        answers: false,
        ..RUNNING
    };

    fn is_due(facts: Facts) -> Option<bool> {
        match decide(facts) {
            Turn::Due { offline } => Some(offline),
            Turn::Waits(..) => None,
        }
    }

    #[test]
    fn a_running_machine_is_due_after_its_first_boot() {
        assert_eq!(is_due(RUNNING), Some(false));
        let silent = Facts {
            answers: false,
            ..RUNNING
        };
        let Turn::Waits(_, again) = decide(silent) else {
            panic!("it boots")
        };
        assert_eq!(again, Some(595));
        assert_eq!(is_due(Facts { ran: 600, ..silent }), Some(false));
    }

    #[test]
    fn each_mode_is_for_its_own_state_of_the_machine() {
        assert_eq!(is_due(OFF), Some(true));
        let (online, offline) = (PromoteDisksMode::Online, PromoteDisksMode::Offline);
        for facts in [
            Facts {
                mode: online,
                ..OFF
            },
            Facts {
                mode: offline,
                ..RUNNING
            },
            // The pod of a machine that has ended may still have the disk.
            Facts {
                has_pod: true,
                ..OFF
            },
            // It is about to start.
            Facts {
                stays_off: false,
                ..OFF
            },
            Facts {
                is_paused: true,
                ..RUNNING
            },
            Facts {
                is_paused: true,
                ..OFF
            },
            Facts {
                mode: PromoteDisksMode::Disabled,
                ..OFF
            },
        ] {
            assert_eq!(is_due(facts), None, "{facts:?}");
        }
    }

    #[test]
    fn attempts_get_rarer_within_bounds() {
        assert_eq!([0, 59, 120, 86_400].map(back_off), [30, 30, 60, 1800]);
    }
}

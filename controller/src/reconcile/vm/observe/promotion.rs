//! Whether the root disk of a machine is to be flattened now.
//!
//! Invariant: a pure decision; a disk is flattened by a copy while no machine has it or may get it, and by its emulator
//! once the first boot of its guest is over.
//! Failure: none here.

/// What is known of a machine with a linked disk, which is to be flattened while the machine is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// A pod of it exists.
    pub(crate) has_pod: bool,
    /// It is off, and is to stay so.
    pub(crate) stays_off: bool,
    /// An administrator paused it.
    pub(crate) is_paused: bool,
}

/// What is known of a machine with a linked disk, which is to be flattened while the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnlineFacts {
    /// It runs, and is to go on as it does.
    pub(crate) stays_on: bool,
    /// An administrator paused it.
    pub(crate) is_paused: bool,
    /// For how many seconds it has been ready, if it is.
    pub(crate) ready: Option<i64>,
    /// For how many it has to be.
    pub(crate) after: i64,
}

/// Why it is not the disk's turn, if it is not.
pub(crate) const fn reason_to_wait(facts: Facts) -> Option<&'static str> {
    if facts.is_paused {
        Some("the machine is paused")
    } else if facts.has_pod || !facts.stays_off {
        Some("the root disk is flattened when the machine is off")
    } else {
        None
    }
}

/// Why a machine that copies its image, or is about to, has to stop, if it has to.
pub(crate) const fn reason_to_stop(facts: OnlineFacts) -> Option<&'static str> {
    if facts.is_paused {
        Some("the machine is paused")
    } else if !facts.stays_on {
        Some("the root disk is flattened while the machine runs")
    } else {
        None
    }
}

/// How many seconds are left until a guest counts as booted, if it is ready.
pub(crate) fn time_to_boot(facts: OnlineFacts) -> Option<i64> {
    let ready = facts.ready?;
    Some(facts.after.saturating_sub(ready).max(0))
}

/// Seconds before a task whose failure may pass is tried again, for a disk that has not been
/// flattened for this long: the longer, the longer.
pub(crate) fn back_off(unsynced: i64) -> i64 {
    (unsynced / 2).clamp(30, 1800)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Facts = Facts {
        has_pod: false,
        stays_off: true,
        is_paused: false,
    };

    const ON: OnlineFacts = OnlineFacts {
        stays_on: true,
        is_paused: false,
        ready: Some(60),
        after: 60,
    };

    #[test]
    fn only_the_disk_of_a_machine_that_stays_off_has_its_turn() {
        assert_eq!(reason_to_wait(OFF), None);
        for facts in [
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
                ..OFF
            },
        ] {
            assert!(reason_to_wait(facts).is_some(), "{facts:?}");
        }
    }

    #[test]
    fn a_machine_that_does_not_stay_on_copies_nothing() {
        assert_eq!(reason_to_stop(ON), None);
        for facts in [
            OnlineFacts {
                stays_on: false,
                ..ON
            },
            OnlineFacts {
                is_paused: true,
                ..ON
            },
        ] {
            assert!(reason_to_stop(facts).is_some(), "{facts:?}");
        }
        // A guest that is not ready for a moment goes on.
        assert_eq!(reason_to_stop(OnlineFacts { ready: None, ..ON }), None);
    }

    #[test]
    fn a_guest_has_booted_when_it_has_been_ready_for_a_while() {
        let time = |ready| time_to_boot(OnlineFacts { ready, ..ON });
        assert_eq!(time(None), None);
        let times = [0, 59, 60, i64::MAX, -5, i64::MIN].map(|ready| time(Some(ready)));
        assert_eq!(times, [60, 1, 0, 0, 65, i64::MAX].map(Some));
    }

    #[test]
    fn attempts_get_rarer_within_bounds() {
        assert_eq!([0, 59, 120, 86_400].map(back_off), [30, 30, 60, 1800]);
    }
}

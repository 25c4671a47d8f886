//! Whether the root disk of a machine is to be flattened now.
//!
//! Invariant: a pure decision; no disk of a machine that runs, starts or may have a guest is flattened.
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
    fn attempts_get_rarer_within_bounds() {
        assert_eq!([0, 59, 120, 86_400].map(back_off), [30, 30, 60, 1800]);
    }
}

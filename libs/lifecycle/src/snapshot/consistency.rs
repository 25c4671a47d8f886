//! What the disk of a snapshot can be relied on for, in words.
//!
//! Invariant: the same specification and status have the same words, so that nothing is written twice.
//! Failure: none.

use crds::{PowerState, VirtualMachineSnapshotSpec, VirtualMachineSnapshotStatus};

/// The consistency of a snapshot that was taken, and why it is no better.
pub const fn consistency(
    snapshot: &VirtualMachineSnapshotSpec,
    status: &VirtualMachineSnapshotStatus,
) -> &'static str {
    let was_on = matches!(status.power_state, Some(PowerState::PoweredOn));
    if !status.claims.is_empty() && status.quiesced {
        return "consistency: file systems; the guest had frozen them until all disks were taken";
    }
    if !status.claims.is_empty() && snapshot.quiesce.is_some() && was_on {
        return "consistency: each disk as after a cut of the power at a time of its own, although quiesce was requested; \
                the guest was reset or thawed before all were taken, or the daemon of the node ended";
    }
    if !status.claims.is_empty() {
        return "consistency: each disk as after a cut of the power at a time of its own, unless the machine was off until \
                all were taken";
    }
    if status.memory {
        return "consistency: the running guest; a machine that reverts resumes from its memory";
    }
    if status.quiesced {
        return "consistency: file systems; the guest had frozen them";
    }
    if !was_on {
        return "consistency: as the machine, which was off, left its disks";
    }
    if snapshot.quiesce.is_some() {
        return "consistency: as after a cut of the power, although quiesce was requested; the guest was reset or \
                thawed too early, or the daemon of the node ended, while the snapshot was taken";
    }
    "consistency: as after a cut of the power; quiesce was not requested"
}

#[cfg(test)]
mod tests {
    use crds::{ClaimSnapshot, Quiesce};

    use super::*;

    #[test]
    fn a_snapshot_says_what_it_can_be_relied_on_for() {
        let asked = |quiesce: Option<Quiesce>| VirtualMachineSnapshotSpec {
            quiesce,
            ..VirtualMachineSnapshotSpec::default()
        };
        let taken = |power_state, quiesced| VirtualMachineSnapshotStatus {
            power_state: Some(power_state),
            quiesced,
            ..VirtualMachineSnapshotStatus::default()
        };
        let quiesce = || Some(Quiesce::default());
        let on = PowerState::PoweredOn;
        let words = consistency(&asked(quiesce()), &taken(on, true));
        assert!(words.contains("had frozen"), "{words}");
        let with_memory = VirtualMachineSnapshotStatus {
            memory: true,
            ..taken(on, false)
        };
        let words = consistency(&asked(None), &with_memory);
        assert!(words.contains("its memory"), "{words}");
        let words = consistency(&asked(quiesce()), &taken(on, false));
        assert!(words.contains("although quiesce was requested"), "{words}");
        let words = consistency(&asked(None), &taken(on, false));
        assert!(words.contains("not requested"), "{words}");
        let mut claims = taken(PowerState::PoweredOff, false);
        claims.claims.push(ClaimSnapshot::default());
        let words = consistency(&asked(None), &claims);
        assert!(words.contains("each disk"), "{words}");
        claims.power_state = Some(PowerState::PoweredOn);
        let words = consistency(&asked(quiesce()), &claims);
        assert!(words.contains("although quiesce was requested"), "{words}");
        claims.quiesced = true;
        let words = consistency(&asked(quiesce()), &claims);
        assert!(words.contains("until all disks were taken"), "{words}");
        let off = taken(PowerState::PoweredOff, false);
        for quiesce in [None, quiesce()] {
            let words = consistency(&asked(quiesce), &off);
            assert!(words.contains("was off"), "{words}");
        }
    }
}

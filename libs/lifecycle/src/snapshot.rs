//! When a snapshot of a machine is taken, and what one records of it ([`manifest`]).
//!
//! Invariant: a snapshot that needs a change of the machine is refused, not delayed: one that is taken
//! at another time than its author expects has another content.
//! Failure: the text names what is in the way, and what to do.

mod consistency;
pub mod manifest;

pub use consistency::consistency;

use crds::vm::PromoteDisksMode;
use crds::{PowerState, Quiesce, VirtualMachineSnapshotSpec, VirtualMachineSpec};

use crate::power;

/// Whether the programs of a node run a kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// They do.
    Able,
    /// They are of an earlier version.
    Unable,
    /// Nothing is known of them at present.
    Unknown,
}

/// What is known of a machine when a snapshot of it is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The disk exists.
    pub has_disk: bool,
    /// The root disk is a claim.
    pub is_claim: bool,
    /// Claims that the snapshot has a part for, separated by commas; empty without any.
    pub claims: &'a str,
    /// Those of them that are not bound.
    pub unbound: &'a str,
    /// Observed power state.
    pub power_state: Option<PowerState>,
    /// The root disk is being flattened, or about to be.
    pub is_promoting: bool,
    /// The machine reverts to a snapshot, or is to.
    pub reverts: bool,
    /// Another task of the machine has not ended.
    pub is_busy: bool,
    /// Snapshots that the disk has.
    pub count: usize,
    /// Node of the disk.
    pub node: &'a str,
    /// Whether that node takes snapshots.
    pub ability: Ability,
    /// Whether it takes them with memory.
    pub saves_memory: bool,
    /// Whether the node of the machine has guests freeze for others.
    pub freezes: Ability,
}

/// What becomes of the oldest snapshot that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The node takes it.
    Take,
    /// It waits until the machine has a disk.
    WaitForDisk(&'static str),
    /// It waits for something that ends by itself.
    Wait(String),
    /// It is not taken.
    Refuse(String),
}

/// The verdict for a snapshot.
#[must_use]
pub fn verdict(
    snapshot: &VirtualMachineSnapshotSpec,
    machine: &VirtualMachineSpec,
    facts: &Facts<'_>,
) -> Verdict {
    if let Some(why) = refusal(snapshot, machine, facts) {
        return Verdict::Refuse(why);
    }
    if !facts.has_disk {
        return Verdict::WaitForDisk("the machine has no disk yet");
    }
    let node = facts.node;
    let unbound = facts.unbound;
    let wait = if !unbound.is_empty() {
        format!("these claims are not bound: {unbound}")
    } else if facts.reverts {
        "the machine reverts to another snapshot".to_owned()
    } else if facts.is_promoting && machine.promote_disks_mode == Some(PromoteDisksMode::Offline) {
        "the root disk is flattened first, while the machine is off; with promoteDisksMode: \
         Disabled the snapshot is taken of the linked disk"
            .to_owned()
    } else if facts.is_promoting || facts.is_busy {
        "another task of the machine has not ended".to_owned()
    } else if facts.ability == Ability::Unknown && !facts.is_claim
        || facts.freezes == Ability::Unknown && needs_freeze(snapshot, facts)
    {
        format!("vmlet-agent on node {node} does not reach its daemon, or does not renew its lease")
    } else {
        return Verdict::Take;
    };
    Verdict::Wait(wait)
}

fn refusal(
    snapshot: &VirtualMachineSnapshotSpec,
    machine: &VirtualMachineSpec,
    facts: &Facts<'_>,
) -> Option<String> {
    const MOST: usize = VirtualMachineSnapshotSpec::MOST;
    if snapshot.memory && snapshot.quiesce.is_some() {
        let text = "file systems that the guest has frozen would stay frozen when it resumes from its memory: remove \
                    quiesce or memory: true";
        return Some(text.to_owned());
    }
    if snapshot.memory && (facts.is_claim || !facts.claims.is_empty()) {
        return Some(format!(
            "the memory would not fit the snapshots of these claims, which the storage system takes at another time: {}; \
             remove memory: true",
            facts.claims
        ));
    }
    if facts.freezes == Ability::Unable && needs_freeze(snapshot, facts) {
        return Some(format!(
            "the programs of node {} cannot have the guest frozen while the storage system takes snapshots of these \
             claims: {}; upgrade vmlet and vmlet-agent there, or remove quiesce",
            facts.node, facts.claims
        ));
    }
    let is_saved = facts.power_state == Some(PowerState::Suspended)
        || machine.power_state == Some(PowerState::Suspended);
    if is_saved {
        let text = "the machine is suspended, and its memory would not fit an older disk: resume it \
                    or power it off";
        return Some(text.to_owned());
    }
    let is_off =
        facts.has_disk && !facts.reverts && facts.power_state != Some(PowerState::PoweredOn);
    if snapshot.memory && is_off {
        let text = "the machine does not run, and has no memory: start it and create another snapshot, or remove \
                    memory: true";
        return Some(text.to_owned());
    }
    if facts.count >= MOST {
        return Some(format!(
            "the machine has {MOST} snapshots, which is the most: delete some"
        ));
    }
    let what = match facts.ability {
        Ability::Unable => "snapshots",
        Ability::Able if snapshot.memory && !facts.saves_memory => "snapshots with memory",
        Ability::Able | Ability::Unknown => return None,
    };
    (facts.has_disk && !facts.is_claim).then(|| {
        let node = facts.node;
        format!(
            "the programs of node {node} cannot take {what}: upgrade vmlet and vmlet-agent there"
        )
    })
}

fn needs_freeze(snapshot: &VirtualMachineSnapshotSpec, facts: &Facts<'_>) -> bool {
    freezes_claims(snapshot, !facts.claims.is_empty(), facts.power_state)
}

/// Whether the guest is frozen while the storage system takes snapshots of its claims.
#[must_use]
pub fn freezes_claims(
    snapshot: &VirtualMachineSnapshotSpec,
    has_claims: bool,
    power_state: Option<PowerState>,
) -> bool {
    snapshot.quiesce.is_some() && has_claims && power_state == Some(PowerState::PoweredOn)
}

/// The time that the guest has to flush its file systems, in seconds; `None`: it is not asked.
#[must_use]
pub fn quiesce_seconds(snapshot: &VirtualMachineSnapshotSpec) -> Option<u32> {
    snapshot.quiesce.as_ref().map(freeze_seconds)
}

/// The time that a guest has to flush its file systems, in seconds.
#[must_use]
pub fn freeze_seconds(quiesce: &Quiesce) -> u32 {
    const DEFAULT: u32 = 300;
    const LONGEST: u32 = 600;
    let time = quiesce.timeout.as_deref().and_then(power::duration);
    let seconds = time.map_or(DEFAULT, |time| {
        let more = u64::from(time.subsec_nanos() > 0);
        u32::try_from(time.as_secs().saturating_add(more)).unwrap_or(LONGEST)
    });
    seconds.clamp(1, LONGEST)
}

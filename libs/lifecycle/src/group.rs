//! What a group writes into a machine that is its member, and what becomes of it.
//!
//! ```text
//! group: powerState ─► desired state in the machine's own spelling, record, perhaps a time at which it applies
//! user:  another desired state ─► differs from the record ─► the time no longer counts
//! ```
//!
//! Invariant: a group changes no machine that users start and stop by requests, and none that runs once
//! only: its strategy would be lost, or a power-on would have no effect.
//! Failure: [`Refusal`] with a sentence about the machine; nothing is to be written then.

use std::collections::BTreeMap;
use std::fmt;

use crds::names::GROUP_POWER_STATE;
use crds::{PowerState, RunStrategy, VirtualMachineSpec};

use crate::power;
use crate::strategy::{DesiredState, Strategy};

/// The strategy that a record keeps: without it a power-off by the group would make it `Always`.
const KEPT: &str = "RerunOnFailure";

/// What a group gave a member last: the annotation [`GROUP_POWER_STATE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// UID of the group.
    pub group: String,
    /// The change of the group, by its time.
    pub change: String,
    /// The desired state that the group wrote, as `field=value`.
    pub desired: String,
    /// The member had the strategy `RerunOnFailure` before the group powered it off.
    pub restores_rerun: bool,
}

impl Record {
    /// The record in these annotations. A text that is none counts as none.
    #[must_use]
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let text = annotations.get(GROUP_POWER_STATE)?;
        let mut parts = text.split('/').map(str::to_owned);
        let record = Self {
            group: parts.next()?,
            change: parts.next()?,
            desired: parts.next()?,
            restores_rerun: parts.next().is_some(),
        };
        // Anything else was written by another program.
        (record.to_string() == *text).then_some(record)
    }

    /// Whether the member was given this change.
    #[must_use]
    pub fn is_about(&self, group: &str, change: &str) -> bool {
        self.group == group && self.change == change
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.change, self.desired)?;
        if self.restores_rerun {
            write!(f, "/{KEPT}")?;
        }
        Ok(())
    }
}

/// Whether the desired state was changed since a group wrote it, so that the group's time no longer
/// counts.
#[must_use]
pub fn is_changed_directly(
    spec: &VirtualMachineSpec,
    annotations: &BTreeMap<String, String>,
) -> bool {
    Record::read(annotations).is_some_and(|record| !has_desired(spec, &record))
}

fn has_desired(spec: &VirtualMachineSpec, record: &Record) -> bool {
    let desired = DesiredState::from_spec(spec).ok().flatten();
    desired.is_some_and(|desired| desired.to_string() == record.desired)
}

/// The machine stays as it is; the text states why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

/// What a group writes into a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// The desired state; a value in another field replaces the old one.
    pub desired_state: DesiredState,
    /// The desired state to restore when the machine is resumed.
    pub remember: Option<DesiredState>,
    /// Remove the desired state that was remembered.
    pub forget: bool,
    /// The record keeps the strategy `RerunOnFailure`.
    pub restores_rerun: bool,
}

impl MemberChange {
    const fn to(desired_state: DesiredState) -> Self {
        Self {
            desired_state,
            remember: None,
            forget: false,
            restores_rerun: false,
        }
    }
}

/// What brings a machine to the power state of its group, in the spelling that the machine has.
///
/// # Errors
///
/// The machine cannot follow the group.
pub fn member_change(
    spec: &VirtualMachineSpec,
    annotations: &BTreeMap<String, String>,
    to: PowerState,
) -> Result<MemberChange, Refusal> {
    let current = DesiredState::from_spec(spec).map_err(|error| Refusal(error.to_string()))?;
    let current = current.unwrap_or(DesiredState::RunStrategy(RunStrategy::Halted));
    let record = Record::read(annotations).filter(|record| has_desired(spec, record));
    let restores_rerun = record.is_some_and(|record| record.restores_rerun);
    let rerun = DesiredState::RunStrategy(RunStrategy::RerunOnFailure);
    match (current.strategy(), to) {
        (strategy @ (Strategy::Manual | Strategy::Once), _) => Err(refusal(strategy)),
        (Strategy::Halted, PowerState::PoweredOn) if restores_rerun => Ok(MemberChange::to(rerun)),
        (Strategy::Halted, PowerState::PoweredOn) => Ok(MemberChange::to(current.on())),
        // Nothing runs that could be suspended.
        (Strategy::Halted, PowerState::PoweredOff | PowerState::Suspended) => Ok(MemberChange {
            restores_rerun,
            ..MemberChange::to(current)
        }),
        (Strategy::Always | Strategy::RerunOnFailure, PowerState::PoweredOn) => {
            Ok(MemberChange::to(current))
        }
        (strategy @ (Strategy::Always | Strategy::RerunOnFailure), PowerState::PoweredOff) => {
            Ok(MemberChange {
                restores_rerun: strategy == Strategy::RerunOnFailure,
                ..MemberChange::to(current.off())
            })
        }
        (Strategy::Always | Strategy::RerunOnFailure, PowerState::Suspended) => {
            suspended(spec, current)
        }
        (Strategy::Suspended, PowerState::Suspended) => Ok(MemberChange::to(current)),
        (Strategy::Suspended, PowerState::PoweredOn) => {
            let before = before_suspension(annotations)?;
            Ok(MemberChange {
                forget: true,
                ..MemberChange::to(before.unwrap_or_else(|| current.on()))
            })
        }
        (Strategy::Suspended, PowerState::PoweredOff) => {
            let before = before_suspension(annotations)?;
            Ok(MemberChange {
                forget: true,
                restores_rerun: before == Some(rerun),
                ..MemberChange::to(before.unwrap_or(current).off())
            })
        }
    }
}

fn suspended(spec: &VirtualMachineSpec, current: DesiredState) -> Result<MemberChange, Refusal> {
    if let Some(why) = power::unsuspendable(spec) {
        return Err(Refusal(why.to_owned()));
    }
    let is_remembered = !matches!(current, DesiredState::PowerState(_));
    Ok(MemberChange {
        remember: is_remembered.then_some(current),
        ..MemberChange::to(DesiredState::PowerState(PowerState::Suspended))
    })
}

/// The desired state that a suspended machine had, if a machine that has it follows groups.
fn before_suspension(
    annotations: &BTreeMap<String, String>,
) -> Result<Option<DesiredState>, Refusal> {
    let remembered = DesiredState::remembered(annotations);
    match remembered.map(DesiredState::strategy) {
        Some(strategy @ (Strategy::Manual | Strategy::Once)) => Err(refusal(strategy)),
        _ => Ok(remembered),
    }
}

fn refusal(strategy: Strategy) -> Refusal {
    Refusal(format!(
        "a group does not change a machine with runStrategy {strategy:?}: set powerState, running, or \
         runStrategy Always, RerunOnFailure or Halted, or take the machine out of the group"
    ))
}

/// Whether a machine waits for the first change of its group before it starts: the group desires a power
/// state, and has not given it to the machine, which follows the group.
#[must_use]
pub fn waits_for_group(
    spec: &VirtualMachineSpec,
    annotations: &BTreeMap<String, String>,
    group_uid: &str,
    desired: PowerState,
) -> bool {
    let is_given = Record::read(annotations).is_some_and(|record| record.group == group_uid);
    !is_given && member_change(spec, annotations, desired).is_ok()
}

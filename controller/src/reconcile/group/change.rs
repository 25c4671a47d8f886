//! The change of power of a group: when there is a new one, and when each tier is due.
//!
//! ```text
//! powerState, nextForcePowerStateSyncTime, change of the group above ─► change ─► a time for each tier
//!                                     on: forwards, off: backwards; a tier may wait until the one before is ready
//! ```
//!
//! Invariant: pure. A time that was computed never changes; no two changes of a group have the same time.
//! Failure: none; a text that is no time counts as none.

use std::time::Duration;

use crds::names::APPLY_POWER_STATE_TIME;
use crds::{BootTier, GroupPowerChange, PowerState, VirtualMachineGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use lifecycle::group::Record;
use lifecycle::{DesiredState, power};

/// The change that a group is to make, or made last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Due {
    pub(super) change: Option<GroupPowerChange>,
    /// When the next one is due by `nextForcePowerStateSyncTime`.
    pub(super) next: Option<Timestamp>,
}

/// What a tier waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate {
    /// Position of the tier in the boot order.
    pub(super) tier: usize,
    /// Until when at the latest.
    pub(super) until: Option<Timestamp>,
    /// When the tier before is powered on, if that is to come: it may be ready by then already, and no
    /// event follows.
    pub(super) again: Option<Timestamp>,
}

/// Times of tiers, as far as they are known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Schedule {
    pub(super) times: Vec<Time>,
    pub(super) gate: Option<Gate>,
    /// Tiers that no longer wait, although the tier before is not ready.
    pub(super) overdue: Vec<usize>,
}

/// The change that the specification asks for. `above`: UID of the group that it belongs to and, with it,
/// whether that group desires a power state.
pub(super) fn due(group: &VirtualMachineGroup, above: Option<(&str, bool)>, now: Timestamp) -> Due {
    let old = group.status.as_ref().and_then(|s| s.power_change.clone());
    let requested = group.spec.next_force_power_state_sync_time.as_deref();
    let requested = requested.and_then(|text| text.parse::<Timestamp>().ok());
    let next = requested.filter(|at| *at > now);
    let Some(power_state) = group.spec.power_state else {
        return Due {
            change: None,
            next: None,
        };
    };
    let record = Record::read(group.annotations());
    let record = record.filter(|record| above.is_some_and(|(uid, _)| uid == record.group));
    let waits_for_first = above.is_some_and(|(_, desires)| desires) && record.is_none();
    let parent = record.as_ref().map(ToString::to_string);
    let force = group.spec.next_force_power_state_sync_time.clone();
    let force = force.filter(|_| requested.is_some() && next.is_none());
    let is_new = match &old {
        None => true,
        Some(old) => {
            old.power_state != power_state
                || force.is_some() && old.force_sync_time != force
                || parent.is_some() && old.parent != parent
        }
    };
    if !is_new || waits_for_first {
        return Due { change: old, next };
    }
    let last = old.as_ref();
    let is_of_parent = record.is_some_and(|record| {
        let is_other = last.and_then(|old| old.parent.as_ref()) != parent.as_ref();
        is_other && record.desired == DesiredState::PowerState(power_state).to_string()
    });
    let given = group.annotations().get(APPLY_POWER_STATE_TIME);
    let given = given.and_then(|text| text.parse().ok());
    let time = last.map_or(now, |old| {
        now.max(later(old.time.0, Duration::from_secs(1)))
    });
    Due {
        change: Some(GroupPowerChange {
            power_state,
            time: seconds(time),
            force_sync_time: force.or_else(|| last.and_then(|old| old.force_sync_time.clone())),
            parent,
            start_time: seconds(given.filter(|_| is_of_parent).unwrap_or(now)),
            tier_times: Vec::new(),
        }),
        next,
    }
}

/// The change as a record names it.
pub(super) fn name(change: &GroupPowerChange) -> String {
    change.time.0.to_string()
}

/// Position, in the order in which tiers change, of a tier of the boot order.
pub(super) const fn position(power_state: PowerState, tier: usize, tiers: usize) -> usize {
    match power_state {
        PowerState::PoweredOff => tiers.saturating_sub(tier + 1),
        PowerState::PoweredOn | PowerState::Suspended => tier,
    }
}

/// The times of the tiers: those on record, and those that follow. `is_ready`: whether a tier of the boot order
/// has the power state and is ready.
pub(super) fn schedule(
    change: &GroupPowerChange,
    tiers: &[BootTier],
    is_ready: impl Fn(usize) -> bool,
    now: Timestamp,
) -> Schedule {
    let mut made = Schedule {
        times: change.tier_times.clone(),
        ..Schedule::default()
    };
    for at in made.times.len()..tiers.len() {
        let tier = position(change.power_state, at, tiers.len());
        let before = made.times.last().map_or(change.start_time.0, |time| time.0);
        let waits = change.power_state == PowerState::PoweredOn && at > 0;
        let time = if waits && tiers[tier].wait_for_ready {
            let timeout = tiers[tier].ready_timeout.as_deref().and_then(rounded);
            let until = timeout.map(|timeout| later(before, timeout));
            if now < before || !is_ready(tier - 1) {
                if until.is_none_or(|until| now < until) {
                    let again = Some(before).filter(|before| now < *before);
                    made.gate = Some(Gate { tier, until, again });
                    return made;
                }
                made.overdue.push(tier);
            }
            now
        } else {
            later(before, delay(change.power_state, &tiers[tier]))
        };
        made.times.push(seconds(time));
    }
    made
}

fn delay(power_state: PowerState, tier: &BootTier) -> Duration {
    let text = match power_state {
        PowerState::PoweredOn => tier.power_on_delay.as_deref(),
        PowerState::PoweredOff => tier.power_off_delay.as_deref(),
        PowerState::Suspended => None,
    };
    text.and_then(rounded).unwrap_or_default()
}

/// A part of a second counts as a whole one: times of objects have seconds.
fn rounded(text: &str) -> Option<Duration> {
    let length = power::duration(text)?;
    let more = u64::from(length.subsec_nanos() > 0);
    Some(Duration::from_secs(length.as_secs() + more))
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::ZERO);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A time as objects have it.
pub(super) fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

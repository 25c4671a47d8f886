//! The conditions that follow from the instance and from the last pass.
//!
//! Invariant: a machine without an instance keeps no condition of a past one.
//! Failure: none.

use crds::PowerState;
use crds::conditions::{FAILURE, PAUSED, READY, RESTART_REQUIRED, Status, remove, set};
use crds::names::PAUSED_IO_ERROR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::decision::Failure;
use crate::phase::Phase;
use crate::strategy::Strategy;
use crate::{Machine, revision, start};

/// Reason of a machine whose pod is on its way.
const NOT_RUNNING: &str = "GuestNotRunning";

/// What is known of the guest beyond what its pod reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guest {
    /// Nothing that counts: the pod's readiness decides.
    #[default]
    Pod,
    /// The answer of the machine's own readiness probe, where it has one.
    Probed(bool),
    /// That probe fails, and the text says why.
    Unreachable(&'static str),
    /// It has shown no sign of life since its start; the text states which signs are awaited.
    Silent(&'static str),
}

/// Sets `Ready`, `Paused`, `RestartRequired` and `Failure`. Returns whether anything changed.
pub fn update(
    conditions: &mut Vec<Condition>,
    m: &Machine<'_>,
    failure: Option<&Failure>,
    guest: Guest,
    now: &Time,
) -> bool {
    let generation = Some(m.meta.generation);
    let (is_ready, reason, text) = ready(m, guest);
    let status = if is_ready {
        Status::True
    } else {
        Status::False
    };
    // What keeps the pod is what its owner has to mend.
    let obstacle = m.instance.map(|i| i.message.as_str());
    let text = match obstacle.filter(|o| reason == NOT_RUNNING && !o.is_empty()) {
        Some(obstacle) => format!("{text}: {obstacle}"),
        None => text.to_owned(),
    };
    let mut changed = set(conditions, READY, status, reason, &text, generation, now);

    let paused = m
        .instance
        .filter(|i| i.is_live() && i.phase == Phase::Running);
    changed |= match paused.and_then(|i| i.paused.as_deref()) {
        Some(reason) => {
            let text = standstill(reason, paused.map_or("", |i| i.pause_message.as_str()));
            set(
                conditions,
                PAUSED,
                Status::True,
                reason,
                &text,
                generation,
                now,
            )
        }
        None => remove(conditions, PAUSED),
    };

    changed |= if revision::is_restart_required(m) {
        let text = "the running instance was built from an older specification; a restart applies \
            the new one";
        let kind = RESTART_REQUIRED;
        set(
            conditions,
            kind,
            Status::True,
            "SpecificationChanged",
            text,
            generation,
            now,
        )
    } else {
        remove(conditions, RESTART_REQUIRED)
    };

    let once = failed_once(m);
    changed
        | match failure.or(once.as_ref()) {
            Some(f) => set(
                conditions,
                FAILURE,
                Status::True,
                f.reason,
                &f.message,
                generation,
                now,
            ),
            None => remove(conditions, FAILURE),
        }
}

fn ready(m: &Machine<'_>, guest: Guest) -> (bool, &'static str, &'static str) {
    let Some(instance) = m.instance else {
        return (false, "NoPod", without_instance(m));
    };
    if instance.deleting || instance.phase.is_final() {
        return (
            false,
            "PodTerminating",
            "the instance has ended or is about to",
        );
    }
    if instance.phase != Phase::Running {
        return (false, NOT_RUNNING, "the guest does not run yet");
    }
    if instance.paused.is_some() {
        return (false, "Paused", "the guest is paused");
    }
    match (guest, instance.ready) {
        (Guest::Probed(true), Some(true) | None) => (true, "ProbeSucceeded", ""),
        (Guest::Pod, Some(true)) => (true, "PodReady", ""),
        (Guest::Silent(text), Some(true)) => (false, "NoSignOfLife", text),
        (Guest::Probed(false), _) => (false, "NotReady", "the readiness probe fails"),
        (Guest::Unreachable(text), _) => (false, "NotReady", text),
        (_, Some(false)) => (false, "NotReady", "the pod is not ready"),
        (_, None) => (false, "PodConditionMissing", "the pod has no readiness yet"),
    }
}

/// What the guest waits for.
fn standstill(reason: &str, message: &str) -> String {
    match (reason, message) {
        (PAUSED_IO_ERROR, "") => {
            "the guest stands still because a disk fails: it continues once there is space".into()
        }
        (PAUSED_IO_ERROR, message) => {
            format!("the guest stands still ({message}): it continues once there is space")
        }
        (_, "") => "the guest stands still".into(),
        (_, message) => format!("the guest stands still: {message}"),
    }
}

/// Why there is no instance, as far as the specification shows it.
fn without_instance(m: &Machine<'_>) -> &'static str {
    let is_suspended = m.status.power_state == Some(PowerState::Suspended);
    match start::desired_power_state(m.spec, m.status, None) {
        Ok(PowerState::PoweredOff) if !is_suspended => "the machine is powered off, as specified",
        Ok(PowerState::Suspended) if is_suspended => "the machine is suspended, as specified",
        _ => "there is no instance",
    }
}

/// A machine that runs once and could not start stays off; its user has to be notified.
fn failed_once(m: &Machine<'_>) -> Option<Failure> {
    let instance = m.instance.filter(|i| i.phase.is_final() && !i.ever_ran())?;
    if Strategy::from_spec(m.spec) != Ok(Strategy::Once) {
        return None;
    }
    let end = instance
        .end
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    Some(Failure {
        reason: "FailedStart",
        message: format!("the only run did not start ({end}): {}", instance.message),
    })
}

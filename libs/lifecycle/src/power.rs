//! Power operations: their modes, their obstacles, and restarts at a time.
//!
//! Invariant: a restart time is used once; a time in the future never acts.
//! Failure: [`PowerError`] for times that cannot be read.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::VirtualMachineSpec;
use crds::names::{APPLY_POWER_STATE_TIME, POWER_ON_CHECK_PREFIX, SHARES};
use crds::vm::PowerOpMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::decision::Ending;
use crate::instance::Instance;
use crate::phase::Phase;

/// `spec.powerOffTimeout` when it is empty.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time that a guest may have, in seconds: 168 hours, as the rule of the CRD specifies.
const LONGEST: u32 = 7 * 24 * 3600;

/// A text that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PowerError {
    /// Not RFC 3339.
    #[error("{field}: {text:?} is no time: RFC 3339 is needed, such as 2026-01-31T12:00:00Z")]
    Time {
        /// Where it is.
        field: &'static str,
        /// What is there.
        text: String,
    },
}

/// The seconds that a guest has for powering off or rebooting: a part of a second counts as a whole
/// one, at least one, at most a week. The pattern of the CRD lets no text pass that is not a
/// duration; one counts as none.
#[must_use]
pub fn power_off_seconds(spec: &VirtualMachineSpec) -> u32 {
    let text = spec.power_off_timeout.as_deref();
    let timeout = text.and_then(duration).unwrap_or(POWER_OFF_TIMEOUT);
    let more = u64::from(timeout.subsec_nanos() > 0);
    let seconds = u32::try_from(timeout.as_secs().saturating_add(more)).unwrap_or(LONGEST);
    seconds.clamp(1, LONGEST)
}

/// A duration as Go prints it: numbers, each with a unit.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |n| digits + n);
        let seconds = match &rest[digits..unit_end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

/// How an instance is ended. Without a running guest there is nothing that could receive a request.
pub(crate) fn ending(spec: &VirtualMachineSpec, has_guest: bool) -> Ending {
    let seconds = power_off_seconds(spec);
    match spec.power_off_mode.unwrap_or_default() {
        PowerOpMode::Hard => Ending::Delete(0),
        PowerOpMode::Soft if has_guest => Ending::Guest(seconds),
        PowerOpMode::Soft | PowerOpMode::TrySoft => Ending::Delete(seconds),
    }
}

/// Whether saved memory may be dropped when the machine is to be off.
pub(crate) fn discards_saved(spec: &VirtualMachineSpec) -> bool {
    spec.power_off_mode.unwrap_or_default() != PowerOpMode::Soft
}

/// Why the memory of a machine cannot be saved, if its specification forbids it: words that continue
/// a sentence about the machine.
#[must_use]
pub fn unsuspendable(spec: &VirtualMachineSpec) -> Option<&'static str> {
    let claims = spec.volumes.iter();
    let mut claims = claims.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let has_root_claim = spec.storage_class.is_some() || claims.clone().any(|claim| claim.root);
    if has_root_claim {
        return Some(
            "its root disk is a claim, and memory can be saved only beside disks of nodes: stop \
             it instead",
        );
    }
    let template = spec.template.as_ref().map(|t| &t.metadata.annotations);
    let has_shares = template.and_then(|all| all.get(SHARES)).map(String::as_str) != Some("off");
    (has_shares && claims.any(|claim| claim.mount_path.is_some())).then_some(
        "it mounts directories of claims (mountPath), whose state cannot be saved: stop it instead",
    )
}

/// What a group says about when a power change reaches this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Nothing.
    None,
    /// Not yet.
    For(Duration),
    /// The time has come: take the annotation away and continue.
    Over,
}

/// Reads [`APPLY_POWER_STATE_TIME`].
pub fn delay(annotations: &BTreeMap<String, String>, now: &Time) -> Result<Delay, PowerError> {
    let Some(text) = annotations.get(APPLY_POWER_STATE_TIME) else {
        return Ok(Delay::None);
    };
    let at = time(
        "the annotation vmlet.dev.protected/apply-power-state-time",
        text,
    )?;
    let left = Duration::try_from(at.duration_since(now.0)).unwrap_or_default();
    Ok(if left.is_zero() {
        Delay::Over
    } else {
        Delay::For(left)
    })
}

/// The first annotation that holds a power-on back, if there is one.
#[must_use]
pub fn power_on_check(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let mut keys = annotations.keys().map(String::as_str);
    keys.find(|key| key.starts_with(POWER_ON_CHECK_PREFIX))
}

/// Whether a machine is to be restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// No.
    None,
    /// Later, if it is on then.
    In(Duration),
    /// Now. The time is to be recorded as `status.lastRestartTime`: name the task after it, make
    /// that first and record the time then, since both may be repeated.
    Due(Time),
}

/// Whether the time that the owner named has come.
pub fn restart(
    spec: &VirtualMachineSpec,
    last: Option<&Time>,
    instance: Option<&Instance>,
    now: &Time,
) -> Result<Restart, PowerError> {
    let Some(text) = spec.next_restart_time.as_deref().filter(|t| !t.is_empty()) else {
        return Ok(Restart::None);
    };
    let at = time("nextRestartTime", text)?;
    let is_new = last.is_none_or(|last| at > last.0);
    let is_on = instance.is_some_and(|i| i.phase == Phase::Running && i.is_live());
    if !is_on || !is_new {
        return Ok(Restart::None);
    }
    let left = Duration::try_from(at.duration_since(now.0)).unwrap_or_default();
    Ok(if left.is_zero() {
        Restart::Due(Time(at))
    } else {
        Restart::In(left)
    })
}

fn time(field: &'static str, text: &str) -> Result<Timestamp, PowerError> {
    text.parse().map_err(|_| PowerError::Time {
        field,
        text: text.to_owned(),
    })
}

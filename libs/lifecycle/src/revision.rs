//! Whether an instance runs with the current specification of its machine.
//!
//! Invariant: a revision depends on the fields that take effect at the next start, as
//! [`crds::vm::fields`] says, and not on the order of fields. An instance is compared by the rules
//! that its revision was made by, so that an upgrade of the controller requires no restart.
//! Failure: none; an instance of a newer controller counts as current.

use crds::VirtualMachineSpec;
use crds::vm::fields::{Actor, Effect, FIELDS, Field};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::Machine;

/// The rules by which revisions are made. A change of what is in one (a new field with a default, a
/// field that takes effect at another time) is a new version, whose revisions are `VERSION-DIGITS`;
/// the old ones stay in [`under`]. `tests/fixtures/revisions.tsv` shows such a
/// change.
const VERSION: u32 = 1;

/// Sixteen hex digits for everything in a specification that an instance is built from.
#[must_use]
pub fn for_spec(spec: &VirtualMachineSpec) -> String {
    under(VERSION, spec).unwrap_or_default()
}

/// Whether an instance with this revision is built from everything in the specification.
#[must_use]
pub fn is_current(revision: &str, spec: &VirtualMachineSpec) -> bool {
    let version = match revision.split_once('-') {
        Some((version, _)) => version.parse().ok(),
        // The first version has no number.
        None => Some(1),
    };
    let same = version.and_then(|version| under(version, spec));
    same.is_none_or(|same| same == revision)
}

/// The revision by the rules of that version; `None`: they are not known here.
fn under(version: u32, spec: &VirtualMachineSpec) -> Option<String> {
    match version {
        1 => Some(first(spec)),
        _ => None,
    }
}

fn first(spec: &VirtualMachineSpec) -> String {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    let others = FIELDS.iter().filter(|field| !counts(field));
    others.for_each(|field| field.remove_from(&mut value));
    // kubelet has a part in a TCP probe only.
    let probe = spec.readiness_probe.as_ref();
    if probe.is_some_and(|probe| probe.tcp_socket.is_none())
        && let Value::Object(fields) = &mut value
    {
        fields.remove("readinessProbe");
    }
    let digest = Sha256::digest(sorted(value).to_string().as_bytes());
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Whether a change of the field reaches a running instance by a restart, and not before.
fn counts(field: &Field) -> bool {
    field.effect == Effect::NextStart && field.actor != Actor::NoneYet
}

/// Whether JSON objects keep the order of insertion depends on features that other crates choose.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// Whether the instance has to be replaced before everything in the specification is true of it.
#[must_use]
pub fn is_restart_required(m: &Machine<'_>) -> bool {
    let instance = m.instance.filter(|i| i.is_live());
    let built_from = instance.and_then(|i| i.revision.as_deref());
    built_from.is_some_and(|revision| !is_current(revision, m.spec))
}

/// `status.observedGeneration` and `status.desiredGeneration`, always written together. A
/// generation that changed nothing an instance is built from counts as observed.
pub(crate) fn generations(m: &Machine<'_>) -> (Option<i64>, Option<i64>) {
    let current = Some(m.meta.generation);
    let is_current = |revision: &str| is_current(revision, m.spec);
    let observed = match m.instance {
        None => None,
        Some(i) if i.revision.as_deref().is_some_and(is_current) => current,
        Some(i) => i.generation,
    };
    (observed, current)
}

//! The two UUIDs of a machine.
//!
//! Invariant: they follow from the machine's UID unless its owner chose them, or it takes over the disk of an earlier
//! machine, whose guest knows that one's. They are recorded
//! before the first pod, follow the specification as long as nothing is made of it, and never change
//! after that.
//! Failure: none.

use uuid::Uuid;

use super::adopt;
use crate::reconcile::vm::pass::Pass;

/// Namespace of UUIDs that are derived from UIDs.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f0f_2d8e_5a1b_4c77_9d3e_766d_6c65_7401);

/// Puts the UUIDs recorded.
pub(crate) fn choose(pass: &mut Pass<'_>) {
    let uid = pass.uid();
    let derived = |what: &str| {
        let text = format!("{what}/{uid}");
        Uuid::new_v5(&NAMESPACE, text.as_bytes()).to_string()
    };
    let is_open = is_open(pass);
    let earlier = adopt::record(pass);
    let spec = &pass.vm.spec;
    let bios = spec.bios_uuid.clone();
    let bios = bios.or_else(|| earlier.as_ref().map(|record| record.bios_uuid.clone()));
    let bios = bios.unwrap_or_else(|| derived("bios"));
    let instance = spec.instance_uuid.clone();
    let instance = instance.or_else(|| earlier.map(|record| record.instance_uuid));
    let instance = instance.unwrap_or_else(|| derived("instance"));
    let status = pass.status();
    if is_open || status.bios_uuid.is_none() {
        status.bios_uuid = Some(bios);
    }
    if is_open || status.instance_uuid.is_none() {
        status.instance_uuid = Some(instance);
    }
}

/// No node makes the root disk, no disk is on record, and no pod is the machine: until then the API
/// server lets the owner change his choice.
fn is_open(pass: &Pass<'_>) -> bool {
    pass.node_name().is_none() && !pass.is_created() && pass.instance().is_none()
}

/// BIOS and instance UUID recorded.
pub(crate) fn recorded(pass: &Pass<'_>) -> (String, String) {
    let status = pass.seen();
    let bios = status.and_then(|s| s.bios_uuid.clone());
    let instance = status.and_then(|s| s.instance_uuid.clone());
    (bios.unwrap_or_default(), instance.unwrap_or_default())
}

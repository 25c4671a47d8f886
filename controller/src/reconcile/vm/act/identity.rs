//! The two UUIDs of a machine.
//!
//! Invariant: they follow from the machine's UID unless its owner chose them, are recorded before
//! the first pod, and never change after that.
//! Failure: none.

use uuid::Uuid;

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
    let (bios, instance) = (derived("bios"), derived("instance"));
    let spec = &pass.vm.spec;
    let chosen = (spec.bios_uuid.clone(), spec.instance_uuid.clone());
    let status = pass.status();
    if status.bios_uuid.is_none() {
        status.bios_uuid = Some(chosen.0.unwrap_or(bios));
    }
    if status.instance_uuid.is_none() {
        status.instance_uuid = Some(chosen.1.unwrap_or(instance));
    }
}

/// BIOS and instance UUID recorded.
pub(crate) fn of(pass: &Pass<'_>) -> (String, String) {
    let status = pass.seen();
    let bios = status.and_then(|s| s.bios_uuid.clone());
    let instance = status.and_then(|s| s.instance_uuid.clone());
    (bios.unwrap_or_default(), instance.unwrap_or_default())
}

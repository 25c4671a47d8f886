//! What a snapshot records of its machine, and what a machine that reverts gets back.
//!
//! Invariant: a machine that reverts gets nothing that only privileged users may give it, and keeps what
//! cannot change once it has a disk.
//! Failure: a manifest that cannot be read is refused in words.

use std::collections::BTreeMap;

use crds::names::{FAST_DEPLOY, SAME_VM_CLASS_RESIZE};
use crds::vm::Bootstrap;
use crds::{GROUP, PowerState, RunStrategy, VirtualMachine, VirtualMachineSpec};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

/// What a snapshot records of its machine.
#[must_use]
pub fn record(vm: &VirtualMachine) -> Value {
    let spec = VirtualMachineSpec {
        current_snapshot_name: None,
        ..vm.spec.clone()
    };
    json!({
        "spec": spec,
        "labels": of_the_owner(vm.labels()),
        "annotations": of_the_owner(vm.annotations()),
    })
}

/// Specification, labels and annotations of a machine that has reverted.
#[derive(Debug, Clone, PartialEq)]
pub struct Restored {
    /// The specification.
    pub spec: VirtualMachineSpec,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What the machine is after a revert to the snapshot of that name.
///
/// # Errors
///
/// The manifest is not one of a machine that can be restored.
pub fn restored(
    vm: &VirtualMachine,
    manifest: &Map<String, Value>,
    name: &str,
) -> Result<Restored, String> {
    let part = |part: &str| manifest.get(part).cloned().unwrap_or_else(|| json!({}));
    let old: VirtualMachineSpec =
        serde_json::from_value(part("spec")).map_err(|error| error.to_string())?;
    let map = |name: &str| -> Result<BTreeMap<String, String>, String> {
        serde_json::from_value(part(name)).map_err(|error| format!("{name}: {error}"))
    };
    if old.power_state == Some(PowerState::Suspended) {
        return Err("the machine was suspended".to_owned());
    }
    Ok(Restored {
        spec: kept(&vm.spec, old, name),
        labels: merged(vm.labels(), &map("labels")?),
        annotations: merged(vm.annotations(), &map("annotations")?),
    })
}

/// Whether a machine that reverts needs a request to be in the power state of the snapshot.
#[must_use]
pub fn needs_start(spec: &VirtualMachineSpec, snapshot: Option<PowerState>) -> bool {
    spec.run_strategy == Some(RunStrategy::Manual) && snapshot == Some(PowerState::PoweredOn)
}

/// The old specification with the fields of the present one that cannot change, or that are about the
/// present only.
fn kept(now: &VirtualMachineSpec, old: VirtualMachineSpec, name: &str) -> VirtualMachineSpec {
    let now = now.clone();
    let reverted = now.current_snapshot_name;
    let has_its_provider = |old: &Bootstrap, now: &Bootstrap| {
        (now.cloud_init.is_none() || old.cloud_init.is_some())
            && (now.sysprep.is_none() || old.sysprep.is_some())
    };
    let bootstrap = match (old.bootstrap, now.bootstrap) {
        (Some(old), Some(now)) if !has_its_provider(&old, &now) => Some(now),
        (None, Some(now)) => Some(now),
        (old, _) => old,
    };
    let claims = old.volumes.iter();
    let claims = claims.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let claims: Vec<_> = claims.map(|claim| claim.claim_name.clone()).collect();
    let mut templates = now.data_volume_templates;
    templates.retain(|template| claims.contains(&template.name));
    VirtualMachineSpec {
        image: now.image,
        image_name: now.image_name,
        source: now.source,
        storage_class: now.storage_class,
        affinity: now.affinity,
        bios_uuid: now.bios_uuid,
        instance_uuid: now.instance_uuid,
        boot_disk_capacity: now.boot_disk_capacity,
        min_machine_type: now.min_machine_type,
        next_restart_time: now.next_restart_time,
        current_snapshot_name: reverted.filter(|reverted| reverted != name),
        data_volume_templates: templates,
        bootstrap,
        ..old
    }
}

/// What the owner of a machine may set, and a revert restores.
fn of_the_owner(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = all.iter().filter(|(key, _)| is_of_the_owner(key));
    own.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Keys that are not restored stay as they are, the others become what they were.
fn merged(
    now: &BTreeMap<String, String>,
    old: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all = now.clone();
    all.retain(|key, _| !is_of_the_owner(key));
    all.extend(of_the_owner(old));
    all
}

/// Keys of our own domains are records of the controller, checks, or requests about the present, but two.
fn is_of_the_owner(key: &str) -> bool {
    const SETTINGS: [&str; 2] = [FAST_DEPLOY, SAME_VM_CLASS_RESIZE];
    /// What kubectl compares the present with.
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_ours = domain == GROUP || domain.ends_with(&format!(".{GROUP}"));
    let is_protected = domain.ends_with(".protected") || key.ends_with(".protected");
    !is_protected && (!is_ours || SETTINGS.contains(&key)) && key != LAST_APPLIED
}

//! The claims behind a machine's disks.
//!
//! Invariant: reads the store; a claim's event wakes the machines that name it.
//! Failure: a claim that does not exist, or is not bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::vm::VolumeStatus;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lifecycle::Volumes;

use super::{Pass, bytes};
use crate::context::Key;

/// A claim as a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) claim: String,
    pub(crate) is_read_only: bool,
    pub(crate) is_root: bool,
    /// A block device, as far as the claim is there.
    pub(crate) is_block: bool,
    /// A file system instead of a block device.
    pub(crate) is_filesystem: bool,
    /// Where the guest mounts the file system; `None`: the disk is a file in it.
    pub(crate) mount_path: Option<String>,
    /// Size in bytes of a disk in the file system.
    pub(crate) file_bytes: Option<i128>,
}

/// Part of a file system, in thousandths, that its own tables take; what KubeVirt and CDI assume.
const OVERHEAD: i128 = 55;
/// Sizes of disks in file systems are multiples of this.
const MIB: i128 = 1 << 20;

/// The largest disk that a file system of this claim holds, in bytes.
fn file_bytes(claim: &PersistentVolumeClaim) -> Option<i128> {
    let capacity = claim.status.as_ref().and_then(|s| s.capacity.as_ref());
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = requests.and_then(|r| r.requests.as_ref());
    let storage = |list: &BTreeMap<String, Quantity>| list.get("storage").and_then(bytes);
    let all = capacity
        .and_then(storage)
        .or_else(|| requests.and_then(storage))?;
    let usable = all / 1000 * (1000 - OVERHEAD) / MIB * MIB;
    (usable > 0).then_some(usable)
}

pub(super) fn claim(pass: &Pass<'_>, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
    let key = Key::new(&pass.key.namespace, name);
    pass.ctx.stores.claims.get(&key.reference())
}

/// The disks, in the order of the specification.
pub(super) fn disks(pass: &Pass<'_>) -> Vec<Disk> {
    let named = pass.vm.spec.volumes.iter();
    let named = named.filter_map(|v| Some((v, v.persistent_volume_claim.as_ref()?)));
    let disk = |(volume, source): (&crds::vm::Volume, &crds::vm::VolumeClaim)| {
        let found = claim(pass, &source.claim_name);
        let mode = found
            .as_ref()
            .and_then(|c| c.spec.as_ref()?.volume_mode.clone());
        let mode = mode.as_deref();
        Disk {
            name: volume.name.clone(),
            claim: source.claim_name.clone(),
            is_read_only: source.read_only,
            is_root: source.root,
            is_block: mode == Some("Block"),
            is_filesystem: mode.is_some_and(|m| m != "Block"),
            mount_path: source.mount_path.clone(),
            file_bytes: found.as_deref().and_then(file_bytes),
        }
    };
    named.map(disk).collect()
}

/// The state of the claims; written to the status, too.
pub(super) fn check(pass: &mut Pass<'_>) -> Volumes {
    let mut worst = Volumes::Ready;
    let mut all = Vec::new();
    for volume in pass.vm.spec.volumes.clone() {
        let Some(source) = &volume.persistent_volume_claim else {
            continue;
        };
        let found = claim(pass, &source.claim_name);
        let status = found.as_ref().and_then(|c| c.status.clone());
        let status = status.unwrap_or_default();
        let is_bound = status.phase.as_deref() == Some("Bound");
        let error = match &found {
            None => {
                worst = Volumes::ClaimNotFound;
                Some(format!("claim {} does not exist", source.claim_name))
            }
            Some(claim) if !is_bound => {
                if worst == Volumes::Ready && !waits_for_pod(pass, claim) {
                    worst = Volumes::Unbound;
                }
                Some(format!("claim {} is not bound", source.claim_name))
            }
            Some(_) => None,
        };
        all.push(VolumeStatus {
            name: volume.name.clone(),
            attached: is_bound,
            error,
            capacity: status.capacity.and_then(|c| c.get("storage").cloned()),
        });
    }
    if pass.seen().is_some() || !all.is_empty() {
        pass.status().volumes = all;
    }
    worst
}

/// Whether the claim is bound only once a pod uses it: a pod that waited for that would never be
/// created.
fn waits_for_pod(pass: &Pass<'_>, claim: &PersistentVolumeClaim) -> bool {
    let class = claim
        .spec
        .as_ref()
        .and_then(|s| s.storage_class_name.as_deref());
    let Some(class) = class.filter(|c| !c.is_empty()) else {
        return false;
    };
    let found = pass.ctx.stores.storage_class(class);
    found.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

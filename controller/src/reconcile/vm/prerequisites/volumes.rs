//! The claims behind a machine's disks.
//!
//! Invariant: reads the store; a claim's event wakes the machines that name it.
//! Failure: a claim that does not exist, or is not bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::names;
use crds::vm::{VolumeClaim, VolumeStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
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
    /// UID of a claim that a revert made.
    pub(crate) reverted: Option<String>,
}

/// Part of a file system, in thousandths, that its own tables take; what KubeVirt and CDI assume.
const OVERHEAD: i128 = 55;
/// Name of the volume of a root disk in a storage class, and of the claim that a revert made in its place.
pub(crate) const ROOT: &str = "vmlet-root";
/// Kind of the source of claims that a revert makes.
pub(crate) const SNAPSHOT: &str = "VolumeSnapshot";
/// Sizes of disks in file systems are multiples of this.
const MIB: i128 = 1 << 20;

/// The largest disk that this claim holds, in bytes.
pub(crate) fn disk_bytes(claim: &PersistentVolumeClaim) -> Option<i128> {
    match mode(claim) {
        Some("Block") => capacity(claim),
        _ => file_bytes(claim),
    }
}

/// What the volume of this claim has, or is to have, in bytes.
pub(crate) fn capacity(claim: &PersistentVolumeClaim) -> Option<i128> {
    let there = claim.status.as_ref().and_then(|s| s.capacity.as_ref());
    there.and_then(storage).or_else(|| request(claim))
}

pub(super) fn mode(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_mode.as_deref()
}

/// The largest disk that a file system of this claim holds, in bytes.
fn file_bytes(claim: &PersistentVolumeClaim) -> Option<i128> {
    let all = capacity(claim)?;
    let usable = all / 1000 * (1000 - OVERHEAD) / MIB * MIB;
    (usable > 0).then_some(usable)
}

/// The smallest claim, in whole MiB, whose file system holds such a disk, in bytes.
pub(super) fn claim_for_file(disk: i128) -> Option<i128> {
    let whole = disk.checked_add(MIB)?;
    let all = whole.checked_mul(1000)? / (1000 - OVERHEAD);
    Some((all / MIB + 1) * MIB)
}

/// What the claim requests, in bytes.
pub(super) fn request(claim: &PersistentVolumeClaim) -> Option<i128> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref().and_then(storage)
}

fn storage(list: &BTreeMap<String, Quantity>) -> Option<i128> {
    list.get("storage").and_then(bytes)
}

pub(super) fn claim(pass: &Pass<'_>, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
    let key = Key::new(&pass.key.namespace, name);
    pass.ctx.stores.claims.get(&key.reference())
}

/// The volumes of the specification, and that of a root disk in a storage class before them.
fn all(pass: &Pass<'_>) -> Vec<(String, VolumeClaim)> {
    let own = pass.own_root_claim().map(|claim_name| {
        let claim = VolumeClaim {
            claim_name,
            root: true,
            ..VolumeClaim::default()
        };
        (ROOT.to_owned(), claim)
    });
    let named = pass.vm.spec.volumes.iter();
    let named = named.filter_map(|v| Some((v.name.clone(), v.persistent_volume_claim.clone()?)));
    own.into_iter().chain(named).collect()
}

/// The disks, in the order of the specification.
pub(crate) fn disks(pass: &Pass<'_>) -> Vec<Disk> {
    let disk = |(name, source): (String, VolumeClaim)| {
        let found = claim(pass, &source.claim_name);
        let mode = found.as_deref().and_then(mode);
        Disk {
            name,
            is_read_only: source.read_only,
            is_root: source.root,
            is_block: mode == Some("Block"),
            is_filesystem: mode.is_some_and(|m| m != "Block"),
            mount_path: source.mount_path,
            file_bytes: found.as_deref().and_then(file_bytes),
            reverted: found.as_deref().and_then(|claim| reverted(pass, claim)),
            claim: source.claim_name,
        }
    };
    all(pass).into_iter().map(disk).collect()
}

/// UID of the claim, if it was made for the machine of a snapshot.
fn reverted(pass: &Pass<'_>, claim: &PersistentVolumeClaim) -> Option<String> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    let is_ours = claim.labels().get(names::VM_UID_LABEL) == Some(&pass.uid());
    claim.uid().filter(|_| is_ours && source.kind == SNAPSHOT)
}

/// The state of the claims; written to the status, too.
pub(super) fn check(pass: &mut Pass<'_>) -> Volumes {
    let mut worst = Volumes::Ready;
    let mut statuses = Vec::new();
    for (name, source) in all(pass) {
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
        statuses.push(VolumeStatus {
            name,
            attached: is_bound,
            error,
            capacity: status.capacity.and_then(|c| c.get("storage").cloned()),
        });
    }
    if pass.seen().is_some() || !statuses.is_empty() {
        pass.status().volumes = statuses;
    }
    worst
}

/// The claims of the machine that do not exist.
pub(super) fn missing(pass: &Pass<'_>) -> Vec<String> {
    let claims = all(pass).into_iter().map(|(_, source)| source.claim_name);
    claims.filter(|name| claim(pass, name).is_none()).collect()
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

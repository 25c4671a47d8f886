//! The claim of a root disk in a storage class.
//!
//! Invariant: the claim is made once, owned by the machine, and goes with it; a claim of that name
//! that is not the machine's is never used. Its request only grows, where the class expands volumes.
//! Failure: a size that is not known yet, or a claim of another owner.

use crds::names;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Volumes;
use serde_json::json;

use super::volumes::{ROOT, claim, claim_for_file, request};
use super::{Missing, Pass, quantity};
use crate::flow::Outcome;
use crate::reconcile::answers::is_conflict;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::root_disk;

/// Annotation of a storage class: `Block` for root disks on block devices instead of files.
const VOLUME_MODE: &str = "vmlet.dev/volume-mode";
const BLOCK: &str = "Block";
const FILESYSTEM: &str = "Filesystem";
/// What the node's marker takes before the image on a block device.
const MARKER: i128 = 1 << 20;

/// Whether the claim can be had, before anything is made.
pub(super) fn check(pass: &Pass<'_>, class: &StorageClass) -> Result<(), Missing> {
    let Some(name) = pass.own_root_claim() else {
        return Ok(());
    };
    if pass
        .vm
        .spec
        .volumes
        .iter()
        .any(|volume| volume.name == ROOT)
    {
        let message =
            format!("the volume {ROOT} is that of the storage class: choose another name");
        return Err(Missing::new("Invalid", message));
    }
    if let Some(other) = class.annotations().get(VOLUME_MODE)
        && ![BLOCK, FILESYSTEM].contains(&other.as_str())
    {
        let class = class.name_any();
        let message = format!(
            "storage class {class}: annotation {VOLUME_MODE} is {other:?}, must be {BLOCK} or {FILESYSTEM}"
        );
        return Err(Missing::new("Invalid", message));
    }
    if let Some(found) = claim(pass, &name) {
        return match is_own(pass, &found) {
            true => Ok(()),
            false => {
                let message = format!(
                    "claim {name} exists and was not made for this machine: rename the machine, or \
                     name the claim in a volume with root: true"
                );
                Err(Missing::new("NotOwned", message))
            }
        };
    }
    match bytes(pass, class) {
        Some(_) => Ok(()),
        None => Err(Missing::new(
            "NotReady",
            "the size of the root disk is not known before a node has read the image: wait, or set \
             bootDiskCapacity",
        )),
    }
}

/// Makes the claim, or lets it grow.
pub(super) async fn make(pass: &mut Pass<'_>) -> Outcome<Volumes> {
    let class = pass.vm.spec.storage_class.clone().unwrap_or_default();
    let (Some(name), Some(class)) = (pass.own_root_claim(), pass.ctx.stores.storage_class(&class))
    else {
        return Ok(Volumes::Ready);
    };
    let Some(bytes) = bytes(pass, &class) else {
        return Ok(Volumes::Ready);
    };
    let api = Api::namespaced(pass.ctx.client.clone(), &pass.key.namespace);
    let failed = |error: &kube::Error| {
        let (name, message) = (name.clone(), error.to_string());
        Error::RootClaim { name, message }.into()
    };
    let Some(found) = claim(pass, &name) else {
        let new = new(pass, &name, &class, bytes);
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => {
                pass.count_change();
                pass.normal("SuccessfulClaimCreate", &name);
                Ok(Volumes::Provisioning)
            }
            // It was made in an earlier pass, and its event is on its way.
            Err(error) if is_conflict(&error) => Ok(Volumes::Provisioning),
            Err(error) => Err(failed(&error)),
        };
    };
    let is_smaller = request(&found).is_some_and(|there| there < bytes);
    if is_own(pass, &found) && is_smaller && class.allow_volume_expansion == Some(true) {
        let requests = json!({ "storage": quantity(bytes) });
        let change = json!({ "spec": { "resources": { "requests": requests } } });
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        let grown: Result<PersistentVolumeClaim, _> = api.patch(&name, &params, &change).await;
        grown.map_err(|error| failed(&error))?;
        pass.count_change();
    }
    Ok(Volumes::Ready)
}

/// What the claim has to hold; `None` while that is not known.
fn bytes(pass: &Pass<'_>, class: &StorageClass) -> Option<i128> {
    let disk = root_disk::size(pass)?;
    Some(match mode(class) {
        BLOCK => disk.checked_add(MARKER)?,
        _ => claim_for_file(disk)?,
    })
}

fn mode(class: &StorageClass) -> &'static str {
    let stated = class.annotations().get(VOLUME_MODE);
    match stated.map(String::as_str) {
        Some(BLOCK) => BLOCK,
        _ => FILESYSTEM,
    }
}

fn is_own(pass: &Pass<'_>, claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == pass.uid())
}

fn new(pass: &Pass<'_>, name: &str, class: &StorageClass, bytes: i128) -> PersistentVolumeClaim {
    let mut new = PersistentVolumeClaim {
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), quantity(bytes))].into()),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: Some(class.name_any()),
            volume_mode: Some(mode(class).to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    };
    new.metadata.name = Some(name.to_owned());
    new.metadata.namespace = Some(pass.key.namespace.clone());
    new.metadata.owner_references = Some(vec![pass.owner()]);
    let uid = pass.uid();
    new.labels_mut().insert(names::VM_UID_LABEL.to_owned(), uid);
    new
}

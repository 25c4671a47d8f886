//! The claim of a root disk in a storage class: empty, or a clone of the claim that is the image.
//!
//! Invariant: the claim is made once, owned by the machine, and goes with it; a claim of that name
//! that is not the machine's is never used. Its request only grows, where the class expands volumes, as does that of the
//! claim that a revert made in its place. None is made while the machine reverts.
//! Failure: a size that is not known yet, a claim of another owner, or a class that makes no such clone.

use std::sync::Arc;

use crds::{VirtualMachineStatus, names};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference,
    VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Volumes;
use serde_json::json;

use super::volumes::{ROOT, capacity, claim, claim_for_file, mode, request};
use super::{Image, Missing, Pass, quantity};
use crate::flow::Outcome;
use crate::reconcile::answers::is_conflict;
use crate::reconcile::image::used;
use crate::reconcile::vm::act::revert;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::root_disk;
use crate::reconcile::vm::write::patch;

/// Annotation of a storage class: `Block` for root disks on block devices instead of files.
pub(crate) const VOLUME_MODE: &str = "vmlet.dev/volume-mode";
const BLOCK: &str = "Block";
const FILESYSTEM: &str = "Filesystem";
/// Provisioner of classes whose volumes administrators make by hand.
const BY_HAND: &str = "kubernetes.io/no-provisioner";
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
        if !is_own(pass, &found) {
            let message = format!(
                "claim {name} exists and was not made for this machine: rename the machine, or \
                 name the claim in a volume with root: true"
            );
            return Err(Missing::new("NotOwned", message));
        }
        return is_of(pass, &found, &class.name_any());
    }
    let source = super::image(pass).and_then(|image| source(pass, &image));
    if let Some(source) = &source {
        clones(pass, class, source)?;
    }
    match bytes(pass, class, source.as_deref()) {
        Some(_) => Ok(()),
        None => Err(Missing::new(
            "NotReady",
            "the size of the root disk is not known before a node has read the image: wait, or set \
             bootDiskCapacity",
        )),
    }
}

/// Whether the machine's own claim is of the class: that can be edited until the machine is created, and
/// the pass that made the claim may have come to no end.
fn is_of(pass: &Pass<'_>, claim: &PersistentVolumeClaim, class: &str) -> Result<(), Missing> {
    let spec = claim.spec.as_ref();
    let there = spec.and_then(|spec| spec.storage_class_name.as_deref());
    let Some(there) = there.filter(|there| *there != class && !pass.is_created()) else {
        return Ok(());
    };
    let name = claim.name_any();
    let message = format!(
        "claim {name} is of storage class {there}: set storageClass to it, or delete the claim, which is \
         then made of {class}"
    );
    Err(Missing::new("Invalid", message))
}

/// Makes the claim, or lets it grow.
pub(super) async fn make(pass: &mut Pass<'_>) -> Outcome<Volumes> {
    if revert::is_under_way(pass) {
        return Ok(Volumes::Ready);
    }
    let class = pass.vm.spec.storage_class.clone().unwrap_or_default();
    let Some(name) = made(pass) else {
        return Ok(Volumes::Ready);
    };
    let Some(class) = pass.ctx.stores.storage_class(&class) else {
        return Ok(Volumes::Ready);
    };
    // Read once: image and source in the stores may change meanwhile.
    let image = super::image(pass);
    let source = image.as_ref().and_then(|image| source(pass, image));
    let Some(bytes) = bytes(pass, &class, source.as_deref()) else {
        return Ok(Volumes::Ready);
    };
    let api = Api::namespaced(pass.ctx.client.clone(), &pass.key.namespace);
    let failed = |source: kube::Error| {
        let name = name.clone();
        Error::RootClaim { name, source }.into()
    };
    let Some(found) = claim(pass, &name) else {
        // Whether it is to be a clone is not known without the image.
        let Some(image) = image.filter(|image| image.claim.is_none() || source.is_some()) else {
            return Ok(Volumes::Ready);
        };
        if let Some(source) = &source {
            // The condition of the next start has the reason.
            if clones(pass, &class, source).is_err() {
                return Ok(Volumes::Ready);
            }
            if let Some(object) = &image.object {
                used::record(pass.ctx, object).await?;
            }
        }
        forget_content(pass).await?;
        let new = new(pass, &name, &class, bytes, source.as_deref());
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => {
                pass.count_change();
                pass.normal("SuccessfulClaimCreate", &name);
                Ok(Volumes::Provisioning)
            }
            // It was made in an earlier pass, and its event is on its way.
            Err(error) if is_conflict(&error) => Ok(Volumes::Provisioning),
            Err(error) => Err(failed(error)),
        };
    };
    let is_smaller = request(&found).is_some_and(|there| there < bytes);
    if is_own(pass, &found) && is_smaller && class.allow_volume_expansion == Some(true) {
        let requests = json!({ "storage": quantity(bytes) });
        let change = json!({ "spec": { "resources": { "requests": requests } } });
        let params = PatchParams::default();
        let change = Patch::Merge(change);
        let grown: Result<PersistentVolumeClaim, _> = api.patch(&name, &params, &change).await;
        grown.map_err(failed)?;
        pass.count_change();
    }
    Ok(Volumes::Ready)
}

/// Before the claim is made: nothing has filled it, whatever an earlier claim of that name had.
async fn forget_content(pass: &mut Pass<'_>) -> Outcome<()> {
    let has_traces = |s: &VirtualMachineStatus| s.image.is_some() || s.firmware.is_some();
    if !pass.seen().is_some_and(has_traces) {
        return Ok(());
    }
    let status = pass.status();
    status.image = None;
    status.image_url = None;
    status.firmware = None;
    patch::status(pass).await
}

/// The claim of the root disk that the machine's owner named.
pub(crate) fn named(pass: &Pass<'_>) -> Option<Arc<PersistentVolumeClaim>> {
    let name = pass.root_claim()?;
    claim(pass, &name).filter(|_| pass.own_root_claim().is_none())
}

/// Name of the claim that the controller makes for the root disk, or that it made in a revert.
pub(crate) fn made(pass: &Pass<'_>) -> Option<String> {
    let of_revert = || {
        let found = named(pass)?;
        is_own(pass, &found).then(|| found.name_any())
    };
    pass.own_root_claim().or_else(of_revert)
}

/// Whether the claim exists and is, or becomes, a clone.
pub(crate) fn is_clone(pass: &Pass<'_>) -> bool {
    let found = pass.own_root_claim().and_then(|name| claim(pass, &name));
    found.is_some_and(|claim| {
        let source = claim.spec.as_ref().and_then(|s| s.data_source.as_ref());
        source.is_some() && is_own(pass, &claim)
    })
}

/// The claim to be cloned.
fn source(pass: &Pass<'_>, image: &Image) -> Option<Arc<PersistentVolumeClaim>> {
    claim(pass, image.claim.as_deref()?)
}

/// Whether a class makes clones of that claim, as far as its fields tell.
fn clones(
    pass: &Pass<'_>,
    class: &StorageClass,
    source: &PersistentVolumeClaim,
) -> Result<(), Missing> {
    let name = class.name_any();
    let from = source.name_any();
    let refused = |why: String| {
        let message = format!("storage class {name} makes no clone of claim {from}: {why}");
        Err(Missing::new("Invalid", message))
    };
    if class.provisioner == BY_HAND {
        return refused("its volumes are made by hand".to_owned());
    }
    let of_source = source.spec.as_ref();
    let of_source = of_source.and_then(|s| s.storage_class_name.as_deref());
    let of_source = of_source.and_then(|class| pass.ctx.stores.storage_class(class));
    if let Some(other) = of_source
        && other.provisioner != class.provisioner
    {
        return refused(format!(
            "the provisioner of the claim is {}, that of the class {}",
            other.provisioner, class.provisioner
        ));
    }
    let there = mode(source).unwrap_or(FILESYSTEM);
    match class.annotations().get(VOLUME_MODE) {
        Some(stated) if stated != there => refused(format!(
            "a clone has the volumeMode {there} of the claim, and annotation {VOLUME_MODE} is {stated}"
        )),
        _ => Ok(()),
    }
}

/// What the claim has to hold; `None` while that is not known. A clone is at least as large as its
/// source.
fn bytes(
    pass: &Pass<'_>,
    class: &StorageClass,
    source: Option<&PersistentVolumeClaim>,
) -> Option<i128> {
    let least = source.and_then(capacity);
    let Some(disk) = root_disk::size(pass) else {
        return least;
    };
    let holds = match mode_of_new(class, source) {
        BLOCK => disk.checked_add(MARKER)?,
        _ => claim_for_file(disk)?,
    };
    Some(least.map_or(holds, |least| least.max(holds)))
}

fn mode_of_new(class: &StorageClass, source: Option<&PersistentVolumeClaim>) -> &'static str {
    let stated = class.annotations().get(VOLUME_MODE).map(String::as_str);
    let stated = source.map_or(stated, mode);
    match stated {
        Some(BLOCK) => BLOCK,
        _ => FILESYSTEM,
    }
}

/// Whether the claim was made for the machine, and goes with it.
pub(crate) fn is_own(pass: &Pass<'_>, claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == pass.uid())
}

fn new(
    pass: &Pass<'_>,
    name: &str,
    class: &StorageClass,
    bytes: i128,
    source: Option<&PersistentVolumeClaim>,
) -> PersistentVolumeClaim {
    let data_source = source.map(|source| TypedLocalObjectReference {
        api_group: None,
        kind: "PersistentVolumeClaim".to_owned(),
        name: source.name_any(),
    });
    let mut new = PersistentVolumeClaim {
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), quantity(bytes))].into()),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: Some(class.name_any()),
            volume_mode: Some(mode_of_new(class, source).to_owned()),
            data_source,
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

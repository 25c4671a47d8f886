//! Data volumes that are created with a machine.
//!
//! Invariant: the watch has their state; they are created once, owned by the machine, never
//! deleted here: stopping keeps them, the garbage collector takes them when the machine goes. One
//! that CDI collected after it had filled its claim is not made again.
//! Failure: without CDI in the cluster a condition reports it, and a start waits.

use crds::conditions::{DATA_VOLUMES_READY, Status};
use crds::vm::DataVolumeTemplate;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Volumes;
use serde_json::json;

use super::{Pass, volumes};
use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_gone};
use crate::reconcile::vm::error::Error;
use crate::stores::{DataVolume, DataVolumeSpec};

/// Phases in which a data volume can be used: what is missing comes with the first pod.
const READY_PHASES: [&str; 3] = ["Succeeded", "WaitForFirstConsumer", "PendingPopulation"];

/// Annotation of a claim: CDI has filled it for the data volume of this name.
const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";
/// Annotation of a claim: the phase of the pod by which CDI fills it.
const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";

pub(super) async fn check(pass: &mut Pass<'_>) -> Outcome<Volumes> {
    let templates = pass.vm.spec.data_volume_templates.clone();
    if templates.is_empty() {
        pass.drop_condition(DATA_VOLUMES_READY);
        return Ok(Volumes::Ready);
    }
    let api = Api::namespaced(pass.ctx.client.clone(), &pass.key.namespace);
    let mut worst = Volumes::Ready;
    for template in &templates {
        let one = one(pass, &api, template).await?;
        match one {
            None => {
                let message = "the cluster does not serve cdi.kubevirt.io/v1beta1: install CDI";
                pass.condition(DATA_VOLUMES_READY, Status::False, "NotServed", message);
                return Ok(Volumes::DataVolumeFailed);
            }
            Some((Volumes::Ready, _)) => {}
            Some((stands, message)) => {
                let reason = match stands {
                    Volumes::DataVolumeFailed => "Failed",
                    _ => "NotReady",
                };
                pass.condition(DATA_VOLUMES_READY, Status::False, reason, &message);
                if worst != Volumes::DataVolumeFailed {
                    worst = stands;
                }
            }
        }
    }
    if worst == Volumes::Ready {
        pass.condition(DATA_VOLUMES_READY, Status::True, "", "");
    }
    Ok(worst)
}

/// The state of one object; `None`: the cluster does not know the kind.
async fn one(
    pass: &mut Pass<'_>,
    api: &Api<DataVolume>,
    template: &DataVolumeTemplate,
) -> Outcome<Option<(Volumes, String)>> {
    let name = template.name.as_str();
    let failed = |error: &kube::Error| {
        let (name, message) = (name.to_owned(), error.to_string());
        Error::DataVolume { name, message }.into()
    };
    let key = Key::new(&pass.key.namespace, name);
    let Some(found) = pass.ctx.stores.data_volumes.get(&key.reference()) else {
        if is_populated(pass, name) {
            return Ok(Some((Volumes::Ready, String::new())));
        }
        let new = new(pass, template);
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => {
                pass.count_change();
                pass.normal("SuccessfulDataVolumeCreate", name);
                Ok(Some(being_made(name)))
            }
            // It was made in an earlier pass, and its event is on its way.
            Err(error) if is_conflict(&error) => Ok(Some(being_made(name))),
            // No API server serves the kind: the path itself is unknown.
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(failed(&error)),
        };
    };
    adopt(pass, api, &found).await.map_err(|e| failed(&e))?;
    let status = found.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref());
    let phase = phase.unwrap_or("Pending");
    Ok(Some(if READY_PHASES.contains(&phase) {
        (Volumes::Ready, String::new())
    } else if phase == "Failed" {
        (Volumes::DataVolumeFailed, format!("{name} failed"))
    } else {
        (Volumes::Provisioning, format!("{name} is {phase}"))
    }))
}

fn being_made(name: &str) -> (Volumes, String) {
    (Volumes::Provisioning, format!("{name} is being made"))
}

fn new(pass: &Pass<'_>, template: &DataVolumeTemplate) -> DataVolume {
    let any = template.spec.as_object().cloned().unwrap_or_default();
    let mut new = DataVolume::new(&template.name, DataVolumeSpec { any });
    new.metadata.namespace = Some(pass.key.namespace.clone());
    new.metadata.owner_references = Some(vec![pass.owner()]);
    let uid = pass.uid();
    new.labels_mut()
        .insert(crds::names::VM_UID_LABEL.to_owned(), uid);
    new
}

/// Whether the claim of a data volume that does not exist was filled before: CDI may collect a data
/// volume that has succeeded, and hands its claim to the machine.
fn is_populated(pass: &Pass<'_>, name: &str) -> bool {
    let Some(claim) = volumes::claim(pass, name) else {
        return false;
    };
    let says = |key: &str, value: &str| claim.annotations().get(key).is_some_and(|v| v == value);
    let is_handed_over = claim
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && owner.uid == pass.uid());
    is_handed_over || says(POPULATED_FOR, name) || says(POD_PHASE, "Succeeded")
}

/// Makes the machine the owner of one that has none.
async fn adopt(
    pass: &Pass<'_>,
    api: &Api<DataVolume>,
    found: &DataVolume,
) -> Result<(), kube::Error> {
    let has_owner = found
        .owner_references()
        .iter()
        .any(|o| o.controller == Some(true));
    if has_owner || found.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut owners = found.owner_references().to_vec();
    owners.push(pass.owner());
    let change = Patch::Merge(json!({ "metadata": {
        "uid": found.uid(),
        "resourceVersion": found.resource_version(),
        "ownerReferences": owners,
    }}));
    api.patch(&found.name_any(), &PatchParams::default(), &change)
        .await
        .map(|_| ())
}

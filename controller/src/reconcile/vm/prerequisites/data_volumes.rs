//! Data volumes that are created with a machine.
//!
//! Invariant: the watch has their state; they are created once, owned by the machine, never
//! deleted here: stopping keeps them, the garbage collector takes them when the machine goes. One
//! that CDI collected after it had filled its claim is not made again. One that exists without an
//! owner is taken over only where an admission policy has recorded a user who may delete it.
//! Failure: without CDI in the cluster a condition reports it, and a start waits. A DataSource that is missing
//! or cannot be used is looked at again by time, since nothing watches those.

mod source;

use crds::conditions::{DATA_VOLUMES_READY, Status};
use crds::names;
use crds::vm::DataVolumeTemplate;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Volumes;
use serde_json::{Map, Value, json};

use super::{Missing, Pass, volumes};
use crate::context::Key;
use crate::flow::{Outcome, UNWATCHED};
use crate::reconcile::answers::{is_conflict, is_gone};
use crate::reconcile::vm::error::Error;
use crate::stores::{DataVolume, DataVolumeSpec};

/// Phases in which a data volume can be used. A claim in the second one is bound only once it is filled,
/// which the machine's own pod may wait for.
const READY_PHASES: [&str; 2] = ["Succeeded", "PendingPopulation"];
/// The phase in which CDI has filled nothing, and begins when a pod uses the claim: not the machine's,
/// whose guest and CDI would write the same disk.
const WAITS_FOR_CONSUMER: &str = "WaitForFirstConsumer";

/// Reason where the cluster does not know the kind.
const NOT_SERVED: &str = "NotServed";

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
        let One { stands, why } = one(pass, &api, template).await?;
        if stands == Volumes::Ready {
            continue;
        }
        pass.condition(DATA_VOLUMES_READY, Status::False, why.reason, &why.message);
        if why.is_unwatched {
            pass.requeue_within(UNWATCHED);
        }
        if why.reason == NOT_SERVED {
            return Ok(stands);
        }
        if worst != Volumes::DataVolumeFailed {
            worst = stands;
        }
    }
    if worst == Volumes::Ready {
        pass.condition(DATA_VOLUMES_READY, Status::True, "", "");
    }
    Ok(worst)
}

/// Whether CDI waits for a pod that uses the claim of a data volume of the machine.
pub(super) fn wait_for_consumer(pass: &Pass<'_>) -> bool {
    let mut templates = pass.vm.spec.data_volume_templates.iter();
    templates.any(|template| {
        let key = Key::new(&pass.key.namespace, &template.name);
        let found = pass.ctx.stores.data_volumes.get(&key.reference());
        found.is_some_and(|volume| phase(&volume) == WAITS_FOR_CONSUMER)
    })
}

/// Whether all data volumes of the machine are filled but those that wait for such a pod.
pub(super) fn others_are_filled(pass: &Pass<'_>) -> bool {
    let mut templates = pass.vm.spec.data_volume_templates.iter();
    templates.all(|template| {
        let key = Key::new(&pass.key.namespace, &template.name);
        match pass.ctx.stores.data_volumes.get(&key.reference()) {
            Some(volume) => {
                let phase = phase(&volume);
                phase == WAITS_FOR_CONSUMER || READY_PHASES.contains(&phase)
            }
            None => is_populated(pass, &template.name),
        }
    })
}

fn phase(volume: &DataVolume) -> &str {
    let status = volume.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref());
    phase.unwrap_or("Pending")
}

/// The state of one data volume, and why it is not ready.
struct One {
    stands: Volumes,
    why: Missing,
}

impl One {
    fn ready() -> Self {
        let stands = Volumes::Ready;
        let why = Missing::new("", "");
        Self { stands, why }
    }

    fn on_its_way(message: String) -> Self {
        let stands = Volumes::Provisioning;
        let why = Missing::new("NotReady", message);
        Self { stands, why }
    }

    fn failed(why: Missing) -> Self {
        let stands = Volumes::DataVolumeFailed;
        Self { stands, why }
    }
}

async fn one(
    pass: &mut Pass<'_>,
    api: &Api<DataVolume>,
    template: &DataVolumeTemplate,
) -> Outcome<One> {
    let name = template.name.as_str();
    let failed = |source: kube::Error| {
        let name = name.to_owned();
        Error::DataVolume { name, source }.into()
    };
    let key = Key::new(&pass.key.namespace, name);
    let Some(found) = pass.ctx.stores.data_volumes.get(&key.reference()) else {
        if is_populated(pass, name) {
            return Ok(One::ready());
        }
        let spec = match source::resolve(pass, template).await {
            Ok(spec) => spec,
            Err(source::Refusal::Missing(why)) => return Ok(One::failed(why)),
            Err(source::Refusal::Read(error)) => return Err(failed(error)),
        };
        let new = new(pass, name, spec);
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => {
                pass.count_change();
                pass.normal("SuccessfulDataVolumeCreate", name);
                Ok(being_made(name))
            }
            // It was made in an earlier pass, and its event is on its way.
            Err(error) if is_conflict(&error) => Ok(being_made(name)),
            // No API server serves the kind: the path itself is unknown.
            Err(error) if is_gone(&error) => {
                let message = "the cluster does not serve cdi.kubevirt.io/v1beta1: install CDI";
                Ok(One::failed(Missing::new(NOT_SERVED, message)))
            }
            Err(error) => Err(failed(error)),
        };
    };
    if is_without_owner(&found) {
        if !listed(pass, names::ADOPT_DATA_VOLUMES).any(|one| one == name) {
            return Ok(One::failed(not_owned(name)));
        }
        adopt(pass, api, &found).await.map_err(failed)?;
    }
    let phase = phase(&found);
    Ok(if READY_PHASES.contains(&phase) {
        One::ready()
    } else if phase == "Failed" {
        One::failed(Missing::new("Failed", format!("{name} failed")))
    } else {
        One::on_its_way(format!("{name} is {phase}"))
    })
}

fn being_made(name: &str) -> One {
    One::on_its_way(format!("{name} is being made"))
}

/// What an annotation lists, separated by commas.
fn listed<'a>(pass: &'a Pass<'_>, annotation: &str) -> impl Iterator<Item = &'a str> {
    let text = pass.vm.annotations().get(annotation);
    text.into_iter().flat_map(|text| text.split(','))
}

fn not_owned(name: &str) -> Missing {
    let key = names::ADOPT_DATA_VOLUMES;
    let message = format!(
        "DataVolume {name} exists and has no owner; to make it part of the machine, which deletes \
         it together with the machine, a user who may update and delete DataVolumes adds its name \
         to the machine's annotation {key}"
    );
    Missing::new("NotOwned", message)
}

fn new(pass: &Pass<'_>, name: &str, any: Map<String, Value>) -> DataVolume {
    let mut new = DataVolume::new(name, DataVolumeSpec { any });
    new.metadata.namespace = Some(pass.key.namespace.clone());
    new.metadata.owner_references = Some(vec![pass.owner()]);
    let uid = pass.uid();
    new.labels_mut().insert(names::VM_UID_LABEL.to_owned(), uid);
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

fn is_without_owner(found: &DataVolume) -> bool {
    let mut owners = found.owner_references().iter();
    found.metadata.deletion_timestamp.is_none() && !owners.any(|o| o.controller == Some(true))
}

/// Makes the machine the owner.
async fn adopt(
    pass: &Pass<'_>,
    api: &Api<DataVolume>,
    found: &DataVolume,
) -> Result<(), kube::Error> {
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

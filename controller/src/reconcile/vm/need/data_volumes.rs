//! Data volumes that are made with a machine.
//!
//! Invariant: they are created once, owned by the machine, never deleted here: stopping keeps them, the
//! garbage collector takes them when the machine goes.
//! Failure: without CDI in the cluster a condition says so, and a start waits.

use crds::conditions::{DATA_VOLUMES_READY, Status};
use crds::vm::DataVolumeTemplate;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Volumes;
use serde_json::json;

use super::super::error::{Error, is_conflict, is_gone};
use super::Pass;
use crate::outcome::{Outcome, Stop};

/// Phases in which a data volume can be used: what is missing comes with the first pod.
const READY_PHASES: [&str; 3] = ["Succeeded", "WaitForFirstConsumer", "PendingPopulation"];

pub(super) async fn look(pass: &mut Pass<'_>) -> Outcome<Volumes> {
    let templates = pass.vm.spec.data_volume_templates.clone();
    if templates.is_empty() {
        pass.drop_condition(DATA_VOLUMES_READY);
        return Ok(Volumes::Ready);
    }
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    let mut resource = ApiResource::from_gvk(&kind);
    resource.plural = "datavolumes".to_owned();
    let client = pass.ctx.client.clone();
    let api = Api::namespaced_with(client, &pass.key.namespace, &resource);
    let mut worst = Volumes::Ready;
    for template in &templates {
        let one = one(pass, &api, &resource, template).await?;
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

/// How one stands; `None`: the cluster does not know the kind.
async fn one(
    pass: &mut Pass<'_>,
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    template: &DataVolumeTemplate,
) -> Outcome<Option<(Volumes, String)>> {
    let name = template.name.as_str();
    let failed = |error: &kube::Error| {
        let (name, message) = (name.to_owned(), error.to_string());
        Stop::Failed(Error::DataVolume { name, message }.into())
    };
    let found = match api.get_opt(name).await {
        // Nobody serves the kind: the path itself is unknown, which is said in other words than of an object.
        Err(error) if is_gone(&error) => return Ok(None),
        found => found.map_err(|e| failed(&e))?,
    };
    let Some(found) = found else {
        let mut new = DynamicObject::new(name, resource);
        new.metadata.namespace = Some(pass.key.namespace.clone());
        new.metadata.owner_references = Some(vec![pass.owner()]);
        let uid = pass.uid();
        new.labels_mut()
            .insert(crds::names::VM_UID_LABEL.to_owned(), uid);
        new.data = json!({ "spec": template.spec });
        return match api.create(&PostParams::default(), &new).await {
            Ok(_) => {
                pass.acted = true;
                pass.normal("SuccessfulDataVolumeCreate", name);
                Ok(Some((
                    Volumes::Provisioning,
                    format!("{name} is being made"),
                )))
            }
            Err(error) if is_conflict(&error) => Ok(Some((
                Volumes::Provisioning,
                format!("{name} is being made"),
            ))),
            // Taken away just now.
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(failed(&error)),
        };
    };
    adopt(pass, api, &found).await.map_err(|e| failed(&e))?;
    let phase = found.data.pointer("/status/phase").and_then(|p| p.as_str());
    let phase = phase.unwrap_or("Pending");
    Ok(Some(if READY_PHASES.contains(&phase) {
        (Volumes::Ready, String::new())
    } else if phase == "Failed" {
        (Volumes::DataVolumeFailed, format!("{name} failed"))
    } else {
        (Volumes::Provisioning, format!("{name} is {phase}"))
    }))
}

/// Makes the machine the owner of one that has none.
async fn adopt(
    pass: &Pass<'_>,
    api: &Api<DynamicObject>,
    found: &DynamicObject,
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

//! The devices of saved memory.
//!
//! A guest that was saved knows its disks and network cards: QEMU takes its memory back only with the
//! same ones. So a pod has a copy of what its devices were made of, the status keeps it while there is
//! saved memory, and a machine resumes with it, whatever its specification says by then.
//!
//! Invariant: the record is of the pod whose memory was saved, and is written with the state
//! `Suspended`, before that pod is let go. An edit takes effect at the next boot: until then the pod has
//! another revision than the specification, and `RestartRequired` shows.
//! Failure: devices that are larger than a [`RawObject`] have no record; such a machine resumes with the
//! devices of its specification.

use std::collections::BTreeMap;

use crds::vm::{Bootstrap, NetworkSpec, Volume};
use crds::{PowerState, RawObject, VirtualMachineSpec, names};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pod::{DEFAULT_NETWORK, NETWORKS};
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;

/// Annotations in the template of which a node, or Multus, makes devices.
const OF_DEVICES: [&str; 10] = [
    names::CLOUD_INIT,
    names::CPU_MODEL,
    "VirtletCPUModel",
    names::GUEST_AGENT,
    names::MAC_ADDRESS,
    names::NETWORK,
    names::SHARES,
    names::SYSPREP_SOURCE,
    DEFAULT_NETWORK,
    NETWORKS,
];

/// What the devices of a machine are made of.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Devices {
    volumes: Vec<Volume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<Bootstrap>,
    /// Those of [`OF_DEVICES`] that the template has; `None` in records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

/// The devices of a specification, for the annotation of its pod.
pub(super) fn devices(spec: &VirtualMachineSpec) -> Option<String> {
    let devices = Devices {
        volumes: spec.volumes.clone(),
        network: spec.network.clone(),
        bootstrap: spec.bootstrap.clone(),
        annotations: Some(of_template(spec)),
    };
    let text = serde_json::to_string(&devices).ok()?;
    (text.len() <= RawObject::MOST).then_some(text)
}

/// The annotations in the template that make devices.
fn of_template(spec: &VirtualMachineSpec) -> BTreeMap<String, String> {
    let template = spec.template.clone().unwrap_or_default();
    let mut all = template.metadata.annotations;
    all.retain(|key, _| OF_DEVICES.contains(&key.as_str()));
    all
}

/// The other annotations in the template are those of the specification.
fn put_into_template(spec: &mut VirtualMachineSpec, recorded: BTreeMap<String, String>) {
    if of_template(spec) == recorded {
        return;
    }
    let template = spec.template.get_or_insert_default();
    let all = &mut template.metadata.annotations;
    all.retain(|key, _| !OF_DEVICES.contains(&key.as_str()));
    all.extend(recorded);
}

/// Keeps the devices of the pod whose memory was saved, as long as that is there.
pub(crate) fn record(pass: &mut Pass<'_>) {
    if !is_suspended(pass) {
        pass.status().saved_devices = None;
        return;
    }
    let pod = pass.view.pod.as_deref();
    let text = pod.and_then(|pod| pods::annotation(pod, names::DEVICES));
    let devices = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(devices) = devices {
        pass.status().saved_devices = Some(RawObject::from(&devices));
    }
}

/// Gives the draft of a suspended machine the devices of its saved memory; returns the specification
/// that they replace, to be put back before the end of the pass.
pub(crate) fn take_devices(pass: &mut Pass<'_>, pod: Option<&Pod>) -> Option<VirtualMachineSpec> {
    if pod.is_some() || !is_suspended(pass) {
        return None;
    }
    let recorded = pass.seen()?.saved_devices.as_ref()?.fields()?;
    let devices: Devices = serde_json::from_value(Value::Object(recorded)).ok()?;
    let edited = pass.vm.spec.clone();
    let spec = &mut pass.vm.spec;
    spec.volumes = devices.volumes;
    spec.network = devices.network;
    spec.bootstrap = devices.bootstrap;
    if let Some(recorded) = devices.annotations {
        put_into_template(spec, recorded);
    }
    // A volume that was added since is not waited for.
    let claims = spec.volumes.iter();
    let claims = claims.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let claims: Vec<_> = claims.map(|claim| claim.claim_name.clone()).collect();
    spec.data_volume_templates
        .retain(|template| claims.contains(&template.name));
    Some(edited)
}

fn is_suspended(pass: &Pass<'_>) -> bool {
    pass.seen().and_then(|status| status.power_state) == Some(PowerState::Suspended)
}

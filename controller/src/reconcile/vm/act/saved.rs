//! The devices of saved memory.
//!
//! A guest that was saved knows its disks and network cards: QEMU takes its memory back only with the
//! same ones. So a pod has a copy of what its devices were made of, the status keeps it while there is
//! saved memory, and a machine resumes with it, whatever its specification says by then. Of the data for
//! the first boot it has a digest of the long texts: the node keeps the seed disk with the memory.
//!
//! Invariant: the record is of the pod whose memory was saved, and is written with the state
//! `Suspended`, before that pod is let go. An edit takes effect at the next boot: until then the pod has
//! another revision than the specification, and `RestartRequired` shows. All that the API server takes
//! fits into a record but tens of KiB of annotations, or of mount paths in letters of several bytes.
//! Failure: devices that are larger than a [`RawRecord`], or of a pod of an earlier version that had no
//! record and was edited since, have no record: an event reports it, and the machine resumes with the devices
//! of its specification.

use std::collections::BTreeMap;

use crds::vm::{Bootstrap, CloudInit, NetworkSpec, Volume};
use crds::{PowerState, RawRecord, VirtualMachineSnapshot, VirtualMachineSpec, names};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::pod::{DEFAULT_NETWORK, NETWORKS};
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;

/// Where the manifest of a snapshot with memory has the devices of the machine.
pub(crate) const DEVICES: &str = "devices";

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
    /// Without its texts; with them in records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<Bootstrap>,
    /// Digest of these texts; `None`: there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<String>,
    /// Those of [`OF_DEVICES`] that the template has; `None` in records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

/// The devices of a specification, for the annotation of its pod.
pub(super) fn devices(spec: &VirtualMachineSpec) -> Option<String> {
    let mut bootstrap = spec.bootstrap.clone();
    let texts = bootstrap.as_mut().and_then(take_texts);
    let devices = Devices {
        volumes: spec.volumes.clone(),
        network: spec.network.clone(),
        bootstrap,
        texts: texts.as_ref().map(digest),
        annotations: Some(of_template(spec)),
    };
    let text = serde_json::to_string(&devices).ok()?;
    (text.len() <= RawRecord::MOST).then_some(text)
}

/// What a guest reads of the seed disk at a boot, and what is as long as users make it; `None`: there is no
/// such text.
fn take_texts(bootstrap: &mut Bootstrap) -> Option<CloudInit> {
    let all = bootstrap.cloud_init.as_mut()?;
    let texts = CloudInit {
        inline_user_data: all.inline_user_data.take(),
        inline_network_data: all.inline_network_data.take(),
        ssh_keys: std::mem::take(&mut all.ssh_keys),
        ..CloudInit::default()
    };
    (texts != CloudInit::default()).then_some(texts)
}

fn digest(texts: &CloudInit) -> String {
    let text = serde_json::to_vec(texts).unwrap_or_default();
    let digest = Sha256::digest(text);
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The recorded bootstrap with its texts, if these are in the specification still. Other ones are for the
/// next boot: without any, the pod has another revision than the specification.
fn with_texts(devices: &Devices, spec: &VirtualMachineSpec) -> Option<Bootstrap> {
    let mut recorded = devices.bootstrap.clone()?;
    let mut edited = spec.bootstrap.clone();
    let texts = edited.as_mut().and_then(take_texts);
    let is_same = |texts: &CloudInit| devices.texts.as_ref() == Some(&digest(texts));
    if let Some(texts) = texts.filter(is_same)
        && let Some(cloud_init) = &mut recorded.cloud_init
    {
        cloud_init.inline_user_data = texts.inline_user_data;
        cloud_init.inline_network_data = texts.inline_network_data;
        cloud_init.ssh_keys = texts.ssh_keys;
    }
    Some(recorded)
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
    let Some(pod) = pass.view.pod.clone() else {
        return;
    };
    match recorded(pass, &pod) {
        Some(devices) => pass.status().saved_devices = Some(RawRecord::from(&devices)),
        None if was_suspended(pass) => {}
        None => {
            let text = "the devices that the saved memory needs are not on record: edits of volumes, network, \
                bootstrap and template keep the machine from resuming";
            pass.warning("DevicesNotRecorded", text);
        }
    }
}

/// The devices that the guest of the machine has, for a snapshot with its memory.
pub(crate) fn devices_of_pod(pass: &Pass<'_>) -> Option<Value> {
    recorded(pass, pass.view.pod.as_ref()?)
}

/// The node has memory of a snapshot beside the disk of a machine that is off: it is as if it were suspended.
pub(crate) fn take_memory(pass: &mut Pass<'_>, snapshot: Option<&VirtualMachineSnapshot>) {
    let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
    let manifest = status.and_then(|status| status.manifest.as_ref()?.fields());
    let devices = manifest.as_ref().and_then(|manifest| manifest.get(DEVICES));
    let devices = devices.map(RawRecord::from);
    let status = pass.status();
    status.power_state = Some(PowerState::Suspended);
    status.saved_devices = devices;
}

fn recorded(pass: &Pass<'_>, pod: &Pod) -> Option<Value> {
    let text = pods::annotation(pod, names::DEVICES).map(str::to_owned);
    let text = text.or_else(|| of_unedited(pass, pod))?;
    serde_json::from_str(&text).ok()
}

/// The devices of a pod without a copy, from a specification that has not been edited since.
fn of_unedited(pass: &Pass<'_>, pod: &Pod) -> Option<String> {
    let spec = &pass.vm.spec;
    let revision = pods::annotation(pod, names::REVISION)?;
    lifecycle::revision::is_current(revision, spec)
        .then(|| devices(spec))
        .flatten()
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
    spec.bootstrap = with_texts(&devices, spec);
    spec.volumes = devices.volumes;
    spec.network = devices.network;
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

/// So it was before this pass.
fn was_suspended(pass: &Pass<'_>) -> bool {
    let before = pass.base.status.as_ref();
    before.and_then(|status| status.power_state) == Some(PowerState::Suspended)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each list as long, and each text as long, as the API server takes them.
    #[test]
    fn the_devices_of_every_machine_fit_into_a_record() {
        let claim = |n: usize| {
            let claim_name = format!("{n:0253}");
            let path = format!("/{}", "p".repeat(511));
            let claim = json!({ "claimName": claim_name, "mountPath": path });
            json!({ "name": format!("{n:063}"), "persistentVolumeClaim": claim })
        };
        let interface = |n: usize| {
            let addresses: Vec<_> = (0..16)
                .map(|m| format!("ffff:ffff:ffff:ffff:ffff:ffff:{n:04}:{m:04}/128"))
                .collect();
            json!({
                "name": format!("{n:063}"), "networkRef": "n".repeat(317), "addresses": addresses,
                "dhcp4": false, "dhcp6": false, "macAddr": "52:54:00:12:34:5a",
            })
        };
        let text = "\u{1}".repeat(16_384);
        let spec = json!({
            "powerState": "PoweredOn",
            "volumes": (0..32).map(claim).collect::<Vec<_>>(),
            "network": { "hostName": "h".repeat(63), "interfaces": (0..16).map(interface).collect::<Vec<_>>() },
            "bootstrap": { "cloudInit": {
                "inlineUserData": text, "inlineNetworkData": text,
                "sshKeys": (0..32).map(|_| "k".repeat(8192)).collect::<Vec<_>>(),
                "instanceID": "i".repeat(128),
            }},
        });
        let spec: VirtualMachineSpec = serde_json::from_value(spec).unwrap();
        let text = devices(&spec).unwrap();
        let record = RawRecord::from(&serde_json::from_str::<Value>(&text).unwrap());
        assert!(record.fields().is_some());
    }
}

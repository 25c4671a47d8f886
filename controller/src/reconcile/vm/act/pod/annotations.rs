//! The annotations of a pod, for the node's runtime.
//!
//! Invariant: a key is there only when it has a value; Secrets are named, never copied.
//! Failure: none.

use std::collections::BTreeMap;

use crds::vm::Firmware;
use crds::{IpAssurance, names};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::json;

use super::{Plan, container, firmware, placement};
use crate::reconcile::vm::act::saved;
use crate::reconcile::vm::observe::pods::{INSTANCE, PROVISION};
use crate::reconcile::vm::prerequisites;
use crate::reconcile::vm::prerequisites::{DEFAULT_KEY, NETWORK_KEY, thousandths};

/// Routes the pod and its image to our runtime.
const TARGET_RUNTIME: &str = "kubernetes.io/target-runtime";
/// Networks beside that of the pod, for Multus.
pub(crate) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The network in the place of that of the pod, for Multus.
pub(crate) const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// What keeps autoscalers from evicting a pod, and so from deleting its node.
pub(super) fn undisturbed() -> [(String, String); 2] {
    [
        (names::SAFE_TO_EVICT.to_owned(), "false".to_owned()),
        (names::DO_NOT_DISRUPT.to_owned(), "true".to_owned()),
    ]
}

/// Those of the pod that is the machine.
pub(super) fn for_instance(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |key: &str, value: String| all.insert(key.to_owned(), value);
    let spec = &plan.vm.spec;
    let size = &plan.prerequisites.size;
    set(TARGET_RUNTIME, names::RUNTIME_CLASS.to_owned());
    set(names::POD_ROLE_LABEL, INSTANCE.to_owned());
    let generation = plan.vm.metadata.generation.unwrap_or_default();
    set(names::GENERATION, generation.to_string());
    set(names::REVISION, lifecycle::revision::for_spec(spec));
    set(names::VCPU_COUNT, size.cpus.to_string());
    set(names::MEMORY, size.memory.0.clone());
    for (key, value) in room(plan) {
        set(key, value);
    }
    if let Some(model) = size.cpu_model.clone().filter(|m| !m.is_empty()) {
        set(names::CPU_MODEL, model);
    }
    if let Some(machine) = plan.machine_type {
        set(names::MACHINE_TYPE, machine.to_owned());
    }
    if let Some(firmware) = firmware::requested(plan.vm, plan.prerequisites) {
        let word = match firmware {
            Firmware::Bios => "bios",
            Firmware::Uefi => "uefi",
        };
        set(names::FIRMWARE, word.to_owned());
    }
    for (key, value) in image(plan) {
        set(key, value.to_owned());
    }
    set(names::BIOS_UUID, plan.bios_uuid.to_owned());
    if let Some(disk) = plan.disk {
        set(names::VM_DISK, disk.to_owned());
        set(names::INSTANCE_UUID, plan.instance_uuid.to_owned());
        if let Some(bytes) = spec
            .boot_disk_capacity
            .as_ref()
            .and_then(prerequisites::bytes)
        {
            set(names::ROOT_VOLUME_SIZE, bytes.to_string());
        }
        if plan.restore {
            set(names::RESTORE, "true".to_owned());
        }
        if let Some(devices) = saved::devices(spec) {
            set(names::DEVICES, devices);
        }
    }
    if let Some(disks) = container::file_disks(plan) {
        set(names::FILE_DISKS, disks);
    }
    let mut roots = plan.prerequisites.disks.iter().filter(|disk| disk.is_root);
    if let Some(reverted) = roots.find_map(|root| root.reverted.clone()) {
        set(names::DISK_GENERATION, reverted);
    }
    if plan.paused {
        set(names::START_PAUSED, "true".to_owned());
    }
    if plan.prerequisites.ip_assurance != IpAssurance::Guest {
        let word = crate::reconcile::vm::act::pod::assurance(plan.prerequisites.ip_assurance);
        set(names::IP_ASSURANCE, word.to_owned());
    }
    let network = spec.network.clone().unwrap_or_default();
    if network.disabled {
        set(names::NETWORK, "none".to_owned());
    }
    // Further NICs get theirs from their own plugins, which are asked by Multus.
    if let Some(mac) = network.interfaces.first().and_then(|i| i.mac_addr.clone()) {
        set(names::MAC_ADDRESS, mac.to_lowercase());
    }
    let attachments = &plan.prerequisites.attachments;
    if let Some(default) = &attachments.default {
        set(DEFAULT_NETWORK, default.clone());
    }
    if !attachments.more.is_empty() {
        set(NETWORKS, json!(attachments.more).to_string());
    }
    all.extend(bootstrap(plan));
    all.extend(plan.disk.map(|_| undisturbed()).into_iter().flatten());
    all
}

/// Of which source the image is, and how a node that needs it gets it.
fn image<'a>(plan: &'a Plan<'_>) -> impl Iterator<Item = (&'static str, &'a str)> {
    let image = &plan.prerequisites.image;
    let secret = image.tls_secret.as_deref();
    [
        (names::DISK_IMAGE, image.only_recorded()),
        (names::IMAGE_URL, image.url.as_deref()),
        (
            names::IMAGE_TLS_SECRET,
            secret.filter(|_| !image.is_on_disk),
        ),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

/// Room that the machine declares, as far as it is not below its size: the node would refuse that.
fn room(plan: &Plan<'_>) -> Vec<(&'static str, String)> {
    let size = &plan.prerequisites.size;
    let given = |key| {
        let value = plan.vm.annotations().get(key)?;
        Some((key, value.clone(), Quantity(value.clone())))
    };
    let cpus = given(names::MAX_VCPUS)
        .filter(|(.., most)| thousandths(most) >= Some(i128::from(size.cpus) * 1000));
    let memory = given(names::MAX_MEMORY)
        .filter(|(.., most)| prerequisites::bytes(most) >= prerequisites::bytes(&size.memory));
    let all = [cpus, memory].into_iter().flatten();
    all.map(|(key, value, _)| (key, value)).collect()
}

fn bootstrap(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let bootstrap = plan.vm.spec.bootstrap.as_ref();
    if let Some(sysprep) = bootstrap.and_then(|b| b.sysprep.as_ref()) {
        let key = format!("{}sysprep-source", names::PREFIX);
        all.insert(key, format!("secret/{}", sysprep.secret_name));
    }
    let Some(cloud_init) = bootstrap.and_then(|b| b.cloud_init.as_ref()) else {
        return all;
    };
    all.extend(prerequisites::inline(cloud_init));
    let mut set = |key: &str, value: String| all.insert(format!("{}{key}", names::PREFIX), value);
    let id = cloud_init.instance_id.as_deref().unwrap_or(plan.bios_uuid);
    set("cloud-init-instance-id", id.to_owned());
    if let Some(source) = &cloud_init.user_data {
        set(
            "cloud-init-user-data-source",
            format!("secret/{}", source.name),
        );
        let key = source.key.as_deref().unwrap_or(DEFAULT_KEY);
        set("cloud-init-user-data-source-key", key.to_owned());
    }
    if let Some(source) = &cloud_init.network_data {
        let key = source.key.as_deref().unwrap_or(NETWORK_KEY);
        let source = format!("secret/{}/{key}", source.name);
        set("cloud-init-network-config-source", source);
    }
    if !cloud_init.ssh_keys.is_empty() {
        set("ssh-keys", cloud_init.ssh_keys.join("\n"));
    }
    all
}

/// Those of a placeholder.
pub(super) fn of_placeholder(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut all = BTreeMap::from([
        pair(TARGET_RUNTIME, names::RUNTIME_CLASS),
        pair(names::POD_ROLE_LABEL, PROVISION),
        pair(
            names::PLACEMENT,
            &placement::asked(plan.vm, plan.prerequisites, plan.grouping),
        ),
    ]);
    all.extend(undisturbed());
    all.extend(image(plan).map(|(key, value)| pair(key, value)));
    all
}

//! The annotations of a pod, for the node's runtime.
//!
//! Invariant: a key is there only when it has a value; Secrets are named, never copied.
//! Failure: none.

use std::collections::BTreeMap;

use crds::{IpAssurance, names};
use serde_json::json;

use super::Plan;
use crate::reconcile::vm::observe::pods::{INSTANCE, PROVISION};
use crate::reconcile::vm::prerequisites;
use crate::reconcile::vm::prerequisites::DEFAULT_KEY;

/// Routes the pod and its image to our runtime.
const TARGET_RUNTIME: &str = "kubernetes.io/target-runtime";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// Those of the pod that is the machine.
pub(super) fn of(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut say = |key: &str, value: String| all.insert(key.to_owned(), value);
    let spec = &plan.vm.spec;
    let size = &plan.prerequisites.size;
    say(TARGET_RUNTIME, names::RUNTIME_CLASS.to_owned());
    say(names::POD_ROLE_LABEL, INSTANCE.to_owned());
    let generation = plan.vm.metadata.generation.unwrap_or_default();
    say(names::GENERATION, generation.to_string());
    say(names::REVISION, lifecycle::revision::of(spec));
    say("vmlet.dev/vcpu-count", size.cpus.to_string());
    say("vmlet.dev/memory", size.memory.0.clone());
    if let Some(model) = size.cpu_model.clone().filter(|m| !m.is_empty()) {
        say("vmlet.dev/cpu-model", model);
    }
    if let Some(machine) = plan.machine_type {
        say("vmlet.dev/machine-type", machine.to_owned());
    }
    if let Some(url) = &plan.prerequisites.image.url {
        say(names::IMAGE_URL, url.clone());
    }
    say(names::BIOS_UUID, plan.bios_uuid.to_owned());
    if let Some(disk) = plan.disk {
        say(names::VM_DISK, disk.to_owned());
        say(names::INSTANCE_UUID, plan.instance_uuid.to_owned());
        if let Some(bytes) = spec
            .boot_disk_capacity
            .as_ref()
            .and_then(prerequisites::bytes)
        {
            say("vmlet.dev/root-volume-size", bytes.to_string());
        }
        if plan.restore {
            say(names::RESTORE, "true".to_owned());
        }
    }
    if plan.paused {
        say(names::START_PAUSED, "true".to_owned());
    }
    if plan.prerequisites.ip_assurance != IpAssurance::Guest {
        let word = crate::reconcile::vm::act::pod::assurance(plan.prerequisites.ip_assurance);
        say(
            crate::reconcile::vm::act::pod::IP_ASSURANCE,
            word.to_owned(),
        );
    }
    let network = spec.network.clone().unwrap_or_default();
    if network.disabled {
        say("vmlet.dev/network", "none".to_owned());
    }
    // Further NICs get theirs from their own plugins, which are asked by Multus.
    if let Some(mac) = network.interfaces.first().and_then(|i| i.mac_addr.clone()) {
        say("vmlet.dev/mac-address", mac.to_lowercase());
    }
    let attachments = &plan.prerequisites.attachments;
    if let Some(default) = &attachments.default {
        say(DEFAULT_NETWORK, default.clone());
    }
    if !attachments.more.is_empty() {
        say(NETWORKS, json!(attachments.more).to_string());
    }
    all.extend(bootstrap(plan));
    all
}

fn bootstrap(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let cloud_init = plan.vm.spec.bootstrap.as_ref();
    let Some(cloud_init) = cloud_init.and_then(|b| b.cloud_init.as_ref()) else {
        return all;
    };
    let mut say = |key: &str, value: String| all.insert(format!("{}{key}", names::PREFIX), value);
    let id = cloud_init.instance_id.as_deref().unwrap_or(plan.bios_uuid);
    say("cloud-init-instance-id", id.to_owned());
    if let Some(source) = &cloud_init.user_data {
        say(
            "cloud-init-user-data-source",
            format!("secret/{}", source.name),
        );
        let key = source.key.as_deref().unwrap_or(DEFAULT_KEY);
        say("cloud-init-user-data-source-key", key.to_owned());
    }
    if !cloud_init.ssh_keys.is_empty() {
        say("ssh-keys", cloud_init.ssh_keys.join("\n"));
    }
    all
}

/// Those of a placeholder.
pub(super) fn of_placeholder(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let url = plan.prerequisites.image.url.as_deref();
    let mut all = BTreeMap::from([
        pair(TARGET_RUNTIME, names::RUNTIME_CLASS),
        pair(names::POD_ROLE_LABEL, PROVISION),
    ]);
    all.extend(url.map(|url| pair(names::IMAGE_URL, url)));
    all
}

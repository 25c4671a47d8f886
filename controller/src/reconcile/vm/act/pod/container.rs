//! The one container of a pod: the machine.
//!
//! Invariant: block volumes are devices, file systems are mounts, in which a disk is a file unless the
//! guest mounts it; the root claim is the disk `/`.
//! Failure: none.

use std::collections::BTreeMap;

use crds::ResourceList;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, PersistentVolumeClaimVolumeSource, Probe, ResourceRequirements,
    SecurityContext, TCPSocketAction, Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::{Plan, guest_data};
use crate::reconcile::vm::prerequisites::{Disk, Size, bytes};

/// The resource of a node's file system.
pub(crate) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

pub(super) fn for_pod(plan: &Plan<'_>, is_instance: bool) -> Container {
    let size = &plan.prerequisites.size;
    let disks = disks(plan);
    let devices = disks.iter().copied().filter(|d| !d.is_filesystem);
    let mounts = disks.iter().copied().filter(|d| d.is_filesystem);
    Container {
        name: "vm".to_owned(),
        image: Some(plan.prerequisites.image.of_pods().to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        resources: Some(ResourceRequirements {
            requests: Some(requests(plan)),
            limits: Some(amounts(&size.limits, limit(size))),
            ..ResourceRequirements::default()
        }),
        volume_devices: some(devices.map(device).collect()),
        volume_mounts: some(
            mounts
                .map(mount)
                .chain(guest_data::mounts(plan).into_iter().filter(|_| is_instance))
                .collect(),
        ),
        readiness_probe: plan_probe(plan).filter(|_| is_instance),
        security_context: Some(security()),
        ..Container::default()
    }
}

/// See `security` of the pod.
fn security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}

/// The claims behind the disks, and for an instance its guest data.
pub(super) fn volumes(plan: &Plan<'_>, is_instance: bool) -> Option<Vec<Volume>> {
    let volume = |disk: &&Disk| Volume {
        name: disk.name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: disk.claim.clone(),
            read_only: Some(true).filter(|_| disk.is_read_only),
        }),
        ..Volume::default()
    };
    let claims = disks(plan).into_iter();
    let guest_data = guest_data::volumes(plan)
        .into_iter()
        .filter(|_| is_instance);
    some(claims.map(|disk| volume(&disk)).chain(guest_data).collect())
}

/// The pod that chooses a node has the claims too, so that both land where the claims can be used.
fn disks<'a>(plan: &Plan<'a>) -> Vec<&'a Disk> {
    plan.prerequisites.disks.iter().collect()
}

fn device(disk: &Disk) -> VolumeDevice {
    VolumeDevice {
        name: disk.name.clone(),
        device_path: device_path(disk),
    }
}

fn device_path(disk: &Disk) -> String {
    if disk.is_root {
        "/".to_owned()
    } else {
        format!("/dev/{}", disk.name)
    }
}

/// The disks that are files, for the node; `None` without one.
pub(super) fn file_disks(plan: &Plan<'_>) -> Option<String> {
    let disks = disks(plan).into_iter();
    let files = disks.filter(|disk| disk.is_filesystem && disk.mount_path.is_none());
    let entry = |disk: &Disk| {
        let size = disk.file_bytes.filter(|_| !disk.is_read_only);
        json!({
            "mountPath": mount_path(disk),
            "devicePath": device_path(disk),
            "size": size.map(|bytes| bytes.to_string()),
        })
    };
    let entries: Vec<_> = files.map(entry).collect();
    (!entries.is_empty()).then(|| serde_json::Value::from(entries).to_string())
}

fn mount_path(disk: &Disk) -> String {
    let own = || format!("/run/vmlet/volumes/{}", disk.name);
    disk.mount_path.clone().unwrap_or_else(own)
}

fn mount(disk: &Disk) -> VolumeMount {
    VolumeMount {
        name: disk.name.clone(),
        mount_path: mount_path(disk),
        read_only: Some(true).filter(|_| disk.is_read_only),
        ..VolumeMount::default()
    }
}

/// The memory that the pod may use: what the class specifies, but never less than the guest has,
/// which a class that was edited since does not know, nor less than what is reserved.
fn limit(size: &Size) -> &Quantity {
    let reported = [&size.requests.memory, &size.limits.memory];
    let reported = reported.into_iter().flatten();
    reported.fold(&size.memory, |most, one| {
        if bytes(one) >= bytes(most) { one } else { most }
    })
}

/// What the scheduler reserves. The disk has a request and no limit: kubelet ends pods that write
/// more than their limit, and the size of a disk bounds it already.
fn requests(plan: &Plan<'_>) -> BTreeMap<String, Quantity> {
    let size = &plan.prerequisites.size;
    let memory = size.requests.memory.as_ref().unwrap_or(&size.memory);
    let mut all = amounts(&size.requests, memory);
    let disk = plan.disk_request.clone();
    all.extend(disk.map(|disk| (EPHEMERAL_STORAGE.to_owned(), disk)));
    all
}

/// CPU as the class specifies, where it does; memory as given.
fn amounts(list: &ResourceList, memory: &Quantity) -> BTreeMap<String, Quantity> {
    let memory = memory.clone();
    let mut all = BTreeMap::from([("memory".to_owned(), memory)]);
    all.extend(list.cpu.clone().map(|cpu| ("cpu".to_owned(), cpu)));
    all
}

/// kubelet's own probe takes a machine that is not ready out of services.
fn plan_probe(plan: &Plan<'_>) -> Option<Probe> {
    let probe = plan.vm.spec.readiness_probe.as_ref()?;
    let socket = probe.tcp_socket.as_ref().filter(|s| s.host.is_none())?;
    Some(Probe {
        tcp_socket: Some(TCPSocketAction {
            port: IntOrString::Int(i32::from(socket.port)),
            host: None,
        }),
        period_seconds: Some(clamped(probe.period_seconds.unwrap_or(10))),
        timeout_seconds: Some(clamped(probe.timeout_seconds.unwrap_or(1))),
        ..Probe::default()
    })
}

fn clamped(seconds: u32) -> i32 {
    i32::try_from(seconds.max(1)).unwrap_or(i32::MAX)
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|l| !l.is_empty())
}

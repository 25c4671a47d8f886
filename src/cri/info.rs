//! The map `info` of verbose replies.
//!
//! Invariant: one key, whose value is a JSON object: crictl embeds it, and fails when it is
//! anything else.
//! Failure: none.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::Config;
use crate::guest;
use crate::health::{Readiness, Report};
use crate::images::{Image, ImageUse, Progress};
use crate::node_settings::InForce;
use crate::sandbox::Sandbox;
use crate::vm::{CgroupVersion, Container, Equipment, Facts};

/// The verbose map.
pub(super) type Info = BTreeMap<String, String>;

fn entry(key: &str, value: &Value) -> Info {
    Info::from([(key.to_owned(), value.to_string())])
}

/// Where the daemon's files and helpers are.
pub(super) fn paths(config: &Config) -> Value {
    json!({
        "listen": config.listen.to_string(),
        "stateDir": config.state_dir.to_string(),
        "libvirtUri": config.libvirt.uri.to_string(),
        "tapmanagerSocket": config.network.tapmanager_socket.to_string(),
        "handoffSocket": config.network.handoff_socket.to_string(),
        "emulator": config.vm.emulator.to_string(),
        "wrapper": config.vm.wrapper.to_string(),
    })
}

/// The same with the settings that a cluster can give, and who set each.
pub(super) fn with_settings(config: &Value, settings: &[InForce]) -> Value {
    let settings = settings.iter().map(|one| {
        let value = json!({ "value": one.value, "source": one.source });
        (one.key.name().to_owned(), value)
    });
    let mut config = config.clone();
    config["settings"] = settings.collect::<serde_json::Map<_, _>>().into();
    config
}

/// The details of the runtime's status.
pub(super) fn runtime(report: &Report, config: &Value, pulls: &[(String, Progress)]) -> Info {
    let pulls: Vec<_> = pulls
        .iter()
        .map(|(name, pull)| {
            let received = pull.received;
            let total = pull.total;
            json!({ "image": name, "receivedBytes": received, "totalBytes": total })
        })
        .collect();
    let accelerator = report.accelerator.as_ref();
    let (libvirt, qemu) = match &report.hypervisor {
        Ok(versions) => (json!({ "version": versions.libvirt }), json!(versions.qemu)),
        Err(reason) => (json!({ "error": reason }), Value::Null),
    };
    let (network, tapmanager) = match &report.network {
        Ok(status) => (json!(status), json!({ "reachable": true })),
        Err(reason) => (Value::Null, json!({ "reachable": false, "error": reason })),
    };
    let value = json!({
        "accelerator": accelerator.map(|choice| json!({
            "choice": choice.accelerator.to_string(),
            "reason": choice.reason,
        })),
        "libvirt": libvirt,
        "qemu": qemu,
        "network": network,
        "tapmanager": tapmanager,
        "config": config,
        "pulls": pulls,
        "node": node(report),
    });
    entry("info", &value)
}

/// What the node has for machines, and whether they can start, as the agent announces it.
fn node(report: &Report) -> Value {
    let verdict = report.verdict();
    let equipment = report.equipment.as_ref();
    let kernel = equipment.map(|Equipment { kernel, .. }| {
        json!({
            "landlockAbi": kernel.landlock,
            "idmappedMounts": kernel.idmapped_mounts,
            "cgroupVersion": kernel.cgroup.map(CgroupVersion::number),
            "appArmor": kernel.apparmor.as_str(),
        })
    });
    json!({
        "condition": {
            "type": "VmletReady",
            "status": status(verdict.readiness),
            "reason": verdict.reason,
            "message": verdict.message,
        },
        "kernel": kernel,
        "machineTypes": report.offer.machine_types,
        "cpuModels": report.offer.cpu_models,
        "helpers": equipment.map(|Equipment { helpers_together: together, .. }| {
            json!({ "apart": together.is_none(), "message": together.as_deref().unwrap_or_default() })
        }),
        "vmletGuest": equipment.map(|Equipment { vmlet_guest_missing: missing, .. }| {
            json!({ "present": missing.is_none(), "message": missing.as_deref().unwrap_or_default() })
        }),
        "uefi": equipment.map(|Equipment { uefi_missing: missing, .. }| {
            json!({ "present": missing.is_none(), "message": missing.as_deref().unwrap_or_default() })
        }),
        "disks": equipment.map(|equipment| json!({ "shareBlocks": equipment.copies_share_blocks })),
    })
}

/// The status of a condition.
const fn status(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::Ready | Readiness::Limited => "True",
        Readiness::NotReady => "False",
        Readiness::Unknown => "Unknown",
    }
}

/// The details of a sandbox's status.
pub(super) fn sandbox(sandbox: &Sandbox) -> Info {
    let network = sandbox.network.as_ref();
    let value = json!({
        "sandboxID": sandbox.id,
        "phase": sandbox.phase.to_string(),
        "config": sandbox.config,
        "runtimeHandler": sandbox.config.runtime_handler,
        "cniResult": network.map(|network| &network.cni_result),
        "netns": network.map(|network| &network.netns),
    });
    entry("info", &value)
}

/// The details of a container's status.
pub(super) fn container(
    container: &Container,
    sandbox: Option<&Sandbox>,
    facts: &Facts,
    guest: Option<&guest::Report>,
) -> Info {
    let nics = sandbox.and_then(|sandbox| sandbox.network.as_ref());
    let nics: Vec<_> = nics
        .into_iter()
        .flat_map(|network| network.guest_nics())
        .collect();
    let nics: Vec<_> = nics
        .iter()
        .map(|nic| json!({ "mac": nic.mac, "tap": nic.tap, "link": nic.link }))
        .collect();
    let shares = container.spec.shares.iter();
    let shares: Vec<_> = shares
        .map(|share| {
            json!({
                "tag": share.tag,
                "path": share.path,
                "readOnly": share.read_only,
                "protocol": share.protocol,
            })
        })
        .collect();
    let size = container.size();
    let value = json!({
        "sandboxID": container.sandbox,
        "pid": facts.pid,
        "phase": container.phase.to_string(),
        "config": container.spec.config,
        "vm": {
            "vcpus": size.vcpus,
            "memoryMiB": size.memory,
            "accelerator": facts.accelerator,
            "domain": container.domain(),
            "rootDisk": facts.root_disk,
            "firmware": container.spec.firmware(),
            "consoleSocket": facts.console_socket,
            "consoleFile": facts.console_file,
            "nics": nics,
            "shares": shares,
            "guestAgent": guest.map(agent),
        },
    });
    entry("info", &value)
}

/// What `vmlet-guest` reported last.
fn agent(report: &guest::Report) -> Value {
    let facts = &report.facts;
    let plain = service::telemetry::bounded;
    let file_systems = facts.file_systems.iter().take(guestapi::FILE_SYSTEMS);
    let file_systems: Vec<_> = file_systems
        .map(|fs| {
            json!({
                "mountPoint": plain(&fs.mount_point),
                "device": plain(&fs.device),
                "type": plain(&fs.kind),
                "sizeBytes": fs.size,
                "usedBytes": fs.used,
                "inodes": fs.inodes,
                "inodesUsed": fs.inodes_used,
            })
        })
        .collect();
    json!({
        "program": "vmlet-guest",
        "version": report.version,
        "at": report.at,
        "uptimeNanoseconds": facts.uptime,
        "cpuNanoseconds": facts.cpu,
        "memoryBytes": facts.memory,
        "memoryAvailableBytes": facts.memory_available,
        "swapBytes": facts.swap,
        "swapFreeBytes": facts.swap_free,
        "fileSystems": file_systems,
    })
}

/// The details of the status of an image that is here.
pub(super) fn image(image: &Image, used: Option<&ImageUse>, users: &[String]) -> Info {
    let value = json!({
        "digest": image.digest.to_string(),
        "format": image.format.as_str(),
        "virtualSize": image.virtual_size,
        "path": image.path,
        "pulledAt": used.map_or(0, |used| used.pulled_at),
        "usedAt": used.map_or(0, |used| used.used_at),
        "users": users,
    });
    entry("info", &value)
}

/// The details of the status of an image that is on its way.
pub(super) fn pull(progress: Progress) -> Info {
    let value = json!({
        "receivedBytes": progress.received,
        "totalBytes": progress.total,
    });
    entry("pull", &value)
}

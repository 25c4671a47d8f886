//! Converts the document to a pod that can be run: refuses, checks, fills in defaults.
//!
//! Invariant: names are safe as parts of paths; numbers fit the types of the wire.
//! Failure: the first field that cannot be honoured, with what to do.

mod container;

use std::net::IpAddr;

use uuid::Uuid;

use super::document::{self, Unknown};
use super::{Dns, ManifestError, PodManifest};
use container::container;

type Result<T, E = ManifestError> = std::result::Result<T, E>;

const DEFAULT_GRACE: u32 = 30;

pub(super) fn pod(pod: document::Pod) -> Result<PodManifest> {
    refuse(&pod.spec)?;
    let mut warnings = Vec::new();
    let document::Pod {
        metadata,
        mut spec,
        mut unknown,
    } = pod;
    // Both were read with the header.
    unknown.retain(|field, _| field != "apiVersion" && field != "kind");
    warn_unknown(&mut warnings, "", &unknown);
    warn_unknown(&mut warnings, "metadata.", &metadata.unknown);
    warn_unknown(&mut warnings, "spec.", &spec.unknown);
    if let Some(policy) = spec.restart_policy.as_deref().filter(|p| *p != "Never") {
        warnings.push(format!(
            "spec.restartPolicy {policy} is not acted on: the VM runs once"
        ));
    }

    let name = label("metadata.name", metadata.name, 253)?;
    let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
    let namespace = label("metadata.namespace", namespace, 63)?;
    let uid = uid(metadata.uid)?;
    let hostname = match spec.hostname {
        Some(name) => label("spec.hostname", name, 63)?,
        // As kubelet does.
        None => name
            .chars()
            .take(63)
            .collect::<String>()
            .trim_end_matches(['-', '.'])
            .to_owned(),
    };
    let dns = dns(spec.dns_policy.as_deref(), spec.dns_config, &mut warnings)?;
    let container = match (spec.containers.pop(), spec.containers.is_empty()) {
        (Some(only), true) => container(only, &mut warnings)?,
        (Some(_), false) => {
            return Err(unsupported(
                "spec.containers",
                "a VM pod has exactly one container; in a cluster runtimeClassName vmlet-process runs several as \
                 processes of one machine",
            ));
        }
        (None, _) => {
            return Err(unsupported(
                "spec.containers",
                "name one container, with an image",
            ));
        }
    };
    let grace = match spec.termination_grace_period_seconds {
        None => DEFAULT_GRACE,
        Some(seconds) => u32::try_from(seconds).map_err(|_| {
            let reason = "whole seconds from 0 on are allowed";
            invalid("spec.terminationGracePeriodSeconds", &seconds, reason)
        })?,
    };
    Ok(PodManifest {
        name,
        namespace,
        uid,
        labels: metadata.labels,
        annotations: metadata.annotations,
        runtime_handler: spec.runtime_class_name.unwrap_or_default(),
        hostname,
        dns,
        grace,
        container,
        warnings,
    })
}

/// What cannot be honoured and would be missed.
fn refuse(spec: &document::Spec) -> Result<()> {
    let own_network = "a VM has a network and processes of its own; remove the field";
    let disks = "put the data into the image, or run the pod in a cluster";
    let present = [
        (!spec.volumes.is_empty(), "spec.volumes", disks),
        (
            !spec.init_containers.is_empty(),
            "spec.initContainers",
            "do their work in the image",
        ),
        (
            !spec.ephemeral_containers.is_empty(),
            "spec.ephemeralContainers",
            "remove the field",
        ),
        (spec.host_network, "spec.hostNetwork", own_network),
        (spec.host_pid, "spec.hostPID", own_network),
        (spec.host_ipc, "spec.hostIPC", own_network),
    ];
    for (is_present, field, advice) in present {
        if is_present {
            return Err(unsupported(field, advice));
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let field = |name| format!("spec.containers[{i}].{name}");
        if !container.volume_mounts.is_empty() {
            return Err(unsupported(field("volumeMounts"), disks));
        }
        if !container.volume_devices.is_empty() {
            return Err(unsupported(field("volumeDevices"), disks));
        }
        let literal = "write name and value out under env";
        if !container.env_from.is_empty() {
            return Err(unsupported(field("envFrom"), literal));
        }
        if let Some(var) = container.env.iter().find(|var| var.value_from.is_some()) {
            return Err(unsupported(
                field(&format!("env[{}].valueFrom", var.name)),
                literal,
            ));
        }
    }
    Ok(())
}

fn dns(
    policy: Option<&str>,
    config: Option<document::DnsConfig>,
    warnings: &mut Vec<String>,
) -> Result<Option<Dns>> {
    match (policy, config) {
        (Some("None"), Some(config)) if !config.nameservers.is_empty() => {
            warn_unknown(warnings, "spec.dnsConfig.", &config.unknown);
            for server in &config.nameservers {
                if server.parse::<IpAddr>().is_err() {
                    let reason = "an IP address is needed";
                    return Err(invalid("spec.dnsConfig.nameservers", server, reason));
                }
            }
            let option = |o: document::DnsOption| match o.value {
                Some(value) => format!("{}:{value}", o.name),
                None => o.name,
            };
            Ok(Some(Dns {
                servers: config.nameservers,
                searches: config.searches,
                options: config.options.into_iter().map(option).collect(),
            }))
        }
        (Some("None"), _) => {
            let reason = "it needs spec.dnsConfig.nameservers";
            Err(invalid("spec.dnsPolicy", "None", reason))
        }
        (_, Some(_)) => {
            let advice =
                "set spec.dnsPolicy to None to use it, or remove it for the node's resolver";
            Err(unsupported("spec.dnsConfig", advice))
        }
        (Some("Default" | "ClusterFirst" | "ClusterFirstWithHostNet") | None, None) => Ok(None),
        (Some(other), None) => Err(invalid(
            "spec.dnsPolicy",
            other,
            "Default, ClusterFirst and None are allowed",
        )),
    }
}

fn uid(uid: Option<String>) -> Result<String> {
    let Some(uid) = uid else {
        return Ok(Uuid::new_v4().to_string());
    };
    let fits = (1..=64).contains(&uid.len());
    if fits && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Ok(uid);
    }
    Err(invalid(
        "metadata.uid",
        &uid,
        "1 to 64 letters, digits and dashes are allowed",
    ))
}

/// Dot-separated labels of DNS; with at most 63 characters, a single one.
fn label(field: &str, text: String, max: usize) -> Result<String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let good = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|&b| plain(b))
            && bytes.last().is_some_and(|&b| plain(b))
            && bytes.iter().all(|&b| plain(b) || b == b'-')
    };
    let is_single = max == 63;
    let fits = text.len() <= max && (!is_single || !text.contains('.'));
    if fits && text.split('.').all(good) {
        return Ok(text);
    }
    let reason = "lower-case letters, digits and inner dashes are allowed";
    Err(invalid(
        field,
        &text,
        &format!("{reason}, at most {max} characters"),
    ))
}

fn warn_unknown(warnings: &mut Vec<String>, path: &str, unknown: &Unknown) {
    warnings.extend(
        unknown
            .keys()
            .map(|field| format!("{path}{field} is not acted on")),
    );
}

fn unsupported(field: impl Into<String>, advice: &'static str) -> ManifestError {
    ManifestError::Unsupported {
        field: field.into(),
        advice,
    }
}

fn invalid(field: &str, value: &(impl ToString + ?Sized), reason: &str) -> ManifestError {
    let value = value.to_string().chars().take(80).collect();
    ManifestError::Invalid {
        field: field.to_owned(),
        value,
        reason: reason.to_owned(),
    }
}

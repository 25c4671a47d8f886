//! The container of a manifest: image, resources, published ports.
//!
//! Invariant: amounts fit the types of the wire; a request never exceeds its limit.
//! Failure: the first field that makes no sense, by its path.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podspec::parse_quantity;

use super::{Result, invalid, label, warn_unknown};
use crate::manifest::document::{self, Quantity};
use crate::manifest::{ContainerManifest, ManifestError, Port, Protocol, PullPolicy, Share};

pub(super) fn container(
    container: document::Container,
    warnings: &mut Vec<String>,
) -> Result<ContainerManifest> {
    let at = |name: &str| format!("spec.containers[0].{name}");
    warn_unknown(warnings, &at(""), &container.unknown);
    warn_unknown(warnings, &at("resources."), &container.resources.unknown);
    if !container.command.is_empty() || !container.args.is_empty() {
        warnings.push(format!(
            "{} and args do not change what a VM boots",
            at("command")
        ));
    }
    let name = label(&at("name"), container.name, 63)?;
    let image = container.image;
    if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(invalid(
            &at("image"),
            &image,
            "the name of an image is needed",
        ));
    }
    let pull = match container.image_pull_policy.as_deref() {
        None => default_pull_policy(&image),
        Some("Always") => PullPolicy::Always,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Never") => PullPolicy::Never,
        Some(other) => {
            let reason = "Always, IfNotPresent and Never are allowed";
            return Err(invalid(&at("imagePullPolicy"), other, reason));
        }
    };
    let resources = &container.resources;
    for (list, name) in [
        (&resources.limits, "limits"),
        (&resources.requests, "requests"),
    ] {
        for other in list.keys().filter(|key| *key != "cpu" && *key != "memory") {
            warnings.push(format!(
                "{} is not acted on",
                at(&format!("resources.{name}.{other}"))
            ));
        }
    }
    let share = |key: &str, parse: fn(&str) -> Result<u64, podspec::QuantityError>| {
        Ok::<_, ManifestError>(Share {
            request: quantity(&resources.requests, "requests", key, parse)?,
            limit: quantity(&resources.limits, "limits", key, parse)?,
        })
    };
    let cpu = share("cpu", thousandths)?;
    let memory = share("memory", parse_quantity)?;
    for (key, share) in [("cpu", cpu), ("memory", memory)] {
        if share
            .request
            .zip(share.limit)
            .is_some_and(|(request, limit)| request > limit)
        {
            let field = at(&format!("resources.requests.{key}"));
            let value = resources.requests.get(key).map_or("", |q| q.0.as_str());
            return Err(invalid(
                &field,
                value,
                "a request must not exceed its limit",
            ));
        }
    }
    let ports: Result<Vec<_>> = container.ports.into_iter().enumerate().map(port).collect();
    Ok(ContainerManifest {
        name,
        image,
        pull,
        command: container.command,
        args: container.args,
        env: container
            .env
            .into_iter()
            .map(|var| (var.name, var.value))
            .collect(),
        stdin: container.stdin,
        tty: container.tty,
        cpu,
        memory,
        ports: ports?.into_iter().flatten().collect(),
    })
}

/// As the API server does: a name that may come to mean another image is always requested.
fn default_pull_policy(image: &str) -> PullPolicy {
    if image.contains('@') {
        return PullPolicy::IfNotPresent;
    }
    match image
        .rsplit('/')
        .next()
        .and_then(|last| last.split_once(':'))
    {
        None | Some((_, "latest")) => PullPolicy::Always,
        Some(_) => PullPolicy::IfNotPresent,
    }
}

/// `None` for a port that is not published: the pod's address serves it anyway.
fn port((i, port): (usize, document::Port)) -> Result<Option<Port>> {
    let at = |name: &str| format!("spec.containers[0].ports[{i}].{name}");
    let number = |name: &str, value: i64| match u16::try_from(value) {
        Ok(number @ 1..) => Ok(number),
        _ => Err(invalid(
            &at(name),
            &value,
            "ports are numbers from 1 to 65535",
        )),
    };
    let container = number("containerPort", port.container_port)?;
    let protocol = match port.protocol.as_deref().unwrap_or("TCP") {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => {
            return Err(invalid(
                &at("protocol"),
                other,
                "TCP, UDP and SCTP are allowed",
            ));
        }
    };
    let host_ip = port.host_ip.unwrap_or_default();
    if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err() {
        return Err(invalid(&at("hostIP"), &host_ip, "an IP address is needed"));
    }
    match port.host_port {
        None | Some(0) => Ok(None),
        Some(host) => {
            let host = number("hostPort", host)?;
            Ok(Some(Port {
                protocol,
                container,
                host,
                host_ip,
            }))
        }
    }
}

fn quantity(
    list: &BTreeMap<String, Quantity>,
    which: &str,
    key: &str,
    parse: fn(&str) -> Result<u64, podspec::QuantityError>,
) -> Result<Option<u64>> {
    let Some(Quantity(text)) = list.get(key) else {
        return Ok(None);
    };
    let fits = |n: u64| i64::try_from(n).is_ok_and(|n| n < i64::MAX / 1024);
    let field = format!("spec.containers[0].resources.{which}.{key}");
    match parse(text) {
        Ok(number) if fits(number) => Ok(Some(number)),
        Ok(_) => Err(invalid(&field, text, "too large")),
        Err(error) => Err(invalid(&field, text, &error.to_string())),
    }
}

/// CPUs in thousandths, rounded up.
fn thousandths(text: &str) -> Result<u64, podspec::QuantityError> {
    match text.strip_suffix('m') {
        Some(number) => parse_quantity(number),
        None => parse_quantity(&format!("{text}e3")),
    }
}

//! Conversions of pod sandboxes.
//!
//! Invariant: a sandbox that would share a namespace of the node never gets past here.
//! Failure: [`Invalid`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use cri_proto::v1;
use cri_proto::v1::NamespaceMode as Mode;

use super::{Invalid, Result, check};
use crate::sandbox::state::Phase;
use crate::sandbox::{
    DnsConfig, Namespaces, PROCESS_HANDLER, PodMetadata, PortMapping, Protocol, Sandbox,
    SandboxConfig,
};

/// The handler of pods whose container is a virtual machine, besides the default one.
pub(in crate::cri) const HANDLER: &str = "vmlet";

const MOST_PORTS: usize = 1024;
const MOST_DNS_WORDS: usize = 64;

/// What a client requests.
pub(in crate::cri) fn config(request: v1::RunPodSandboxRequest) -> Result<SandboxConfig> {
    let v1::RunPodSandboxRequest {
        config,
        runtime_handler,
    } = request;
    if !["", HANDLER, PROCESS_HANDLER].contains(&runtime_handler.as_str()) {
        let reason = format!("only {HANDLER:?}, {PROCESS_HANDLER:?} or nothing is allowed");
        return Err(Invalid::new("runtime_handler", reason));
    }
    let config = config.ok_or_else(|| Invalid::missing("config"))?;
    let linux = config.linux.unwrap_or_default();
    let options = linux.security_context.and_then(|c| c.namespace_options);
    let resources = linux.resources.unwrap_or_default();
    let overhead = linux.overhead.unwrap_or_default();
    Ok(SandboxConfig {
        metadata: metadata(config.metadata)?,
        hostname: hostname(config.hostname)?,
        log_directory: check::absolute_path("config.log_directory", config.log_directory)?,
        dns: config.dns_config.map(dns).transpose()?,
        port_mappings: check::list(
            "config.port_mappings",
            config.port_mappings,
            MOST_PORTS,
            port_mapping,
        )?,
        labels: check::map("config.labels", config.labels)?,
        annotations: check::map("config.annotations", config.annotations)?,
        runtime_handler,
        cgroup_parent: check::path("config.linux.cgroup_parent", linux.cgroup_parent)?,
        namespaces: namespaces(
            "config.linux.security_context.namespace_options",
            options.unwrap_or_default(),
        )?,
        resources: podspec::PodResources {
            cpu_quota: resources.cpu_quota,
            cpu_period: resources.cpu_period,
            memory_limit: resources.memory_limit_in_bytes,
        },
        sysctls: sysctls(linux.sysctls)?,
        memory_overhead: overhead.memory_limit_in_bytes,
    })
}

fn metadata(metadata: Option<v1::PodSandboxMetadata>) -> Result<PodMetadata> {
    let metadata = metadata.ok_or_else(|| Invalid::missing("config.metadata"))?;
    Ok(PodMetadata {
        name: check::name("config.metadata.name", metadata.name)?,
        uid: check::name("config.metadata.uid", metadata.uid)?,
        namespace: check::name("config.metadata.namespace", metadata.namespace)?,
        attempt: metadata.attempt,
    })
}

fn hostname(name: String) -> Result<String> {
    if name.is_empty() {
        return Ok(name);
    }
    check::name("config.hostname", name)
}

fn dns(dns: v1::DnsConfig) -> Result<DnsConfig> {
    let strings = |field, values| check::strings(field, values, MOST_DNS_WORDS);
    Ok(DnsConfig {
        servers: strings("config.dns_config.servers", dns.servers)?,
        searches: strings("config.dns_config.searches", dns.searches)?,
        options: strings("config.dns_config.options", dns.options)?,
    })
}

fn sysctls(given: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    const FIELD: &str = "config.linux.sysctls";
    let count = given.len();
    if count > guestapi::SETTINGS {
        let reason = format!("{count} are more than {}", guestapi::SETTINGS);
        return Err(Invalid::new(FIELD, reason));
    }
    check::map(FIELD, given)
}

fn port_mapping(field: &str, mapping: v1::PortMapping) -> Result<PortMapping> {
    let of = |name| format!("{field}.{name}");
    let port = |name, number: i32, lowest: u16| {
        let port = u16::try_from(number).ok().filter(|port| *port >= lowest);
        let reason = || format!("{number} is not a port from {lowest} to 65535");
        port.ok_or_else(|| Invalid::new(of(name), reason()))
    };
    if !mapping.host_ip.is_empty() && mapping.host_ip.parse::<IpAddr>().is_err() {
        return Err(Invalid::new(of("host_ip"), "an IP address is allowed"));
    }
    Ok(PortMapping {
        protocol: match check::known(&of("protocol"), mapping.protocol)? {
            v1::Protocol::Tcp => Protocol::Tcp,
            v1::Protocol::Udp => Protocol::Udp,
            v1::Protocol::Sctp => Protocol::Sctp,
        },
        container_port: port("container_port", mapping.container_port, 1)?,
        host_port: port("host_port", mapping.host_port, 0)?,
        host_ip: mapping.host_ip,
    })
}

/// Refuses what a virtual machine cannot share with its node.
pub(super) fn namespaces(field: &str, options: v1::NamespaceOption) -> Result<Namespaces> {
    let not_of_node = |name: &str, what: &str, number| {
        let field = format!("{field}.{name}");
        if check::known::<Mode>(&field, number)? == Mode::Node {
            let reason = format!("a virtual machine cannot share the node's {what} namespace");
            return Err(Invalid::new(field, reason));
        }
        Ok(number)
    };
    if let Some(users) = options.userns_options {
        let field = format!("{field}.userns_options.mode");
        if check::known::<Mode>(&field, users.mode)? != Mode::Node {
            let reason = "a virtual machine has users of its own: user namespaces are not for it";
            return Err(Invalid::new(field, reason));
        }
    }
    Ok(Namespaces {
        network: not_of_node("network", "network", options.network)?,
        pid: not_of_node("pid", "process", options.pid)?,
        ipc: not_of_node("ipc", "IPC", options.ipc)?,
        target_id: check::text(&format!("{field}.target_id"), options.target_id)?,
    })
}

/// The CRI state of a phase.
pub(in crate::cri) const fn state(phase: Phase) -> v1::PodSandboxState {
    match phase {
        Phase::Ready => v1::PodSandboxState::SandboxReady,
        Phase::Creating | Phase::Stopping | Phase::Stopped | Phase::Removing => {
            v1::PodSandboxState::SandboxNotready
        }
    }
}

/// As an item of a list.
pub(in crate::cri) fn item(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: Some(wire_metadata(&sandbox.config.metadata)),
        state: state(sandbox.phase).into(),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.config.runtime_handler.clone(),
    }
}

/// The status of a sandbox, with every field that the CRI has for it and Vmlet knows.
pub(in crate::cri) fn status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let namespaces = &sandbox.config.namespaces;
    let options = v1::NamespaceOption {
        network: namespaces.network,
        pid: namespaces.pid,
        ipc: namespaces.ipc,
        target_id: namespaces.target_id.clone(),
        userns_options: None,
    };
    let namespaces = v1::Namespace {
        options: Some(options),
    };
    v1::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: Some(wire_metadata(&sandbox.config.metadata)),
        state: state(sandbox.phase).into(),
        created_at: sandbox.created_at,
        network: Some(network(sandbox)),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(namespaces),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.config.runtime_handler.clone(),
    }
}

/// Addresses are reported only while they are the pod's.
fn network(sandbox: &Sandbox) -> v1::PodSandboxNetworkStatus {
    let network = sandbox.network.as_ref();
    let network = network.filter(|_| sandbox.phase == Phase::Ready);
    let mut ips = network.into_iter().flat_map(|n| n.ips());
    v1::PodSandboxNetworkStatus {
        ip: ips.next().map_or_else(String::new, |ip| ip.to_string()),
        additional_ips: ips.map(|ip| v1::PodIp { ip: ip.to_string() }).collect(),
    }
}

pub(super) fn wire_metadata(metadata: &PodMetadata) -> v1::PodSandboxMetadata {
    v1::PodSandboxMetadata {
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        namespace: metadata.namespace.clone(),
        attempt: metadata.attempt,
    }
}

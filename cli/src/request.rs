//! Creates CRI requests from a manifest, with the labels and annotations that kubelet would set.
//!
//! Invariant: the pod's labels and annotations pass unchanged; ours are added under kubelet's
//! names.
//! Failure: none; the manifest has been checked.

use std::collections::BTreeMap;

use cri_proto::v1::{
    ContainerConfig, ContainerMetadata, DnsConfig, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol as WireProtocol,
};

use crate::manifest::{PodManifest, Port, Protocol, Share};

pub(crate) const LABEL_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const LABEL_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const LABEL_UID: &str = "io.kubernetes.pod.uid";
const LABEL_CONTAINER: &str = "io.kubernetes.container.name";
const ANNOTATION_RESTARTS: &str = "io.kubernetes.container.restartCount";
/// Seconds of grace, kept with the container so that a later `stop` knows them.
pub(crate) const ANNOTATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Microseconds.
const CPU_PERIOD: i64 = 100_000;
const MIN_CPU_QUOTA: i64 = 1000;
const MIN_CPU_SHARES: i64 = 2;

/// Labels by which the sandboxes of one pod name are found, of whatever run.
pub(crate) fn name_labels(pod: &PodManifest) -> BTreeMap<String, String> {
    labels([(LABEL_NAME, &pod.name), (LABEL_NAMESPACE, &pod.namespace)])
}

/// Labels by which the sandboxes of this very run are found.
pub(crate) fn uid_labels(pod: &PodManifest) -> BTreeMap<String, String> {
    labels([(LABEL_UID, &pod.uid)])
}

pub(crate) fn sandbox(pod: &PodManifest, log_directory: &str) -> PodSandboxConfig {
    let mut labels = pod.labels.clone();
    labels.extend(name_labels(pod));
    labels.extend(uid_labels(pod));
    let resources = resources(pod.container.cpu, pod.container.memory);
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
            attempt: 0,
        }),
        hostname: pod.hostname.clone(),
        log_directory: log_directory.to_owned(),
        dns_config: pod.dns.as_ref().map(|dns| DnsConfig {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        }),
        port_mappings: pod.container.ports.iter().map(port_mapping).collect(),
        labels,
        annotations: pod.annotations.clone(),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: NamespaceMode::Pod.into(),
                    pid: NamespaceMode::Container.into(),
                    ipc: NamespaceMode::Pod.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            resources: Some(resources),
            ..Default::default()
        }),
        windows: None,
    }
}

/// The image as the manifest names it.
pub(crate) fn image(pod: &PodManifest) -> ImageSpec {
    ImageSpec {
        image: pod.container.image.clone(),
        user_specified_image: pod.container.image.clone(),
        annotations: pod.annotations.clone(),
        ..Default::default()
    }
}

/// `image_id` is what the pull returned.
pub(crate) fn container(pod: &PodManifest, image_id: &str) -> ContainerConfig {
    let spec = &pod.container;
    let mut labels = name_labels(pod);
    labels.extend(uid_labels(pod));
    labels.insert(LABEL_CONTAINER.to_owned(), spec.name.clone());
    let annotations = BTreeMap::from([
        (ANNOTATION_RESTARTS.to_owned(), "0".to_owned()),
        (ANNOTATION_GRACE.to_owned(), pod.grace.to_string()),
    ]);
    let env = |(key, value): &(String, String)| KeyValue {
        key: key.clone(),
        value: value.clone().into_bytes(),
    };
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: spec.name.clone(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image_id.to_owned(),
            ..image(pod)
        }),
        command: spec.command.clone(),
        args: spec.args.clone(),
        envs: spec.env.iter().map(env).collect(),
        labels,
        annotations,
        log_path: log_path(pod),
        stdin: spec.stdin,
        tty: spec.tty,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(spec.cpu, spec.memory)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Below the pod's log directory, as kubelet names it.
pub(crate) fn log_path(pod: &PodManifest) -> String {
    format!("{}/0.log", pod.container.name)
}

/// CPU in thousandths and memory in bytes to cgroup values, as kubelet computes them.
fn resources(cpu: Share, memory: Share) -> LinuxContainerResources {
    // The manifest bounds both far below the largest i64.
    let wire = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    LinuxContainerResources {
        cpu_period: cpu.limit.map_or(0, |_| CPU_PERIOD),
        cpu_quota: cpu.limit.map_or(0, |limit| {
            (wire(limit) * (CPU_PERIOD / 1000)).max(MIN_CPU_QUOTA)
        }),
        cpu_shares: cpu.request.or(cpu.limit).map_or(MIN_CPU_SHARES, |share| {
            (wire(share) * 1024 / 1000).max(MIN_CPU_SHARES)
        }),
        memory_limit_in_bytes: memory.limit.map_or(0, wire),
        ..Default::default()
    }
}

fn port_mapping(port: &Port) -> PortMapping {
    let protocol = match port.protocol {
        Protocol::Tcp => WireProtocol::Tcp,
        Protocol::Udp => WireProtocol::Udp,
        Protocol::Sctp => WireProtocol::Sctp,
    };
    PortMapping {
        protocol: protocol.into(),
        container_port: port.container.into(),
        host_port: port.host.into(),
        host_ip: port.host_ip.clone(),
    }
}

fn labels<const N: usize>(pairs: [(&str, &String); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_computed_as_kubelet_does() {
        let share = |request, limit| Share { request, limit };
        let both = resources(share(Some(500), Some(1500)), share(None, Some(1 << 27)));
        assert_eq!(
            (both.cpu_shares, both.cpu_quota, both.cpu_period),
            (512, 150_000, 100_000)
        );
        assert_eq!(both.memory_limit_in_bytes, 134_217_728);
        let limit_only = resources(share(None, Some(1)), Share::default());
        assert_eq!((limit_only.cpu_shares, limit_only.cpu_quota), (2, 1000));
        let none = resources(Share::default(), Share::default());
        assert_eq!(
            (none.cpu_shares, none.cpu_quota, none.cpu_period),
            (2, 0, 0)
        );
    }

    #[test]
    fn a_pod_without_memory_limit_is_not_limited_by_its_request() {
        let request = Share {
            request: Some(1 << 20),
            limit: None,
        };
        assert_eq!(
            resources(Share::default(), request).memory_limit_in_bytes,
            0
        );
    }
}

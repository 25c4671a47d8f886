//! Tests of what is refused, what is echoed, and that no bytes make it panic.
//!
//! Invariant: requests start from one that is valid, so that each refusal has one cause.
//! Failure: a failing test names the field.

use std::collections::BTreeMap;
use std::time::Duration;

use cri_proto::v1;
use cri_proto::v1::NamespaceMode;
use rstest::rstest;

use super::{container, image, sandbox};

mod containers;
mod random;

fn pod() -> v1::RunPodSandboxRequest {
    let linux = v1::LinuxPodSandboxConfig {
        cgroup_parent: "/kubepods/besteffort/pod1".into(),
        security_context: Some(v1::LinuxSandboxSecurityContext {
            namespace_options: Some(v1::NamespaceOption {
                pid: NamespaceMode::Container.into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        resources: Some(v1::LinuxContainerResources {
            cpu_quota: 150_000,
            cpu_period: 100_000,
            memory_limit_in_bytes: 1 << 30,
            ..Default::default()
        }),
        ..Default::default()
    };
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web-0".into(),
            uid: "8f7a".into(),
            namespace: "default".into(),
            attempt: 2,
        }),
        hostname: "web-0".into(),
        log_directory: "/var/log/pods/default_web-0_8f7a".into(),
        dns_config: Some(v1::DnsConfig {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        }),
        port_mappings: vec![v1::PortMapping {
            protocol: v1::Protocol::Udp.into(),
            container_port: 53,
            host_port: 5353,
            host_ip: "127.0.0.1".into(),
        }],
        labels: BTreeMap::from([("app".into(), "web\n".into())]),
        annotations: BTreeMap::from([("vmlet.dev/vcpu-count".into(), "2".into())]),
        linux: Some(linux),
        windows: None,
    };
    v1::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: "vmlet".into(),
    }
}

fn machine() -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: "vm".into(),
            attempt: 1,
        }),
        image: Some(v1::ImageSpec {
            image: "sha256:ab".into(),
            user_specified_image: "example.org/disk:1".into(),
            ..Default::default()
        }),
        log_path: "vm/0.log".into(),
        mounts: vec![v1::Mount {
            container_path: "/etc/hosts".into(),
            host_path: "/var/lib/kubelet/pods/x/etc-hosts".into(),
            readonly: true,
            ..Default::default()
        }],
        devices: vec![v1::Device {
            container_path: "/".into(),
            host_path: "/var/lib/kubelet/pods/x/volumeDevices/y/z".into(),
            permissions: "mrw".into(),
        }],
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                hugepage_limits: vec![v1::HugepageLimit {
                    page_size: "2Mi".into(),
                    limit: 7,
                }],
                ..Default::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext::default()),
        }),
        stop_signal: v1::Signal::Sigint.into(),
        ..Default::default()
    }
}

/// The valid pod, changed.
fn pod_with(change: impl FnOnce(&mut v1::PodSandboxConfig)) -> v1::RunPodSandboxRequest {
    let mut request = pod();
    change(request.config.as_mut().unwrap());
    request
}

fn refused_field(request: v1::RunPodSandboxRequest) -> String {
    sandbox::config(request).unwrap_err().field
}

#[test]
fn a_pod_is_taken_over_as_it_is() {
    let config = sandbox::config(pod()).unwrap();
    assert_eq!(config.metadata.name, "web-0");
    assert_eq!(config.metadata.attempt, 2);
    assert_eq!(config.labels["app"], "web\n");
    assert_eq!(config.port_mappings[0].container_port, 53);
    assert_eq!(config.dns.unwrap().options, ["ndots:5"]);
    assert_eq!(config.namespaces.pid, i32::from(NamespaceMode::Container));
    assert_eq!(config.resources.memory_limit, 1 << 30);
    assert_eq!(config.cgroup_parent, "/kubepods/besteffort/pod1");
}

#[test]
fn what_only_kubelet_sends_may_be_absent() {
    let request = pod_with(|config| {
        *config = v1::PodSandboxConfig {
            metadata: config.metadata.clone(),
            ..Default::default()
        };
    });
    let config = sandbox::config(request).unwrap();
    assert_eq!(config.log_directory, "");
    assert_eq!(config.dns, None);
}

#[test]
fn a_pod_without_its_names_is_refused_naming_the_field() {
    let mut request = pod();
    request.config = None;
    assert_eq!(refused_field(request), "config");
    assert_eq!(
        refused_field(pod_with(|c| c.metadata = None)),
        "config.metadata"
    );
    for name in ["name", "uid", "namespace"] {
        let request = pod_with(|c| {
            let metadata = c.metadata.as_mut().unwrap();
            match name {
                "name" => metadata.name.clear(),
                "uid" => metadata.uid.clear(),
                _ => metadata.namespace.clear(),
            }
        });
        assert_eq!(refused_field(request), format!("config.metadata.{name}"));
    }
}

#[rstest]
#[case::cni_arguments("a;K8S_POD_NAMESPACE=kube-system")]
#[case::path("../../etc")]
#[case::newline("a\nb")]
#[case::space("a b")]
#[case::not_ascii("ä")]
fn names_that_would_mean_more_elsewhere_are_refused(#[case] name: &str) {
    let request = pod_with(|c| c.metadata.as_mut().unwrap().name = name.into());
    assert_eq!(refused_field(request), "config.metadata.name");
}

#[rstest]
#[case::network(v1::NamespaceOption { network: 2, ..Default::default() }, "network")]
#[case::pid(v1::NamespaceOption { pid: 2, ..Default::default() }, "pid")]
#[case::ipc(v1::NamespaceOption { ipc: 2, ..Default::default() }, "ipc")]
#[case::unknown(v1::NamespaceOption { ipc: 9, ..Default::default() }, "ipc")]
#[case::users(
    v1::NamespaceOption { userns_options: Some(v1::UserNamespace::default()), ..Default::default() },
    "userns_options.mode"
)]
fn namespaces_of_the_node_are_refused_for_pods_and_containers(
    #[case] options: v1::NamespaceOption,
    #[case] name: &str,
) {
    let request = pod_with(|c| {
        let context = v1::LinuxSandboxSecurityContext {
            namespace_options: Some(options.clone()),
            ..Default::default()
        };
        c.linux.as_mut().unwrap().security_context = Some(context);
    });
    let field = refused_field(request);
    assert!(
        field.ends_with(&format!("namespace_options.{name}")),
        "{field}"
    );

    let mut config = machine();
    let linux = config.linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().namespace_options = Some(options);
    let field = container::config(Some(config)).unwrap_err().field;
    assert!(
        field.ends_with(&format!("namespace_options.{name}")),
        "{field}"
    );
}

#[test]
fn users_of_the_node_are_what_a_machine_gets_anyway() {
    let options = v1::NamespaceOption {
        userns_options: Some(v1::UserNamespace {
            mode: NamespaceMode::Node.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert!(sandbox::namespaces("options", options).is_ok());
}

#[rstest]
#[case::no_container_port(0, 0, 80, "", "container_port")]
#[case::large_container_port(0, 65_536, 80, "", "container_port")]
#[case::negative_host_port(0, 80, -1, "", "host_port")]
#[case::unknown_protocol(3, 80, 80, "", "protocol")]
#[case::bad_address(0, 80, 80, "localhost", "host_ip")]
fn impossible_ports_are_refused(
    #[case] protocol: i32,
    #[case] container_port: i32,
    #[case] host_port: i32,
    #[case] host_ip: &str,
    #[case] name: &str,
) {
    let mapping = v1::PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip: host_ip.into(),
    };
    let request = pod_with(|c| c.port_mappings.push(mapping));
    assert_eq!(
        refused_field(request),
        format!("config.port_mappings[1].{name}")
    );
}

#[test]
fn bounds_and_paths_of_a_pod_are_checked() {
    let large = BTreeMap::from([("k".to_owned(), "v".repeat(600 * 1024))]);
    let labels = large.clone();
    assert_eq!(
        refused_field(pod_with(|c| c.labels = labels)),
        "config.labels"
    );
    assert_eq!(
        refused_field(pod_with(|c| c.annotations = large)),
        "config.annotations"
    );
    for path in ["var/log", "/var/../etc", "/var\0"] {
        let request = pod_with(|c| c.log_directory = path.into());
        assert_eq!(refused_field(request), "config.log_directory", "{path:?}");
    }
    let request = pod_with(|c| c.linux.as_mut().unwrap().cgroup_parent = "/kubepods/../..".into());
    assert_eq!(refused_field(request), "config.linux.cgroup_parent");
    let mut request = pod();
    request.runtime_handler = "runc".into();
    assert_eq!(refused_field(request), "runtime_handler");
    let request = pod_with(|c| c.dns_config.as_mut().unwrap().servers.push("a b".into()));
    assert_eq!(refused_field(request), "config.dns_config.servers");
}

#[test]
fn an_image_needs_a_name() {
    assert_eq!(image::spec("image", None).unwrap_err().field, "image");
    let long = v1::ImageSpec {
        image: "x".repeat(5000),
        ..Default::default()
    };
    assert_eq!(
        image::spec("image", Some(long)).unwrap_err().field,
        "image.image"
    );
}

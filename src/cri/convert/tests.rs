//! Tests of what is refused, what is echoed, and that no bytes make it panic.
//!
//! Invariant: requests start from one that is valid, so that each refusal has one cause.
//! Failure: a failing test names the field.

use std::collections::BTreeMap;
use std::time::Duration;

use cri_proto::v1;
use cri_proto::v1::NamespaceMode;
use proptest::prelude::*;
use prost::Message;
use rstest::rstest;

use super::{container, image, sandbox};

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
fn a_container_is_taken_over_as_it_is() {
    let config = container::config(Some(machine())).unwrap();
    assert_eq!(config.metadata.name, "vm");
    assert_eq!(config.image.user_specified_image, "example.org/disk:1");
    assert_eq!(config.mounts[0].container_path, "/etc/hosts");
    assert_eq!(config.devices[0].container_path, "/");
    assert_eq!(config.devices[0].permissions, "mrw");
    assert_eq!(config.resources.hugepage_limits, [("2Mi".to_owned(), 7)]);
    assert_eq!(config.stop_signal, i32::from(v1::Signal::Sigint));
}

#[test]
fn paths_in_a_container_are_cleaned_and_those_of_the_node_stay() {
    let mut request = machine();
    request.mounts[0].container_path = "/srv/data/".into();
    request.mounts[0].host_path = "/var//lib/".into();
    request.devices[0].container_path = "/dev//./data/".into();
    let config = container::config(Some(request)).unwrap();
    let mount = &config.mounts[0];
    assert_eq!(
        (mount.container_path.as_str(), mount.host_path.as_str()),
        ("/srv/data", "/var//lib/")
    );
    assert_eq!(config.devices[0].container_path, "/dev/data");
}

#[test]
fn two_spellings_of_one_path_are_refused() {
    let with = |other: &str| {
        let mut request = machine();
        let mut mount = request.mounts[0].clone();
        request.mounts[0].container_path = "/srv/a".into();
        mount.container_path = other.into();
        request.mounts.push(mount);
        container::config(Some(request)).map(|config| config.mounts.len())
    };
    let last = with("/srv/a/b").unwrap();
    // kubelet adds a file of its own over the user's.
    assert_eq!(with("/srv/a").unwrap(), last);
    for other in ["/srv/a/", "/srv//a", "/srv/./a"] {
        let text = with(other).unwrap_err().to_string();
        let words = format!(
            "config.mounts[{}].container_path: something else is mounted at /srv/a, and {other} is the \
             same path",
            last - 1
        );
        assert!(text.starts_with(&words), "{text}");
    }
}

#[rstest]
#[case::metadata(|c: &mut v1::ContainerConfig| c.metadata = None, "config.metadata")]
#[case::name(|c: &mut v1::ContainerConfig| c.metadata = Some(Default::default()), "config.metadata.name")]
#[case::image(|c: &mut v1::ContainerConfig| c.image = None, "config.image")]
#[case::empty_image(|c: &mut v1::ContainerConfig| c.image = Some(Default::default()), "config.image.image")]
#[case::climbing_log(|c: &mut v1::ContainerConfig| c.log_path = "../x".into(), "config.log_path")]
#[case::absolute_log(|c: &mut v1::ContainerConfig| c.log_path = "/etc/x".into(), "config.log_path")]
#[case::signal(|c: &mut v1::ContainerConfig| c.stop_signal = 99, "config.stop_signal")]
#[case::no_path(|c: &mut v1::ContainerConfig| c.mounts[0].container_path.clear(), "config.mounts[0].container_path")]
#[case::relative(|c: &mut v1::ContainerConfig| c.mounts[0].host_path = "x".into(), "config.mounts[0].host_path")]
#[case::propagation(|c: &mut v1::ContainerConfig| c.mounts[0].propagation = 7, "config.mounts[0].propagation")]
#[case::image_mount(
    |c: &mut v1::ContainerConfig| c.mounts[0].image = Some(Default::default()),
    "config.mounts[0].image"
)]
#[case::rro_writable(
    |c: &mut v1::ContainerConfig| {
        c.mounts[0].recursive_read_only = true;
        c.mounts[0].readonly = false;
    },
    "config.mounts[0].recursive_read_only"
)]
#[case::rro_propagated(
    |c: &mut v1::ContainerConfig| {
        c.mounts[0].recursive_read_only = true;
        c.mounts[0].propagation = 1;
    },
    "config.mounts[0].recursive_read_only"
)]
#[case::relative_device(|c: &mut v1::ContainerConfig| c.devices[0].host_path = "x".into(), "config.devices[0].host_path")]
#[case::device_without_path(|c: &mut v1::ContainerConfig| c.devices[0].container_path.clear(), "config.devices[0].container_path")]
#[case::group_alone(
    |c: &mut v1::ContainerConfig| {
        let context = c.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.run_as_group = Some(v1::Int64Value { value: 1 });
    },
    "config.linux.security_context.run_as_group"
)]
fn a_container_that_makes_no_sense_is_refused_naming_the_field(
    #[case] change: fn(&mut v1::ContainerConfig),
    #[case] field: &str,
) {
    let mut config = machine();
    change(&mut config);
    assert_eq!(container::config(Some(config)).unwrap_err().field, field);
    assert_eq!(container::config(None).unwrap_err().field, "config");
}

#[test]
fn a_group_with_a_user_is_fine() {
    let mut config = machine();
    let linux = config.linux.as_mut().unwrap();
    let context = linux.security_context.as_mut().unwrap();
    context.run_as_group = Some(v1::Int64Value { value: 1 });
    context.run_as_username = "web".into();
    assert!(container::config(Some(config)).is_ok());
}

#[test]
fn a_negative_grace_is_none_and_a_long_one_can_be_added_to_now() {
    assert_eq!(container::grace(-5), Duration::ZERO);
    assert_eq!(container::grace(30), Duration::from_secs(30));
    let longest = container::grace(i64::MAX);
    assert!(std::time::Instant::now().checked_add(longest).is_some());
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

/// Reads what decodes; the outcome does not matter.
fn read(bytes: &[u8]) {
    if let Ok(request) = v1::RunPodSandboxRequest::decode(bytes) {
        let _ = sandbox::config(request);
    }
    if let Ok(request) = v1::CreateContainerRequest::decode(bytes) {
        let _ = container::config(request.config);
    }
    if let Ok(request) = v1::PullImageRequest::decode(bytes) {
        let _ = image::spec("image", request.image);
    }
    if let Ok(request) = v1::StopContainerRequest::decode(bytes) {
        container::grace(request.timeout);
    }
    if let Ok(request) = v1::ListPodSandboxRequest::decode(bytes) {
        crate::cri::filter::sandboxes(Vec::new(), request.filter);
    }
    if let Ok(request) = v1::ListContainersRequest::decode(bytes) {
        crate::cri::filter::containers(Vec::new(), request.filter);
    }
}

/// A valid request of each big kind, encoded.
fn valid_requests() -> [Vec<u8>; 2] {
    let create = v1::CreateContainerRequest {
        pod_sandbox_id: "ab".into(),
        config: Some(machine()),
        sandbox_config: pod().config,
    };
    [pod().encode_to_vec(), create.encode_to_vec()]
}

proptest! {
    #[test]
    fn random_bytes_never_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read(&bytes);
    }

    #[test]
    fn damaged_requests_never_make_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        for mut bytes in valid_requests() {
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            if cut {
                bytes.truncate(length.index(bytes.len()));
            }
            read(&bytes);
        }
    }

    #[test]
    fn whatever_passes_has_safe_names(name in ".{0,300}", path in ".{0,40}") {
        let request = pod_with(|c| {
            c.metadata.as_mut().unwrap().name = name;
            c.log_directory = path;
        });
        if let Ok(config) = sandbox::config(request) {
            prop_assert!((1..=253).contains(&config.metadata.name.len()));
            prop_assert!(!config.metadata.name.contains([';', '=', '/', ' ', '\n']));
            prop_assert!(config.log_directory.is_empty() || config.log_directory.starts_with('/'));
            prop_assert!(!config.log_directory.split('/').any(|part| part == ".."));
        }
    }
}

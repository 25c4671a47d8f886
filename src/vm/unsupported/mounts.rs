//! Mounts that do not reach a guest.
//!
//! Invariant: a mount is named by its path in the pod and by the volume it comes from, as far as
//! kubelet's paths show it.
//! Failure: none.

use super::super::model::Mount;
use super::super::shares::Protocol;
use super::finding::Finding;

/// Where kubelet mounts the token of the pod's service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What kubelet mounts into every container besides.
const OF_EVERY_POD: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];

/// CRI's `PROPAGATION_HOST_TO_CONTAINER`.
const HOST_TO_CONTAINER: i32 = 1;
/// CRI's `PROPAGATION_BIDIRECTIONAL`.
const BIDIRECTIONAL: i32 = 2;

/// Where what is mounted comes from.
#[derive(Debug, PartialEq, Eq)]
enum Origin<'a> {
    /// Every pod has it.
    EveryPod,
    /// A volume: its kind, and its name as kubelet has it.
    Volume(String, &'a str),
    /// A path of the node.
    Node(&'a str),
}

pub(super) fn findings<'a>(
    pod_uid: &str,
    mounts: impl IntoIterator<Item = &'a Mount>,
) -> Vec<Finding> {
    let of = |mount: &Mount| {
        let from = match origin(pod_uid, mount) {
            Origin::EveryPod => return None,
            Origin::Volume(kind, name) => format!("volume {name}, {kind}"),
            Origin::Node(path) => format!("{path} of the node"),
        };
        let path = &mount.container_path;
        let finding = if mount.readonly {
            Finding::new(format!(
                "the mount {path} ({from}) does not reach the guest"
            ))
        } else {
            Finding {
                loses_data: true,
                ..Finding::new(format!(
                    "the mount {path} ({from}) does not reach the guest, so what is written there \
                     is not kept"
                ))
            }
        };
        Some(finding)
    };
    mounts.into_iter().filter_map(of).collect()
}

/// Mounts of the guest, which the node cannot see, and mounts of the node that the guest does not.
pub(super) fn of_propagation(mount: &Mount, by: Protocol) -> Option<Finding> {
    let path = &mount.container_path;
    match (mount.propagation, by) {
        (BIDIRECTIONAL, _) => Some(Finding::new(format!(
            "what the guest mounts below {path} does not reach the node: a guest has its own kernel"
        ))),
        (HOST_TO_CONTAINER, Protocol::NineP) => Some(Finding::new(format!(
            "what the node mounts below {path} after the start does not reach the guest: \
             vmlet.dev/shares is 9p"
        ))),
        _ => None,
    }
}

fn origin<'a>(pod_uid: &str, mount: &'a Mount) -> Origin<'a> {
    let path = mount.container_path.trim_end_matches('/');
    if path == TOKEN || OF_EVERY_POD.contains(&path) {
        return Origin::EveryPod;
    }
    let host = mount.host_path.as_str();
    let below = format!("/pods/{pod_uid}/");
    let Some((_, rest)) = host.split_once(&below).filter(|_| !pod_uid.is_empty()) else {
        return Origin::Node(host);
    };
    let mut parts = rest.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        // The termination log, wherever the pod wants it.
        (Some("containers" | "etc-hosts"), ..) => Origin::EveryPod,
        (Some("volumes"), Some(plugin), Some(name)) => Origin::Volume(kind(plugin), name),
        (Some("volume-subpaths"), Some(name), _) => Origin::Volume("subPath".to_owned(), name),
        _ => Origin::Node(host),
    }
}

/// The volume's field in a Pod, for a plugin such as `kubernetes.io~empty-dir`.
fn kind(plugin: &str) -> String {
    let plugin = plugin.rsplit('~').next().unwrap_or(plugin);
    match plugin {
        "configmap" => "configMap",
        "downward-api" => "downwardAPI",
        "empty-dir" => "emptyDir",
        other => other,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const POD: &str = "0d1f4ad2";

    fn mount(inside: &str, host: &str, readonly: bool) -> Mount {
        Mount {
            container_path: inside.to_owned(),
            host_path: host.replace("POD", &format!("/var/lib/kubelet/pods/{POD}")),
            readonly,
            ..Mount::default()
        }
    }

    #[rstest]
    #[case(TOKEN, "POD/volumes/kubernetes.io~projected/kube-api-access-x")]
    #[case("/etc/hosts", "POD/etc-hosts")]
    #[case("/dev/termination-log", "POD/containers/vm/1a2b")]
    #[case("/var/log/end", "POD/containers/vm/1a2b")]
    fn what_every_pod_has_is_no_finding(#[case] inside: &str, #[case] host: &str) {
        assert_eq!(findings(POD, &[mount(inside, host, false)]), []);
    }

    #[rstest]
    #[case("POD/volumes/kubernetes.io~empty-dir/tmp", "volume tmp, emptyDir")]
    #[case("POD/volumes/kubernetes.io~configmap/conf", "volume conf, configMap")]
    #[case("POD/volumes/kubernetes.io~secret/keys", "volume keys, secret")]
    #[case("POD/volumes/kubernetes.io~csi/pvc-1/mount", "volume pvc-1, csi")]
    #[case("POD/volume-subpaths/data/vm/0", "volume data, subPath")]
    #[case("/srv/data", "/srv/data of the node")]
    #[case(
        "/var/lib/kubelet/pods/other/volumes/kubernetes.io~csi/x",
        "/var/lib/kubelet/pods/other/volumes/kubernetes.io~csi/x of the node"
    )]
    fn a_mount_is_named_by_its_volume(#[case] host: &str, #[case] from: &str) {
        let found = findings(
            POD,
            &[mount("/data", host, false), mount("/conf", host, true)],
        );
        let [writable, readonly] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert!(writable.loses_data && !readonly.loses_data);
        assert!(
            writable
                .text
                .starts_with(&format!("the mount /data ({from})")),
            "{writable}"
        );
        assert!(writable.text.contains("not kept"), "{writable}");
        assert_eq!(
            readonly.text,
            format!("the mount /conf ({from}) does not reach the guest")
        );
    }

    #[test]
    fn the_secret_of_another_path_is_a_finding() {
        let token = mount("/tokens", "POD/volumes/kubernetes.io~projected/aws", true);
        let found = findings(POD, &[token]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].text.contains("volume aws, projected"),
            "{}",
            found[0]
        );
    }
}

//! Which mounts become shares, and what a machine has of them.
//!
//! Invariant: directories are real; no process serves them here.
//! Failure: the share that differs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use libvirt::FakeHypervisor;
use podspec::VmUid;
use rstest::rstest;

use super::volumes;
use crate::testkit::Node;
use crate::vm::shares::ShareError;
use crate::vm::state::Phase;
use crate::vm::{ContainerConfig, Error, Mount, Protocol, Share};

struct Volumes(tempfile::TempDir);

impl Volumes {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A program in the place of the one that serves shares.
    fn program(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("serve");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

fn mount(host: PathBuf, path: &str, readonly: bool) -> Mount {
    Mount {
        container_path: path.to_owned(),
        host_path: host.into_os_string().into_string().unwrap(),
        readonly,
        ..Mount::default()
    }
}

fn with(node: &Node, mounts: Vec<Mount>) -> ContainerConfig {
    ContainerConfig {
        mounts,
        ..node.machine(0)
    }
}

#[tokio::test]
async fn each_directory_of_a_pod_is_a_share_and_a_device_of_its_machine() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let file = volumes.0.path().join("file");
    fs::write(&file, "x").unwrap();
    let source = "/run/vmlet/sources/secret/keys";
    let mounts = vec![
        mount(volumes.directory("data"), "/data", false),
        mount(file, "/etc/file", true),
        mount(volumes.directory("keys"), source, true),
        mount(volumes.0.path().join("gone"), "/gone", true),
        mount(volumes.directory("conf"), "/etc/conf", true),
    ];
    let sandbox = node.ready().await;
    let created = node.containers.create(&sandbox, with(&node, mounts)).await;
    let row = node.row(&created.unwrap());
    let share = |number: u8, name: &str, path: &str, read_only| Share {
        tag: format!("vmlet-{number}"),
        host_path: volumes.directory(name).to_str().unwrap().to_owned(),
        path: path.to_owned(),
        read_only,
        protocol: Protocol::Virtiofs,
    };
    let expected = [
        share(0, "data", "/data", false),
        share(1, "conf", "/etc/conf", true),
    ];
    assert_eq!(row.spec.shares, expected);
    let reported = row.spec.unsupported.join("; ");
    assert!(
        !reported.contains("/data") && !reported.contains("/etc/conf"),
        "{reported}"
    );
    let image = fs::read(node.containers.paths().seed(&row.id)).unwrap();
    let image = String::from_utf8_lossy(&image);
    let lines = "share vmlet-0 rw '/data'\nshare vmlet-1 ro '/etc/conf'\n";
    assert!(image.contains(lines));
}

/// A later mount of the parent would cover the child.
#[tokio::test]
async fn a_directory_is_mounted_after_those_above_it_whatever_their_order() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let of = |(name, path)| mount(volumes.directory(name), path, false);
    let mounts = [
        ("leaf", "/srv/a/b/c"),
        ("inner", "/srv/a/b"),
        ("outer", "/srv/a"),
        ("x", "/x"),
    ];
    let config = with(&node, mounts.map(of).to_vec());
    let sandbox = node.ready().await;
    let created = node.containers.create(&sandbox, config).await.unwrap();
    let row = node.row(&created);
    let paths: Vec<_> = row.spec.shares.iter().map(|share| &share.path).collect();
    assert_eq!(paths, ["/x", "/srv/a", "/srv/a/b", "/srv/a/b/c"]);
    let image = fs::read(node.containers.paths().seed(&row.id)).unwrap();
    let image = String::from_utf8_lossy(&image);
    let lines = "share vmlet-1 rw '/srv/a'\nshare vmlet-2 rw '/srv/a/b'\n";
    assert!(image.contains(lines));
}

#[tokio::test]
async fn a_pod_may_turn_shares_off_and_has_at_most_sixteen() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let numbered = |n: u8| mount(volumes.directory(&n.to_string()), &format!("/v/{n}"), true);
    let mounts: Vec<_> = (0..17).map(numbered).collect();
    let sandbox = node.annotated("many", &[]).await;
    let refused = node
        .containers
        .create(&sandbox, with(&node, mounts.clone()))
        .await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Shares(ShareError::TooMany { found: 17, .. })
        ),
        "{refused}"
    );
    let sandbox = node.annotated("off", &[("shares", "off")]).await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    assert_eq!(node.row(&id.unwrap()).spec.shares, []);
    let sandbox = node.annotated("wrong", &[("shares", "nfs")]).await;
    let refused = node.containers.create(&sandbox, node.machine(0)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("vmlet.dev/shares"), "{refused}");
}

#[tokio::test]
async fn shares_that_the_guest_cannot_use_as_requested_are_reported() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let mut both_ways = mount(volumes.directory("data"), "/data", false);
    both_ways.propagation = 2;
    let reported = async |pod: &str, annotations: &[(&str, &str)]| {
        let sandbox = node.annotated(pod, annotations).await;
        let config = with(&node, vec![both_ways.clone()]);
        let id = node.containers.create(&sandbox, config).await.unwrap();
        node.row(&id).spec.unsupported.join("; ")
    };
    let words = "what the guest mounts below /data does not reach the node";
    let mounted = reported("mounted", &[]).await;
    assert!(
        mounted.contains(words) && !mounted.contains("virtiofs"),
        "{mounted}"
    );
    let alone = reported("alone", &[("cloud-init", "off")]).await;
    assert!(alone.contains("mount -t virtiofs vmlet-0 /data"), "{alone}");
}

#[tokio::test]
async fn what_the_guest_could_not_mount_or_write_is_named() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let file = volumes.0.path().join("file");
    fs::write(&file, "x").unwrap();
    let of = |(name, path)| mount(volumes.directory(name), path, false);
    let mut mounts = [("data", "/data"), ("motd", "/etc/motd")].map(of).to_vec();
    mounts.push(mount(file.clone(), "/etc/file", true));
    mounts.push(mount(file, "/data/file", true));
    let sandbox = node.ready().await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let row = node.row(&id.unwrap());
    let named = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        row.spec.missing(&paths)
    };
    let found = named(&["/etc/motd", "/etc/motd"]);
    assert_eq!(found.len(), 1, "{found:?}");
    let words = "could not mount its directory /etc/motd";
    assert!(found[0].contains(words), "{found:?}");
    let found = named(&["/etc/file", "/data/file", "/etc/passwd", "/etc/group"]);
    let of = [
        "its mount /etc/file:",
        "its mount /data/file:",
        "the pod's annotations:",
    ];
    assert_eq!(found.len(), of.len(), "{found:?}");
    for (found, of) in found.iter().zip(of) {
        let words = format!("could not write a file of {of}");
        assert!(found.contains(&words), "{found}");
    }
    assert!(named(&[]).is_empty());
}

#[tokio::test]
async fn a_share_that_cannot_be_served_fails_the_start_and_leaves_nothing() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let mounts = vec![mount(volumes.directory("data"), "/data", false)];
    let sandbox = node.ready().await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let id = id.unwrap();
    // The program is not there.
    let refused = node.containers.start(&id).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Shares(ShareError::Directory { path, .. }) if path == "/data"),
        "{refused}"
    );
    assert_eq!(node.phase(&id), Phase::Exited);
    assert!(!node.containers.paths().sockets(&id).exists());
    node.containers.remove(&id).await.unwrap();
}

/// libvirt reports that the emulator did not reach the socket; why, the process of the share said.
#[rstest]
#[case(
    "echo 'no namespaces' >&2; exit 1",
    true,
    Some("exit status: 1: no namespaces")
)]
#[case("exit 7", true, Some("exit status: 7"))]
#[case("exit 0", true, None)]
#[case("exec sleep 5", false, None)]
#[tokio::test]
async fn a_start_that_fails_by_the_process_of_a_share_has_its_last_words(
    #[case] program: &str,
    #[case] ends: bool,
    #[case] report: Option<&str>,
) {
    let node = Node::with(FakeHypervisor::default().refusing_start("no such CPU")).await;
    let held = node.hypervisor.hold_starts().await;
    let volumes = Volumes::new();
    let program = volumes.program(&format!("read -r line; {program}"));
    node.install_virtiofsd(program.to_str().unwrap());
    let mounts = vec![mount(volumes.directory("data"), "/data", false)];
    let sandbox = node.ready().await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let id = id.unwrap();
    // An emulator sees the end of its connection only after that of the process.
    let refuse = async {
        if ends {
            node.containers.servers.end(&id, "vmlet-0").await;
        }
        drop(held);
    };
    let start = async { tokio::join!(node.containers.start(&id), refuse) };
    let (started, ()) = tokio::time::timeout(Duration::from_secs(120), start)
        .await
        .unwrap();
    let words = crate::one_line(&started.unwrap_err());
    assert!(words.ends_with("no such CPU"), "{words}");
    match report {
        Some(report) => assert!(
            words.contains(&format!("has ended ({report}): ")),
            "{words}"
        ),
        None => assert!(!words.contains("has ended"), "{words}"),
    }
    let exit = node.row(&id).exit.clone().unwrap();
    assert_eq!(exit.message, words);
    assert!(!node.containers.paths().sockets(&id).exists());
    node.containers.remove(&id).await.unwrap();
}

#[tokio::test]
async fn a_pod_may_have_its_directories_by_9p() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let mut follows = mount(volumes.directory("conf"), "/etc/conf", true);
    follows.propagation = 1;
    let mounts = vec![mount(volumes.directory("data"), "/data", false), follows];
    let sandbox = node.annotated("web", &[("shares", "9p")]).await;
    let created = node
        .containers
        .create(&sandbox, with(&node, mounts.clone()));
    let row = node.row(&created.await.unwrap());
    let protocols = row.spec.shares.iter().map(|share| share.protocol);
    assert_eq!(protocols.collect::<Vec<_>>(), [Protocol::NineP; 2]);
    let reported = row.spec.unsupported.join("; ");
    let words = "what the node mounts below /etc/conf after the start";
    assert!(
        reported.contains(words) && !reported.contains("/data"),
        "{reported}"
    );
    let image = fs::read(node.containers.paths().seed(&row.id)).unwrap();
    let image = String::from_utf8_lossy(&image);
    let options = "trans=virtio,version=9p2000.L,msize=131072";
    let lines = format!("share vmlet-0 rw,{options} '/data' 9p\nshare vmlet-1 ro,{options}");
    assert!(image.contains(&lines));

    let annotations = [("shares", "9p"), ("cloud-init", "off")];
    let sandbox = node.annotated("alone", &annotations).await;
    let created = node.containers.create(&sandbox, with(&node, mounts)).await;
    let reported = node.row(&created.unwrap()).spec.unsupported.join("; ");
    let command = format!("mount -t 9p -o {options} vmlet-0 /data");
    assert!(reported.contains(&command), "{reported}");
}

#[test]
fn the_shares_of_earlier_versions_are_by_virtiofs() {
    let text = r#"{"tag": "vmlet-0", "host_path": "/srv", "path": "/data", "read_only": false}"#;
    let share: Share = serde_json::from_str(text).unwrap();
    assert_eq!(share.protocol, Protocol::Virtiofs);
    let by_9p = Share {
        protocol: Protocol::NineP,
        ..share
    };
    let text = serde_json::to_string(&by_9p).unwrap();
    assert!(text.contains(r#""protocol":"9p""#), "{text}");
    assert_eq!(serde_json::from_str::<Share>(&text).unwrap(), by_9p);
}

#[tokio::test]
async fn a_directory_that_cannot_be_opened_fails_the_start_and_leaves_nothing() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    let mounts = vec![mount(volumes.directory("data"), "/data", false)];
    let sandbox = node.annotated("web", &[("shares", "9p")]).await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let id = id.unwrap();
    // A program that ends without an answer.
    node.install_virtiofsd("/bin/true");
    let refused = node.containers.start(&id).await.unwrap_err();
    let words = crate::one_line(&refused);
    assert!(words.contains("share /data with the guest"), "{words}");
    assert!(words.contains("no directory"), "{words}");
    assert_eq!(node.phase(&id), Phase::Exited);
    assert!(!node.containers.paths().sockets(&id).exists());
    node.containers.remove(&id).await.unwrap();
}

#[tokio::test]
async fn a_cgroup_that_does_not_take_the_process_of_a_share_fails_the_start() {
    let node = Node::new().await;
    let volumes = Volumes::new();
    node.install_virtiofsd("/bin/true");
    let mut pod = node.pod("pod");
    pod.cgroup_parent = "/kubepods/pod1".to_owned();
    let sandbox = node.sandboxes.run(pod).await.unwrap();
    let mounts = vec![mount(volumes.directory("data"), "/data", false)];
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let id = id.unwrap();
    tokio::time::pause();
    let hung = node.containers.meter.hold_cgroup(sandbox);
    let refused = node.containers.start(&id).await.unwrap_err();
    drop(hung);
    let words = crate::one_line(&refused);
    let expected = "the cgroup /kubepods/pod1 did not take its process within 20 s";
    assert!(words.contains(expected), "{words}");
    assert_eq!(node.phase(&id), Phase::Exited);
}

#[tokio::test]
async fn processes_of_a_pod_machine_have_no_volumes_by_9p() {
    let node = Node::new().await;
    let sandbox = node.annotated("web", &[("shares", "9p")]).await;
    let sandbox = node.sandbox_rows.get(&sandbox).unwrap();
    let refused = volumes::are_shared(&sandbox, &node.machine(0)).unwrap_err();
    assert!(
        refused.to_string().contains("by virtiofs, or with"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_memory_of_a_machine_with_shares_is_not_saved() {
    const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
    let node = Node::new().await;
    let volumes = Volumes::new();
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    node.install_virtiofsd("/bin/true");
    let mounts = vec![mount(volumes.directory("data"), "/data", false)];
    let sandbox = node.annotated("web", &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, with(&node, mounts)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    let refused = node.containers.save(vm).await.unwrap_err().to_string();
    assert!(refused.contains("vmlet.dev/shares: off"), "{refused}");
    assert_eq!(node.phase(&id), Phase::Running);
}

#[test]
fn volumes_of_a_process_are_mounted_from_the_outside_in() {
    let config = ContainerConfig {
        mounts: vec![
            mount("/n/inner".into(), "/data/inner", false),
            mount("/n/keys".into(), "/run/vmlet/sources/secret/keys", true),
            mount("/n/data".into(), "/data", false),
            mount("/n/up".into(), "/data/../etc", false),
        ],
        ..ContainerConfig::default()
    };
    let paths: Vec<_> = volumes::wanted(&config)
        .into_iter()
        .map(|mount| mount.container_path.as_str())
        .collect();
    assert_eq!(paths, ["/data", "/data/inner"]);
    volumes::check(&config).unwrap();
    let many = (0..65).map(|n| mount("/n".into(), &format!("/v/{n}"), true));
    let config = ContainerConfig {
        mounts: many.collect(),
        ..ContainerConfig::default()
    };
    let refused = volumes::check(&config).unwrap_err().to_string();
    assert!(
        refused.contains("65 volumes") && refused.contains("64"),
        "{refused}"
    );
}

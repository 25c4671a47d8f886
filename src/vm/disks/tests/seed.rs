//! Seed images: when they are there, for whom, and what they hold.
//!
//! Invariant: images are real files and read back as bytes; what is secret is looked for in the
//! whole database.
//! Failure: a test names the file that is there or not.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use podspec::{ContainerId, Content, VmUid};

use crate::sources;
use crate::testkit::Node;
use crate::vm::state::Phase;
use crate::vm::{Environment, Error, Mount, Result};

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const SECRET: &str = "hunter2";

async fn create(node: &Node, name: &str, annotations: &[(&str, &str)]) -> Result<ContainerId> {
    let sandbox = node.annotated(name, annotations).await;
    node.containers.create(&sandbox, node.machine(0)).await
}

fn holds(path: &Path, text: &str) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

/// Answers the next question of the daemon.
async fn answer(node: &Node, answer: sources::Answer) -> sources::Wanted {
    let sources = Arc::clone(node.containers.sources());
    let mut changes = sources.changes();
    loop {
        if let Some((id, wanted)) = sources.wanted().pop_first() {
            sources.answer(id, answer);
            return wanted;
        }
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_guest_finds_its_data_on_a_second_disk_until_its_container_is_gone() {
    let node = Node::new().await;
    let data = [("cloud-init-user-data", "runcmd: [date]")];
    let id = create(&node, "web", &data).await.unwrap();
    let image = node.containers.paths().seed(&id);
    let of = std::fs::metadata(&image).unwrap();
    assert_eq!(of.permissions().mode() & 0o777, 0o600);
    assert_eq!(of.uid(), nix::unistd::geteuid().as_raw());
    assert!(holds(&image, "#cloud-config\nruncmd: [date]"));
    assert!(holds(&image, "\"instance-id\": \"web.default\""));

    node.containers.start(&id).await.unwrap();
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    let (_, seed) = xml.split_once("<target dev=\"vdb\"").expect(&xml);
    assert!(xml.contains(image.to_str().unwrap()), "{xml}");
    assert!(seed.contains("<readonly"), "{xml}");
    let node = node.restarted().await;
    node.containers.reconcile().await.unwrap();
    assert!(image.exists(), "the image of a running guest is gone");
    node.containers.remove(&id).await.unwrap();
    assert!(!image.exists(), "the image outlives its container");
}

#[tokio::test]
async fn the_host_name_comes_from_the_pod_spec_or_the_pod_name() {
    let node = Node::new().await;
    for (host_name, called) in [("db-1", "db-1"), ("", "web")] {
        let mut pod = node.pod("web");
        pod.metadata.uid = format!("uid of {called}");
        host_name.clone_into(&mut pod.hostname);
        let keys = "vmlet.dev/ssh-keys".to_owned();
        pod.annotations.insert(keys, "ssh-ed25519 A".to_owned());
        let sandbox = node.sandboxes.run(pod).await.unwrap();
        let id = node.containers.create(&sandbox, node.machine(0)).await;
        let image = node.containers.paths().seed(&id.unwrap());
        let line = format!("\"local-hostname\": \"{called}\"");
        assert!(holds(&image, &line), "{line}");
    }
}

#[tokio::test]
async fn an_ordinary_pod_has_a_second_disk_with_its_identity() {
    let node = Node::new().await;
    let id = node.started().await;
    let image = node.containers.paths().seed(&id);
    assert!(holds(&image, "\"instance-id\": \"pod.default\""));
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    assert!(xml.contains("<target dev=\"vdb\""), "{xml}");
}

#[tokio::test]
async fn a_pod_that_turns_cloud_init_off_has_one_disk() {
    let node = Node::new().await;
    let id = create(&node, "web", &[("cloud-init", "off")])
        .await
        .unwrap();
    node.containers.start(&id).await.unwrap();
    assert!(!node.containers.paths().seed(&id).exists());
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    assert!(!xml.contains("vdb"), "{xml}");
}

#[tokio::test]
async fn user_data_that_cloud_init_ignores_are_reported() {
    let node = Node::new().await;
    for (name, script, is_reported) in [("ignored", "echo hi", true), ("used", "#!/bin/sh", false)]
    {
        let data = [("cloud-init-user-data-script", script)];
        let id = create(&node, name, &data).await.unwrap();
        let found = node.row(&id).spec.unsupported.clone();
        let words = "cloud-init ignores the user data: the first line";
        let reported = found.iter().any(|text| text.starts_with(words));
        assert_eq!(reported, is_reported, "{name}: {found:?}");
    }
}

#[tokio::test]
async fn an_unused_image_is_removed() {
    let node = Node::new().await;
    let stray = node.containers.paths().seed(&ContainerId::generate());
    for path in [&stray, &stray.with_extension("new")] {
        std::fs::write(path, SECRET).unwrap();
    }
    node.containers.reconcile().await.unwrap();
    assert!(node.files().is_empty(), "{:?}", node.files());
}

#[tokio::test]
async fn what_a_secret_holds_is_in_the_image_and_nowhere_else() {
    let node = Node::new().await;
    let data = [("cloud-init-user-data-source", "secret/seed/user-data")];
    let content = Content([("user-data".to_owned(), SECRET.into())].into());
    let (id, wanted) = tokio::join!(create(&node, "web", &data), answer(&node, Ok(content)));
    let id = id.unwrap();
    assert_eq!(wanted.to_string(), "secret default/seed");
    assert_eq!(wanted.pod_uid, "uid of web");
    assert!(holds(&node.containers.paths().seed(&id), SECRET));
    node.containers.start(&id).await.unwrap();
    assert!(!node.hypervisor.xml(id.domain()).unwrap().contains(SECRET));
    let state = node.cgroup_root().parent().unwrap().to_owned();
    for name in ["vmlet.db", "vmlet.db-wal"] {
        assert!(!holds(&state.join(name), SECRET), "{name}");
    }
    assert!(!format!("{:?}", node.row(&id)).contains(SECRET));
}

#[tokio::test]
async fn what_kubelet_has_mounted_is_read_without_the_agent() {
    let node = Node::new().await;
    let data = [("cloud-init-user-data-source", "secret/seed/user-data")];
    let pod = node.annotated("web", &data).await;
    let volumes = tempfile::tempdir().unwrap();
    let volume = "pods/uid of web/volumes/kubernetes.io~secret/any-name";
    let volume = volumes.path().join(volume);
    std::fs::create_dir_all(volume.join("..1")).unwrap();
    std::fs::write(volume.join("..1/user-data"), SECRET).unwrap();
    std::os::unix::fs::symlink("..1", volume.join("..data")).unwrap();
    let machine = |volume: &Path| {
        let mut machine = node.machine(0);
        machine.mounts.push(Mount {
            container_path: "/run/vmlet/sources/secret/seed".to_owned(),
            host_path: volume.to_str().unwrap().to_owned(),
            readonly: true,
            ..Mount::default()
        });
        machine
    };
    let refused = node.containers.create(&pod, machine(volumes.path())).await;
    let refused = refused.unwrap_err().to_string();
    let expected = "guest data from secret default/seed: the mount at /run/vmlet/sources/secret/seed: \
                    it is not a secret volume";
    assert!(refused.starts_with(expected), "{refused}");
    assert!(node.files().is_empty(), "{:?}", node.files());

    let id = node
        .containers
        .create(&pod, machine(&volume))
        .await
        .unwrap();
    assert!(node.containers.sources().wanted().is_empty());
    assert!(holds(&node.containers.paths().seed(&id), SECRET));
    // What the guest gets is not reported as something that it does not get.
    let unsupported = &node.row(&id).spec.unsupported;
    let of_mount = unsupported.iter().find(|text| text.contains("/run/vmlet"));
    assert_eq!(of_mount, None);
}

#[tokio::test]
async fn a_container_without_its_source_is_not_created_and_may_be_retried() {
    let node = Node::new().await;
    let data = [("ssh-keys-source", "secret/keys")];
    let pod = node.annotated("web", &data).await;
    let create = || node.containers.create(&pod, node.machine(0));
    let missing = "it does not exist: create it".to_owned();
    let (refused, _) = tokio::join!(create(), answer(&node, Err(missing)));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Source(_)), "{refused}");
    assert!(
        refused.to_string().contains("secret default/keys"),
        "{refused}"
    );
    assert!(node.files().is_empty(), "{:?}", node.files());

    let (refused, _) = tokio::join!(create(), answer(&node, Ok(Content::default())));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("authorized_keys"), "{refused}");
    let content = Content([("authorized_keys".to_owned(), b"ssh-rsa A".to_vec())].into());
    let (made, _) = tokio::join!(create(), answer(&node, Ok(content)));
    let image = node.containers.paths().seed(&made.unwrap());
    assert!(holds(&image, "ssh-rsa A"));
}

#[tokio::test]
async fn a_suspended_guest_finds_the_same_image_again_and_a_new_boot_another() {
    let node = Node::new().await;
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    let seed = node.disks.seed_file(vm);
    let ended = async |id: &ContainerId| {
        node.until(id, |row| row.phase == Phase::Exited).await;
        let changes = &mut node.disks.changes();
        while node.disks.is_held_by(vm, id) {
            changes.changed().await.unwrap();
        }
    };
    let with = |text| [("vm-disk", VM), ("cloud-init-user-data-script", text)];
    let first = create(&node, "first", &with("#!old")).await.unwrap();
    node.containers.start(&first).await.unwrap();
    node.containers.save(vm).await.unwrap();
    ended(&first).await;
    assert!(holds(&seed, "#!old"));

    let resumed = [with("#!new").as_slice(), &[("restore", "true")]].concat();
    let second = create(&node, "second", &resumed).await.unwrap();
    node.containers.start(&second).await.unwrap();
    assert!(holds(&seed, "#!old"), "a resumed guest has another disk");
    assert!(node.row(&second).spec.seed);
    node.hypervisor.crash(vm.uuid());
    ended(&second).await;
    assert!(!seed.exists(), "the image outlives its container");

    create(&node, "third", &with("#!new")).await.unwrap();
    assert!(holds(&seed, "#!new"));
}

#[tokio::test]
async fn a_guest_that_was_suspended_without_an_image_comes_back_without() {
    let node = Node::new().await;
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    let without = [("vm-disk", VM), ("cloud-init", "off")];
    let first = create(&node, "first", &without).await.unwrap();
    node.containers.start(&first).await.unwrap();
    node.containers.save(vm).await.unwrap();
    node.until(&first, |row| row.phase == Phase::Exited).await;
    let changes = &mut node.disks.changes();
    while node.disks.is_held_by(vm, &first) {
        changes.changed().await.unwrap();
    }
    let data = [
        ("vm-disk", VM),
        ("restore", "true"),
        ("ssh-keys", "ssh-rsa A"),
    ];
    let second = create(&node, "second", &data).await.unwrap();
    assert!(!node.row(&second).spec.seed);
    assert!(!node.disks.seed_file(vm).exists());
}

#[tokio::test]
async fn an_image_goes_with_the_memory_that_knew_of_it() {
    let node = Node::new().await;
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    let seed = node.disks.seed_file(vm);
    let data = [("vm-disk", VM), ("cloud-init-user-data-script", "#!old")];
    let first = create(&node, "first", &data).await.unwrap();
    node.containers.start(&first).await.unwrap();
    node.containers.save(vm).await.unwrap();
    let changes = &mut node.disks.changes();
    while node.disks.is_held_by(vm, &first) {
        changes.changed().await.unwrap();
    }
    assert!(seed.exists());
    node.containers.restore(vm, true).await.unwrap();
    assert!(!seed.exists(), "secrets are left beside a disk");

    // The emulator ends while its memory is written.
    let second = create(&node, "second", &data).await.unwrap();
    node.containers.start(&second).await.unwrap();
    node.disks.begin_memory(vm, vec![], false).await.unwrap();
    node.hypervisor.crash(vm.uuid());
    let changes = &mut node.disks.changes();
    while node.disks.is_held_by(vm, &second) {
        changes.changed().await.unwrap();
    }
    node.containers.save(vm).await.unwrap_err();
    assert!(!seed.exists(), "secrets are left beside a disk");
}

#[tokio::test]
async fn the_guest_is_configured_with_the_network_of_its_pod() {
    let node = Node::new().await;
    let data = [("ssh-keys", "ssh-ed25519 A")];
    let id = create(&node, "web", &data).await.unwrap();
    let image = node.containers.paths().seed(&id);
    assert!(holds(&image, "\"macaddress\": \"0a:58:0a:01:00:05\""));
    assert!(holds(&image, "\"version\": 2"));
    let old = [
        ("ssh-keys", "ssh-ed25519 A"),
        ("cloud-init-network-version", "1"),
    ];
    let id = create(&node, "old", &old).await.unwrap();
    let image = node.containers.paths().seed(&id);
    assert!(holds(&image, "\"mac_address\": \"0a:58:0a:01:00:05\""));
    let own = [("cloud-init-network-config", "version: 2\nethernets: {}\n")];
    let id = create(&node, "own", &own).await.unwrap();
    let image = node.containers.paths().seed(&id);
    assert!(holds(&image, own[0].1) && !holds(&image, "0a:58:0a:01:00:05"));
}

#[tokio::test]
async fn windows_setup_finds_its_answer_files_on_a_cd_rom() {
    let node = Node::new().await;
    let data = [("sysprep-source", "secret/answers")];
    let keys = [("unattend.xml", "<unattend/>"), ("other", SECRET)];
    let keys = keys.map(|(key, text)| (key.to_owned(), text.into()));
    let content = Content(keys.into());
    let (id, wanted) = tokio::join!(create(&node, "web", &data), answer(&node, Ok(content)));
    let id = id.unwrap();
    assert_eq!(wanted.to_string(), "secret default/answers");
    let image = node.containers.paths().seed(&id);
    assert!(holds(&image, "<unattend/>") && holds(&image, "unattend"));
    assert!(!holds(&image, SECRET) && !holds(&image, "cidata") && !holds(&image, "user-data"));
    node.containers.start(&id).await.unwrap();
    let xml = node.hypervisor.xml(id.domain()).unwrap();
    assert!(xml.contains("<target dev=\"sda\" bus=\"sata\"/>"), "{xml}");
    assert!(!xml.contains("<target dev=\"vdb\""), "{xml}");
    node.containers.remove(&id).await.unwrap();
    assert!(!image.exists(), "the image outlives its container");
}

#[tokio::test]
async fn the_network_configuration_may_come_from_a_secret() {
    let node = Node::new().await;
    let text = "# by hand\nversion: 2\nethernets: {}\n";
    let data = [("cloud-init-network-config-source", "secret/net")];
    let content = Content([("network-config".to_owned(), text.into())].into());
    let (id, wanted) = tokio::join!(create(&node, "web", &data), answer(&node, Ok(content)));
    assert_eq!(wanted.to_string(), "secret default/net");
    let image = node.containers.paths().seed(&id.unwrap());
    assert!(holds(&image, text) && !holds(&image, "0a:58:0a:01:00:05"));
}

#[tokio::test]
async fn a_config_drive_has_its_label_and_its_shape() {
    let node = Node::new().await;
    let data = [
        ("ssh-keys", "ssh-ed25519 A"),
        ("cloud-init-image-type", "configdrive"),
    ];
    let id = create(&node, "web", &data).await.unwrap();
    let image = node.containers.paths().seed(&id);
    for text in [
        "config-2",
        "\"uuid\": \"web.default\"",
        "ethernet_mac_address",
    ] {
        assert!(holds(&image, text), "{text}");
    }
    assert!(!holds(&image, "cidata"));
}

#[tokio::test]
async fn environment_and_mounted_files_are_in_the_image_and_nowhere_else() {
    let node = Node::new().await;
    let pod = node.annotated("web", &[("shares", "off")]).await;
    let volumes = tempfile::tempdir().unwrap();
    let volume = "pods/uid of web/volumes/kubernetes.io~secret/keys";
    let volume = volumes.path().join(volume);
    std::fs::create_dir_all(volume.join("..1")).unwrap();
    std::fs::write(volume.join("..1/password"), "hunter3").unwrap();
    std::os::unix::fs::symlink("..1", volume.join("..data")).unwrap();
    let mut machine = node.machine(0);
    let variable = ("PASSWORD".to_owned(), SECRET.into());
    machine.environment = Environment(vec![variable]);
    machine.unused.variables = vec!["PASSWORD".to_owned()];
    machine.mounts.push(Mount {
        container_path: "/etc/keys".to_owned(),
        host_path: volume.to_str().unwrap().to_owned(),
        readonly: true,
        ..Mount::default()
    });
    assert!(!format!("{machine:?}").contains(SECRET));
    let id = node.containers.create(&pod, machine.clone()).await.unwrap();
    let image = node.containers.paths().seed(&id);
    for text in [
        "PASSWORD='hunter2'\n",
        "put 0 0644 '/etc/keys/password'\nput 1 0644 '/etc/cloud/environment'\n",
        "hunter3",
    ] {
        assert!(holds(&image, text), "{text}");
    }
    let reported = node.row(&id).spec.unsupported.join("; ");
    for given in ["/etc/keys", "PASSWORD"] {
        assert!(!reported.contains(given), "{reported}");
    }
    let state = node.cgroup_root().parent().unwrap().to_owned();
    for name in ["vmlet.db", "vmlet.db-wal"] {
        for secret in [SECRET, "hunter3"] {
            assert!(!holds(&state.join(name), secret), "{name}");
        }
    }
    assert!(!format!("{:?}", node.row(&id)).contains(SECRET));

    let large = vec![b'x'; 1024 * 1024 + 1];
    std::fs::write(volume.join("..1/password"), large).unwrap();
    let other = node.annotated("other", &[("shares", "off")]).await;
    machine.mounts[0].host_path = machine.mounts[0].host_path.replace("web", "other");
    let moved = volumes.path().join("pods/uid of other");
    std::fs::rename(volumes.path().join("pods/uid of web"), moved).unwrap();
    let refused = node.containers.create(&other, machine).await.unwrap_err();
    let refused = refused.to_string();
    let expected = "the mount /etc/keys does not reach the guest: /etc/keys/password has more than";
    assert!(refused.starts_with(expected), "{refused}");
}

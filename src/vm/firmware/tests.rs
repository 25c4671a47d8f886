//! Which firmware machines get, and the life of a store.
//!
//! Invariant: what a guest has written to its store is lost with its disk alone.
//! Failure: a test names the store that is another one, or the machine that boots otherwise.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use libvirt::FakeHypervisor;
use podspec::{ContainerId, VmUid};
use serde_json::json;

use super::*;
use crate::disk::DesiredDisk;
use crate::testkit::Node;
use crate::vm::state::Phase;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const UEFI: (&str, &str) = ("firmware", "uefi");
const BIOS: (&str, &str) = ("firmware", "bios");
const ENOUGH: (&str, &str) = ("memory", "256Mi");

fn vm() -> VmUid {
    VM.parse().unwrap()
}

fn directory(node: &Node) -> PathBuf {
    node.containers.paths().pods().with_file_name("firmware")
}

/// A node that has UEFI, and an image that nothing else boots.
async fn node() -> Node {
    equipped(Node::new().await).await
}

async fn equipped(node: Node) -> Node {
    let directory = directory(&node);
    std::fs::create_dir(&directory).unwrap();
    let code = directory.join("code.fd");
    let vars = directory.join("vars.fd");
    std::fs::write(&code, "code").unwrap();
    std::fs::write(&vars, "template").unwrap();
    let descriptor = json!({
        "interface-types": ["uefi"],
        "mapping": {
            "device": "flash",
            "executable": { "filename": code, "format": "raw" },
            "nvram-template": { "filename": vars, "format": "raw" },
        },
        "targets": [{ "architecture": "x86_64", "machines": ["pc-q35-*"] }],
    });
    std::fs::write(directory.join("60-uefi.json"), descriptor.to_string()).unwrap();
    let image = node.image("efi");
    node.images.pull(&image).await.unwrap();
    node
}

async fn create(
    node: &Node,
    name: &str,
    image: &str,
    all: &[(&str, &str)],
) -> crate::vm::Result<ContainerId> {
    let sandbox = node.annotated(name, all).await;
    node.containers
        .create(&sandbox, node.machine_of(image, 0))
        .await
}

async fn started(node: &Node, name: &str, image: &str, all: &[(&str, &str)]) -> ContainerId {
    let id = create(node, name, image, all).await.unwrap();
    node.containers.start(&id).await.unwrap();
    id
}

fn xml(node: &Node, id: &ContainerId) -> String {
    node.hypervisor.xml(node.row(id).domain()).unwrap()
}

async fn make_disk(node: &Node) {
    let desired = DesiredDisk {
        vm: vm(),
        name: "default/vm".to_owned(),
        image: node.image("efi"),
        url: None,
        size: 0,
        linked: false,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
}

fn empty(disk: &Path) {
    let mut create = std::process::Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2"]);
    let created = create.arg(disk).arg("4096").status();
    assert!(created.unwrap().success());
}

#[tokio::test]
async fn a_machine_boots_by_what_its_image_needs_unless_its_pod_says_it() {
    let node = node().await;
    let cases: [(&str, &[_], bool, bool); 5] = [
        ("efi", &[ENOUGH], true, false),
        ("disk", &[ENOUGH], false, true),
        ("efi", &[BIOS], false, true),
        ("disk", &[UEFI, ENOUGH], true, false),
        ("disk", &[BIOS], false, true),
    ];
    for (n, (image, annotations, by_uefi, has_problem)) in cases.into_iter().enumerate() {
        let id = started(&node, &format!("pod{n}"), image, annotations).await;
        let row = node.row(&id);
        assert_eq!(row.spec.uefi, by_uefi, "{n}");
        assert_eq!(xml(&node, &id).contains("pflash"), by_uefi, "{n}");
        let found = &row.spec.unsupported;
        let boots_not = found.iter().any(|text| text.contains("will not boot"));
        assert_eq!(boots_not, has_problem, "{n}: {found:?}");
    }
}

#[tokio::test]
async fn a_machine_that_cannot_have_uefi_is_refused_in_words() {
    let node = node().await;
    let refused = create(&node, "small", "efi", &[("memory", "255Mi")]).await;
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("needs at least 256 MiB"), "{words}");
    std::fs::remove_file(directory(&node).join("60-uefi.json")).unwrap();
    for (name, all) in [("image", vec![ENOUGH]), ("pod", vec![UEFI, ENOUGH])] {
        let refused = create(&node, name, "efi", &all).await;
        let words = refused.unwrap_err().to_string();
        assert!(words.ends_with("install the package ovmf"), "{words}");
    }
    create(&node, "other", "disk", &[]).await.unwrap();
}

#[tokio::test]
async fn the_store_of_a_pod_is_made_once_and_goes_with_it() {
    let node = node().await;
    let id = started(&node, "pod", "efi", &[ENOUGH]).await;
    let sandbox = node.row(&id).sandbox.clone();
    let store = node.containers.paths().variable_store(&sandbox);
    let path = store.display().to_string();
    assert!(xml(&node, &id).contains(&path));
    assert_eq!(std::fs::read_to_string(&store).unwrap(), "template");
    let mode = std::fs::metadata(&store).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&store, "of guest").unwrap();
    node.hypervisor.power_off(node.row(&id).domain());
    node.until(&id, |row| row.phase == Phase::Exited).await;
    let again = node
        .containers
        .create(&sandbox, node.machine_of("efi", 1))
        .await;
    node.containers.start(&again.unwrap()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&store).unwrap(), "of guest");
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(!store.exists() && !store.parent().unwrap().exists());
}

#[tokio::test]
async fn the_store_of_a_virtual_machine_is_kept_as_its_disk_is() {
    let node = node().await;
    make_disk(&node).await;
    let store = node.disks.store_file(vm());
    let boots: [&[_]; 3] = [
        &[("vm-disk", VM), ENOUGH],
        // Its disk no longer shows it.
        &[("vm-disk", VM), ENOUGH],
        &[("vm-disk", VM), BIOS],
    ];
    for (n, annotations) in boots.into_iter().enumerate() {
        let id = started(&node, &format!("pod{n}"), "efi", annotations).await;
        assert_eq!(xml(&node, &id).contains("pflash"), n < 2, "{n}");
        if n == 0 {
            assert_eq!(std::fs::read_to_string(&store).unwrap(), "template");
            std::fs::write(&store, "of guest").unwrap();
        }
        empty(&node.disks.first_file(vm()));
        node.hypervisor.power_off(vm().uuid());
        node.until(&id, |row| row.phase == Phase::Exited).await;
        let sandbox = node.row(&id).sandbox.clone();
        node.sandboxes.remove(&sandbox).await.unwrap();
        assert_eq!(std::fs::read_to_string(&store).unwrap(), "of guest");
    }
    node.disks.delete(vm()).await.unwrap();
    assert!(!store.exists());
}

/// Its store is as long as those of another build of the firmware.
#[tokio::test]
async fn a_store_that_no_firmware_of_the_node_fits_is_reported() {
    let node = node().await;
    make_disk(&node).await;
    let store = node.disks.store_file(vm());
    std::fs::write(&store, "of an earlier build").unwrap();
    let refused = create(&node, "pod", "efi", &[("vm-disk", VM), ENOUGH]).await;
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("which has 19 bytes"), "{words}");
    std::fs::remove_file(&store).unwrap();
    started(&node, "again", "efi", &[("vm-disk", VM), ENOUGH]).await;
}

#[tokio::test]
async fn a_start_that_failed_chooses_no_firmware_for_the_next_one() {
    let hypervisor = FakeHypervisor::default().refusing_start("no such CPU");
    let node = equipped(Node::with(hypervisor).await).await;
    make_disk(&node).await;
    empty(&node.disks.first_file(vm()));
    let tried = [("vm-disk", VM), UEFI, ENOUGH];
    let id = create(&node, "tried", "efi", &tried).await.unwrap();
    assert!(node.row(&id).spec.uefi);
    node.containers.start(&id).await.unwrap_err();
    assert!(node.disks.store_file(vm()).exists());
    let sandbox = node.row(&id).sandbox.clone();
    node.sandboxes.remove(&sandbox).await.unwrap();
    node.hypervisor.accept_starts();
    let id = started(&node, "next", "efi", &[("vm-disk", VM), ENOUGH]).await;
    assert!(!node.row(&id).spec.uefi);
}

/// Describes a machine in its saved memory, as libvirt does.
fn describe(memory: &Path, xml: &str) {
    let mut header = std::fs::read(memory).unwrap();
    let length = u32::try_from(xml.len()).unwrap();
    header.extend(2_u32.to_ne_bytes());
    header.extend(length.to_ne_bytes());
    header.resize(16 + 19 * 4, 0);
    std::fs::write(memory, [&header, xml.as_bytes()].concat()).unwrap();
}

/// Whatever the pod requests, and however little memory the machine has.
#[tokio::test]
async fn a_machine_that_resumes_has_the_firmware_of_its_memory() {
    let node = node().await;
    make_disk(&node).await;
    let store = node.disks.store_file(vm());
    let rounds = [(BIOS, UEFI, false), (UEFI, BIOS, true)];
    for (n, (saved, requested, by_uefi)) in rounds.into_iter().enumerate() {
        let memory = if by_uefi { ENOUGH } else { ("memory", "128Mi") };
        let boots = [("vm-disk", VM), saved, memory];
        let id = started(&node, &format!("saved{n}"), "efi", &boots).await;
        let description = xml(&node, &id);
        node.containers.save(vm()).await.unwrap();
        node.until(&id, |row| row.phase == Phase::Exited).await;
        describe(&node.disks.memory_file(vm()), &description);
        let resumes = [("vm-disk", VM), ("restore", "true"), requested, memory];
        let id = started(&node, &format!("resumed{n}"), "efi", &resumes).await;
        assert_eq!(node.row(&id).spec.uefi, by_uefi, "{n}");
        assert_eq!(xml(&node, &id).contains("pflash"), by_uefi, "{n}");
        assert_eq!(store.exists(), by_uefi, "{n}");
        node.hypervisor.power_off(vm().uuid());
        node.until(&id, |row| row.phase == Phase::Exited).await;
    }
}

#[test]
fn what_a_crash_left_of_a_store_is_made_again() {
    let node = tempfile::tempdir().unwrap();
    let template = node.path().join("vars.fd");
    std::fs::write(&template, "template").unwrap();
    let store = node.path().join("pods/a/uefi.fd");
    assert!(make(&store, &node.path().join("absent")).is_err());
    assert!(!store.exists());
    std::fs::create_dir_all(store.parent().unwrap()).unwrap();
    std::fs::write(unfinished(&store), "a part, longer than all of it").unwrap();
    assert!(make(&store, &template).unwrap());
    assert_eq!(std::fs::read_to_string(&store).unwrap(), "template");
    assert!(!unfinished(&store).exists());
    std::fs::write(&store, "of guest").unwrap();
    assert!(!make(&store, &template).unwrap());
    assert_eq!(std::fs::read_to_string(&store).unwrap(), "of guest");
}

#[test]
fn a_guest_continues_with_the_firmware_that_it_was_saved_with() {
    let by_uefi = "<os><nvram>/v</nvram></os>";
    assert!(boots_by_uefi(true, None) && !boots_by_uefi(false, None));
    assert!(boots_by_uefi(false, Some(by_uefi)));
    assert!(!boots_by_uefi(true, Some("<os/>")));
}

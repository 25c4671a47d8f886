//! Disks in files of volumes, with real files and the real `qemu-img`.
//!
//! Invariant: each test has a volume of its own.
//! Failure: the file or the refusal that differs.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rstest::rstest;

use super::*;
use crate::testkit::Node;
use crate::vm::{Container, ContainerConfig, Error as VmError};

const MIB: u64 = 1 << 20;

struct Volume {
    scratch: tempfile::TempDir,
    read_only: bool,
    /// Pods that were made with it.
    pods: AtomicU32,
}

impl Volume {
    fn new() -> Self {
        Self {
            scratch: tempfile::tempdir().unwrap(),
            read_only: false,
            pods: AtomicU32::new(0),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// All names in it.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn config(&self, node: &Node) -> ContainerConfig {
        let mount = Mount {
            container_path: "/claims/a".to_owned(),
            host_path: self.scratch.path().to_str().unwrap().to_owned(),
            readonly: self.read_only,
            ..Mount::default()
        };
        ContainerConfig {
            mounts: vec![mount],
            ..node.machine(0)
        }
    }

    /// The container of a new pod with this annotation.
    async fn create(&self, node: &Node, disks: &str) -> Result<Arc<Container>, VmError> {
        let name = format!("pod-{}", self.pods.fetch_add(1, Ordering::Relaxed));
        let sandbox = node.annotated(&name, &[("file-disks", disks)]).await;
        let created = node.containers.create(&sandbox, self.config(node)).await;
        created.map(|id| node.row(&id))
    }

    async fn refused(&self, node: &Node, disks: &str) -> String {
        let refused = self.create(node, disks).await.unwrap_err();
        crate::one_line(&refused)
    }
}

fn info(path: &Path) -> serde_json::Value {
    let output = Command::new("qemu-img")
        .args(["info", "--output=json"])
        .arg(path)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

const ROOT: &str = "[{mountPath: /claims/a, devicePath: /}]";
const DATA: &str = "[{mountPath: /claims/a, devicePath: /dev/data, size: 3Mi}]";

#[rstest]
#[case("raw", "disk.img")]
#[case("qcow2", "os.qcow2")]
#[tokio::test]
async fn an_image_is_written_to_a_file_once(#[case] format: &str, #[case] name: &str) {
    let node = Node::new().await;
    let volume = Volume::new();
    let disks = format!(
        "[{{mountPath: /claims/a, devicePath: /, file: {name}, format: {format}, size: 5Mi}}]"
    );
    let row = volume.create(&node, &disks).await.unwrap();
    assert_eq!(volume.names(), [name]);
    let disk = volume.path(name);
    let made = info(&disk);
    assert_eq!(
        (&made["format"], &made["virtual-size"]),
        (&format.into(), &(5 * MIB).into())
    );
    assert_eq!(disk.metadata().unwrap().mode() & 0o777, 0o600);
    let image = node.images.find(&node.image("disk")).unwrap();
    let same = Command::new("qemu-img")
        .args(["compare", "-q", "-f", format, "-F", image.format.as_str()])
        .args([&disk, &image.path])
        .status();
    assert!(same.unwrap().success());
    assert!(row.spec.shares.is_empty());
    let reported = row.spec.unsupported.join("; ");
    assert!(!reported.contains("/claims"), "{reported}");
    assert!(
        node.files()
            .iter()
            .all(|file| !file.ends_with("root.qcow2"))
    );

    // The next pod boots what the guest has left, and gets more room.
    let before = disk.metadata().unwrap().ino();
    let larger = disks.replace("5Mi", "7Mi");
    volume.create(&node, &larger).await.unwrap();
    let grown = info(&disk);
    assert_eq!(grown["virtual-size"], 7 * MIB);
    volume.create(&node, &disks).await.unwrap();
    assert_eq!(
        info(&disk)["virtual-size"],
        7 * MIB,
        "a disk was made smaller"
    );
    assert_eq!(disk.metadata().unwrap().ino(), before);
}

#[tokio::test]
async fn a_further_disk_is_made_sparse_and_found_by_its_name() {
    let node = Node::new().await;
    let volume = Volume::new();
    let row = volume.create(&node, DATA).await.unwrap();
    let made = volume.path("disk.img").metadata().unwrap();
    assert_eq!((made.len(), made.blocks()), (3 * MIB, 0));
    let further: Vec<_> = node.containers.further_files(&row).collect();
    assert_eq!(further.len(), 1);
    assert_eq!(further[0].serial.as_deref(), Some("data"));
    assert_eq!(node.containers.root_in_file(&row), None);
    let seed = fs::read(node.containers.paths().seed(&row.id)).unwrap();
    let link = "link /dev/disk/by-id/virtio-data '/dev/data'";
    assert!(String::from_utf8_lossy(&seed).contains(link));
}

#[tokio::test]
async fn a_file_that_an_earlier_daemon_began_is_made_anew() {
    let node = Node::new().await;
    let volume = Volume::new();
    let unfinished = volume.path(".disk.img.vmlet-new");
    fs::write(&unfinished, vec![7; 8 << 20]).unwrap();
    volume.create(&node, DATA).await.unwrap();
    assert_eq!(volume.names(), ["disk.img"]);
    let disk = fs::File::open(volume.path("disk.img")).unwrap();
    let mut head = [1; 512];
    disk.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(head, [0; 512]);
}

/// Another pod may have the volume.
#[tokio::test]
async fn a_disk_that_is_being_made_cannot_be_reached_by_a_name() {
    let node = Node::new().await;
    let volume = Volume::new();
    let row = volume.create(&node, DATA).await.unwrap();
    fs::remove_file(volume.path("disk.img")).unwrap();
    let place = node.containers.place(&row.spec.file_disks[0]);
    let place = place.await.unwrap();
    let made = place.local().begin().unwrap();
    made.file.write_all_at(b"ours", 0).unwrap();
    let mark = volume.path(".disk.img.vmlet-new");
    assert_eq!(mark.metadata().unwrap().len(), 0);
    fs::remove_file(&mark).unwrap();
    fs::write(&mark, "theirs").unwrap();
    assert!(place.local().finish(&made).unwrap());
    assert_eq!(volume.names(), ["disk.img"]);
    assert_eq!(fs::read(volume.path("disk.img")).unwrap(), b"ours");
}

#[tokio::test]
async fn a_qcow2_file_is_no_disk_unless_the_node_is_set_to_it() {
    let off = |settings: &mut crate::vm::Settings| settings.qcow2_file_disks = false;
    let node = Node::with_settings(libvirt::FakeHypervisor::default(), off).await;
    let volume = Volume::new();
    let disks = DATA.replace("size", "format: qcow2, size");
    let refused = volume.refused(&node, &disks).await;
    assert!(
        refused.contains("set vm.qcow2_file_disks = true"),
        "{refused}"
    );
    assert!(volume.names().is_empty() && node.rows.all().is_empty());
    volume.create(&node, DATA).await.unwrap();
}

#[tokio::test]
async fn two_containers_do_not_make_one_file() {
    let node = Node::new().await;
    let volume = Volume::new();
    let unfinished = volume.path(".disk.img.vmlet-new");
    let other = fs::File::create(&unfinished).unwrap();
    other.lock().unwrap();
    let refused = volume.refused(&node, DATA).await;
    assert!(
        refused.contains("/claims/a/disk.img is being made by another"),
        "{refused}"
    );
    assert_eq!(volume.names(), [".disk.img.vmlet-new"]);
    drop(other);
    volume.create(&node, DATA).await.unwrap();
}

#[tokio::test]
async fn a_refused_container_leaves_no_unfinished_file() {
    let node = Node::new().await;
    let volume = Volume::new();
    let two =
        "[{mountPath: /claims/a, size: 1Mi}, {mountPath: /claims/a, file: b, devicePath: /b}]";
    let refused = volume.refused(&node, two).await;
    assert!(refused.contains("with a size"), "{refused}");
    assert_eq!(volume.names(), ["disk.img"]);
    assert!(node.rows.all().is_empty());
}

#[rstest]
#[case::no_mount(
    "[{mountPath: /claims/b}]",
    "at which the container has no volumeMount"
)]
#[case::no_size("[{mountPath: /claims/a}]", "with a size in vmlet.dev/file-disks")]
#[case::text("nothing", "a YAML list is needed")]
#[tokio::test]
async fn what_cannot_be_made_is_refused(#[case] disks: &str, #[case] why: &str) {
    let node = Node::new().await;
    let volume = Volume::new();
    let refused = volume.refused(&node, disks).await;
    assert!(refused.contains(why), "{refused}");
    assert!(volume.names().is_empty() && node.rows.all().is_empty());
}

#[tokio::test]
async fn a_read_only_volume_has_its_disks_or_is_refused() {
    let node = Node::new().await;
    let mut volume = Volume::new();
    volume.read_only = true;
    let refused = volume.refused(&node, DATA).await;
    assert!(
        refused.contains("there is no file") && refused.contains("read-only"),
        "{refused}"
    );
    let refused = volume.refused(&node, ROOT).await;
    assert!(refused.contains("a machine needs to write"), "{refused}");
    fs::write(volume.path("disk.img"), vec![0; 512]).unwrap();
    let row = volume.create(&node, DATA).await.unwrap();
    assert_eq!(
        fs::metadata(volume.path("disk.img")).unwrap().len(),
        512,
        "it was grown"
    );
    assert!(
        node.containers
            .further_files(&row)
            .all(|disk| disk.read_only)
    );
}

#[rstest]
#[case::raw("raw", "are not followed")]
#[case::qcow2("qcow2", "are not followed")]
#[tokio::test]
async fn no_link_pipe_or_directory_of_a_volume_is_opened(#[case] format: &str, #[case] why: &str) {
    let node = Node::new().await;
    let volume = Volume::new();
    let disks = format!("[{{mountPath: /claims/a, format: {format}}}]");
    let disk = volume.path("disk.img");
    symlink("/etc/passwd", &disk).unwrap();
    let refused = volume.refused(&node, &disks).await;
    assert!(refused.contains(why), "{refused}");
    fs::remove_file(&disk).unwrap();
    nix::unistd::mkfifo(&disk, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = volume.refused(&node, &disks).await;
    assert!(refused.contains(why), "{refused}");
    fs::remove_file(&disk).unwrap();
    fs::create_dir(&disk).unwrap();
    let refused = volume.refused(&node, &disks).await;
    assert!(refused.contains(why), "{refused}");
}

#[tokio::test]
async fn a_planted_name_of_the_unfinished_file_is_not_followed() {
    let node = Node::new().await;
    let volume = Volume::new();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), "kept").unwrap();
    symlink(outside.path(), volume.path(".disk.img.vmlet-new")).unwrap();
    let refused = volume.refused(&node, DATA).await;
    assert!(refused.contains("are not followed"), "{refused}");
    assert!(node.rows.all().is_empty(), "the container stays");
    assert_eq!(fs::read(outside.path()).unwrap(), b"kept");
}

#[tokio::test]
async fn a_file_that_refers_to_others_is_refused() {
    let node = Node::new().await;
    let volume = Volume::new();
    let disk = volume.path("disk.img");
    let disks = "[{mountPath: /claims/a, format: qcow2}]";
    let made = Command::new("qemu-img")
        .args([
            "create",
            "-q",
            "-u",
            "-f",
            "qcow2",
            "-F",
            "raw",
            "-b",
            "/etc/shadow",
        ])
        .arg(&disk)
        .arg("1M")
        .status();
    assert!(made.unwrap().success());
    let refused = volume.refused(&node, disks).await;
    assert!(refused.contains("backing file"), "{refused}");
    fs::write(&disk, vec![0; 1024]).unwrap();
    let refused = volume.refused(&node, disks).await;
    assert!(refused.contains("is not qcow2"), "{refused}");
    fs::write(&disk, vec![0; 1000]).unwrap();
    let refused = volume.refused(&node, "[{mountPath: /claims/a}]").await;
    assert!(refused.contains("1000 bytes"), "{refused}");
    // No machine would boot from it.
    fs::write(&disk, [b"QFI\xfb".as_slice(), &[0; 508]].concat()).unwrap();
    let refused = volume.refused(&node, ROOT).await;
    assert!(refused.contains("state format: qcow2"), "{refused}");
}

#[tokio::test]
async fn a_size_of_the_root_disk_that_has_no_effect_is_reported() {
    let node = Node::new().await;
    let reported = async |volume: &Volume, pod: &str, disks: &[(&str, &str)]| {
        let mut pod = node.pod(pod);
        let size = ("VirtletRootVolumeSize".to_owned(), "8Mi".to_owned());
        let disks = disks.iter();
        let disks = disks.map(|(key, value)| (format!("vmlet.dev/{key}"), (*value).to_owned()));
        pod.annotations.extend(disks.chain([size]));
        let sandbox = node.sandboxes.run(pod).await.unwrap();
        let id = node.containers.create(&sandbox, volume.config(&node)).await;
        node.row(&id.unwrap()).spec.unsupported.join("; ")
    };
    let words = "annotation VirtletRootVolumeSize has no effect: the root disk is a volume";
    let volume = Volume::new();
    let data = Volume::new();
    let found = reported(&volume, "root", &[("file-disks", ROOT)]).await;
    assert!(found.contains(words), "{found}");
    let found = reported(&data, "data", &[("file-disks", DATA)]).await;
    assert!(!found.contains("VirtletRootVolumeSize"), "{found}");
}

//! Copies that have the blocks of their source, and the same copies on a file system that shares none.
//!
//! Invariant: as of the other tests; what a guest reads from a copy is what it reads from the source.
//! Failure: the bytes that a copy takes, or the difference that `qemu-img` found.

use std::sync::Arc;

use super::*;
use crate::testkit::Mounted;

const MIB: usize = 1 << 20;

/// What the file system takes for itself meanwhile.
const METADATA: u64 = 4 << 20;

fn random(size: usize) -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(..))
        .take(size)
        .collect()
}

fn qemu(program: &str, arguments: &[&str]) {
    let mut command = std::process::Command::new(program);
    let done = command.args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The bytes that a file has blocks for.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * BLOCK
}

#[rstest::rstest]
#[case::shared(Mounted::btrfs(512 << 20), true)]
#[case::written(Mounted::tmpfs(512 << 20), false)]
#[tokio::test]
#[ignore = "needs root"]
async fn a_direct_disk_has_the_blocks_of_its_image_where_the_file_system_can(
    #[case] files: Mounted,
    #[case] is_shared: bool,
) {
    let content = random(64 * MIB);
    let size = content.len() as u64;
    let image = files.path().join("image");
    let disk = files.path().join("disk");
    std::fs::write(&image, &content).unwrap();
    let before = files.used();
    qemu_img()
        .copy(&disk, raw(&image), 2 * size, |_| {})
        .await
        .unwrap();
    let grown = files.used().saturating_sub(before);
    assert_eq!(grown < METADATA, is_shared, "{grown} bytes more");
    // The image is not the disk's file.
    std::fs::remove_file(&image).unwrap();
    let back = files.path().join("back");
    qemu(
        "qemu-img",
        &["convert", "-O", "raw", text(&disk), text(&back)],
    );
    let back = std::fs::read(&back).unwrap();
    assert!(back[..content.len()] == content, "the content differs");
    assert!(back.len() == 2 * content.len());
}

#[rstest::rstest]
#[case::shared(Mounted::btrfs(512 << 20))]
#[case::written(Mounted::tmpfs(512 << 20))]
#[tokio::test]
#[ignore = "needs root"]
async fn a_copy_fills_no_hole_of_a_raw_image(#[case] files: Mounted) {
    let image = files.path().join("image");
    let disk = files.path().join("disk");
    std::fs::write(&image, random(8 * MIB)).unwrap();
    let sparse = File::options().write(true).open(&image).unwrap();
    sparse.set_len(128 << 20).unwrap();
    let before = files.used();
    qemu_img()
        .copy(&disk, raw(&image), 128 << 20, |_| {})
        .await
        .unwrap();
    let grown = files.used().saturating_sub(before);
    assert!(grown < (8 << 20) + METADATA, "{grown} bytes more");
    let has = allocated(&disk);
    assert!(has < (8 << 20) + METADATA, "{has} bytes allocated");
    qemu(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "qcow2",
            text(&image),
            text(&disk),
        ],
    );
}

/// A disk of two layers, and the image under them.
struct Layered {
    image: PathBuf,
    lower: PathBuf,
    upper: PathBuf,
}

impl Layered {
    /// 8 MiB of the image compress well, and 16 MiB of each layer do not.
    fn new(directory: &Path, options: &[&str]) -> Self {
        let plain = directory.join("plain");
        let words = "what compresses well, ".repeat(8 * MIB / 22);
        std::fs::write(&plain, words).unwrap();
        let file = File::options().write(true).open(&plain).unwrap();
        file.set_len(64 << 20).unwrap();
        let this = Self {
            image: directory.join("image.qcow2"),
            lower: directory.join("lower.qcow2"),
            upper: directory.join("upper.qcow2"),
        };
        let names = [text(&plain), text(&this.image)];
        let convert = ["convert", "-f", "raw", "-O", "qcow2"];
        qemu("qemu-img", &[&convert[..], options, &names[..]].concat());
        std::fs::remove_file(&plain).unwrap();
        let noise = directory.join("noise");
        overlay(&this.lower, &this.image, "80M");
        std::fs::write(&noise, random(16 * MIB)).unwrap();
        // In part over what the image has.
        change(&this.lower, &format!("write -s {} 4M 16M", text(&noise)));
        change(&this.lower, "write -z 1M 1M");
        change(&this.lower, "write -P 7 70M 64k");
        overlay(&this.upper, &this.lower, "96M");
        std::fs::write(&noise, random(16 * MIB)).unwrap();
        change(&this.upper, &format!("write -s {} 12M 16M", text(&noise)));
        change(&this.upper, "write -P 9 1500k 3k");
        change(&this.upper, "discard 5M 1M");
        change(&this.upper, "write -P 3 90M 64k");
        std::fs::remove_file(&noise).unwrap();
        this
    }

    fn source<'a>(&'a self, below: &'a [PathBuf]) -> Source<'a> {
        Source {
            disk: &self.upper,
            below,
            base: Some(Base {
                path: &self.image,
                format: Format::Qcow2,
            }),
            size: 96 << 20,
            access: Access::Lent,
            guard: Arc::new(()),
        }
    }

    /// Copies the disk; returns how many percent were reported.
    async fn copy(&self, copy: &Path) -> Vec<u8> {
        let below = [self.lower.clone()];
        let mut percents = Vec::new();
        qemu_img()
            .copy_out(self.source(&below), copy, |percent| percents.push(percent))
            .await
            .unwrap();
        percents
    }
}

fn overlay(path: &Path, base: &Path, size: &str) {
    let base = ["-F", "qcow2", "-b", text(base)];
    let create = ["create", "-q", "-f", "qcow2"];
    qemu(
        "qemu-img",
        &[&create[..], &base[..], &[text(path), size][..]].concat(),
    );
}

fn change(path: &Path, command: &str) {
    qemu("qemu-io", &["-f", "qcow2", "-c", command, text(path)]);
}

fn assert_equal(source: &Path, copy: &Path) {
    qemu("qemu-img", &["compare", "-q", text(source), text(copy)]);
    qemu("qemu-img", &["check", "-q", text(copy)]);
    let sizes = [source, copy].map(|path| {
        let file = File::open(path).unwrap();
        sizes::size_in_header(&file).unwrap()
    });
    assert_eq!(sizes[0], sizes[1]);
    let copy = File::open(copy).unwrap();
    assert!(!crate::images::names_backing_file(&copy).unwrap());
}

#[rstest::rstest]
#[case::plain(&[], 0)]
#[case::compressed(&["-c"], 8 << 20)]
// Smaller than a block: these are copied by the kernel or by the program.
#[case::small_clusters(&["-o", "cluster_size=512"], 8 << 20)]
#[tokio::test]
#[ignore = "needs root"]
async fn layers_are_shared_over_an_image_of_any_kind(
    #[case] options: &[&str],
    #[case] written: u64,
) {
    let files = Mounted::btrfs(512 << 20);
    let disk = Layered::new(files.path(), options);
    let before = files.used();
    let copy = files.path().join("copy");
    let percents = disk.copy(&copy).await;
    let grown = files.used().saturating_sub(before);
    assert!(grown < written + METADATA, "{grown} bytes more");
    assert_equal(&disk.upper, &copy);
    assert!(percents.is_sorted(), "{percents:?}");
    assert_eq!(percents.last(), Some(&100));
    // Each stands alone.
    change(&copy, "write -P 1 12M 1M");
    change(&disk.upper, "read -P 9 1500k 3k");
    std::fs::remove_file(&disk.image).unwrap();
    change(&copy, "read -P 1 12M 1M");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_copied_in_full_where_no_block_can_be_shared() {
    let files = Mounted::tmpfs(512 << 20);
    let disk = Layered::new(files.path(), &["-c"]);
    let copy = files.path().join("copy");
    disk.copy(&copy).await;
    assert_equal(&disk.upper, &copy);
    // An image of another file system.
    let other = Mounted::btrfs(512 << 20);
    let disk = Layered::new(other.path(), &[]);
    let copy = files.path().join("other");
    disk.copy(&copy).await;
    assert_equal(&disk.upper, &copy);
}

/// An emulator that its guest has taken over writes what it likes to the header of its layer.
#[tokio::test]
#[ignore = "needs root"]
async fn a_layer_that_is_larger_than_the_disk_is_copied_as_without_sharing() {
    let files = Mounted::btrfs(512 << 20);
    let disk = Layered::new(files.path(), &["-c"]);
    set_size(&disk.lower, 256 << 20);
    let copy = files.path().join("copy");
    disk.copy(&copy).await;
    assert_equal(&disk.upper, &copy);
}

#[test]
#[ignore = "needs root"]
fn a_directory_says_whether_its_files_can_share_blocks() {
    let can = Mounted::btrfs(256 << 20);
    assert_eq!(shared_in(can.path()), Some(true));
    let cannot = Mounted::tmpfs(16 << 20);
    assert_eq!(shared_in(cannot.path()), Some(false));
    assert_eq!(shared_in(&cannot.path().join("absent")), None);
    for files in [can, cannot] {
        let left = std::fs::read_dir(files.path()).unwrap().count();
        assert_eq!(left, 0, "{files:?}");
    }
}

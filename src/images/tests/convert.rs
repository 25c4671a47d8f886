//! Images in formats that the store converts, by the real qemu-img, and programs in its place.
//!
//! Invariant: a machine sees the content of the image; what is refused or fails leaves no disk.
//! Failure: tests with qemu-img fail if it is not installed.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::*;
use crate::disk::qemu_img::QemuImg;

/// A user without rights: `nobody`.
const UNPRIVILEGED: u32 = 65534;

/// Makes a store convert both formats.
pub(super) fn converting(settings: &mut Settings) {
    settings.convert = Convertible::ALL.to_vec();
    settings.converter = Some(Arc::new(QemuImg::new(UNPRIVILEGED)));
    // Where the program runs as another user, it reads images as a member of their group.
    settings.readers = nix::unistd::geteuid().is_root().then_some(UNPRIVILEGED);
}

/// What qemu-img makes of a raw disk.
pub(super) fn made(raw: &[u8], format: &str, options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["raw", "made"].map(|name| dir.path().join(name));
    std::fs::write(&paths[0], raw).unwrap();
    let made = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", format])
        .args(options)
        .args(&paths)
        .status();
    assert!(made.expect("qemu-img is installed").success());
    std::fs::read(&paths[1]).unwrap()
}

/// All bytes of a qcow2 disk.
fn content(path: &Path) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let read = Command::new("qemu-img")
        .args(["convert", "-f", "qcow2", "-O", "raw"])
        .args([path, &raw])
        .status();
    assert!(read.unwrap().success());
    std::fs::read(raw).unwrap()
}

/// A disk of 4 MiB with something at its beginning.
fn raw() -> Vec<u8> {
    let mut raw = disk(300, 1);
    raw.resize(4 << 20, 0);
    raw
}

fn vmdk() -> Vec<u8> {
    made(&raw(), "vmdk", &[])
}

fn streamed(raw: &[u8]) -> Vec<u8> {
    made(raw, "vmdk", &["-o", "subformat=streamOptimized"])
}

/// The sentences of an error and its causes.
fn words(error: &Error) -> String {
    crate::one_line(error)
}

#[tokio::test]
async fn a_converted_image_has_the_content_of_the_original() {
    let t = TestEnvironment::with(converting).await;
    let vhdx = made(&raw(), "vhdx", &["-o", "block_size=1M"]);
    let files = [vmdk(), streamed(&raw()), vhdx];
    for (n, file) in files.into_iter().enumerate() {
        let plain = format!("{n}.img");
        let packed = format!("{n}.img.gz");
        let image = t.pulled(&plain, &file).await;
        assert_eq!((image.format, image.virtual_size), (Format::Qcow2, 4 << 20));
        assert!(content(&image.path) == raw(), "{n}");
        let stored = std::fs::read(&image.path).unwrap();
        assert_eq!(image.digest, digest_of(&stored));
        assert_eq!(image.size, stored.len() as u64);
        let again = t.pulled(&packed, &packed::gzip(&file)).await;
        assert_eq!(again.digest, image.digest);
        registries::container_disk(&t.server, "c", &n.to_string(), &file, "");
        let name = t.server.name(&format!("c:{n}"));
        let url = format!("oci://{name}");
        let of_registry = t.images.pull(Locator::new(&name, Some(&url))).await;
        assert_eq!(of_registry.unwrap().digest, image.digest);
    }
    assert!(t.partials().is_empty(), "{:?}", t.partials());
}

#[tokio::test]
async fn the_file_of_a_converted_image_is_as_that_of_any_other() {
    let t = TestEnvironment::with(converting).await;
    let facts = |image: &Image| {
        let file = std::fs::metadata(&image.path).unwrap();
        (file.uid(), file.gid(), file.mode())
    };
    let other = t.pulled("a.img", &raw()).await;
    let converted = t.pulled("b.vmdk", &vmdk()).await;
    assert_eq!(facts(&converted), facts(&other));
}

#[tokio::test]
async fn a_digest_in_the_name_is_that_of_the_file_on_the_server() {
    let t = TestEnvironment::with(converting).await;
    let file = vmdk();
    let image = t.pulled("a.vmdk", &file).await;
    assert_ne!(image.digest, digest_of(&file));
    let by_digest = format!("{}@{}", t.server.name("a.vmdk"), digest_of(&file));
    assert_eq!(image.digests, std::slice::from_ref(&by_digest));
    // Unchanged, it is not sent again; with its digest, the server gets no request at all.
    let again = t.images.pull(&t.server.name("a.vmdk")).await.unwrap();
    assert_eq!(again.digest, image.digest);
    assert_eq!(t.server.seen().len(), 2);
    let t = t.reopened().await;
    let again = t.images.pull(&by_digest).await.unwrap();
    assert_eq!(again.digest, image.digest);
    assert_eq!(t.server.seen().len(), 2);
}

#[tokio::test]
async fn without_the_setting_the_refusal_names_it() {
    let t = TestEnvironment::with(|s| {
        converting(s);
        s.convert = vec![Convertible::Vhdx];
    })
    .await;
    let name = t.server.name("a.vmdk");
    for file in [vmdk(), packed::gzip(&vmdk())] {
        t.server.offer("a.vmdk", &file, "1");
        let pulled = t.images.pull(&name).await.unwrap_err();
        let inspected = t.images.inspect(&name).await.unwrap_err();
        for error in [pulled, inspected] {
            assert_eq!(
                error.to_string(),
                format!(
                    "unusable image from {name}: it is a VMDK disk; convert it to qcow2 or raw \
                     first, or add \"vmdk\" to images.convert of the node, so that the node \
                     converts such images"
                )
            );
        }
    }
    assert!(t.partials().is_empty() && t.data().is_empty());
    t.pulled("a.vhdx", &made(&raw(), "vhdx", &[])).await;
}

#[tokio::test]
async fn an_image_that_would_read_a_file_of_the_node_is_refused_before_its_conversion() {
    let fake = Arc::new(Fake::default());
    let t = TestEnvironment::with(|s| fake.replace(s)).await;
    let mut hostile = vmdk();
    let at = hostile.windows(4).position(|w| w == b"#DDB").unwrap();
    let hint = b"parentFileNameHint=\"/etc/passwd\"\n";
    hostile[at..at + hint.len()].copy_from_slice(hint);
    for file in [hostile.clone(), packed::gzip(&hostile)] {
        t.server.offer("a.vmdk", &file, "1");
        let error = t.images.pull(&t.server.name("a.vmdk")).await.unwrap_err();
        let refused = FormatError::Convertible {
            from: Convertible::Vmdk,
            reason: ConvertibleError::Parent,
        };
        assert!(
            matches!(error, Error::Format { reason, .. } if reason == refused),
            "{error}"
        );
        assert!(words(&error).contains("it has a parent disk"), "{error}");
    }
    let mut open = made(&raw(), "vhdx", &[]);
    open[(64 << 10) + 48] = 1;
    open[(128 << 10) + 48] = 1;
    t.server.offer("a.vhdx", &open, "1");
    let error = t.images.pull(&t.server.name("a.vhdx")).await.unwrap_err();
    assert!(words(&error).contains("its log has changes"), "{error}");
    assert!(t.partials().is_empty() && t.data().is_empty());
    assert!(!fake.was_called());
}

#[tokio::test]
async fn a_disk_above_the_limits_is_refused_before_its_conversion() {
    let fake = Arc::new(Fake::default());
    let t = TestEnvironment::with(|s| {
        fake.replace(s);
        s.max_virtual_bytes = (4 << 20) - 512;
    })
    .await;
    for file in [vmdk(), made(&raw(), "vhdx", &["-o", "block_size=1M"])] {
        t.server.offer("a", &file, "1");
        let error = t.images.pull(&t.server.name("a")).await.unwrap_err();
        let limit = FormatError::VirtualSize {
            size: 4 << 20,
            limit: (4 << 20) - 512,
        };
        assert!(
            matches!(error, Error::Format { reason, .. } if reason == limit),
            "{error}"
        );
    }
    assert!(t.partials().is_empty() && t.data().is_empty());
    assert!(!fake.was_called());
}

#[tokio::test]
async fn a_small_file_with_a_large_content_ends_at_the_limit() {
    let t = TestEnvironment::with(|s| {
        converting(s);
        s.max_download_bytes = 1 << 20;
    })
    .await;
    let bomb = streamed(&vec![7; 8 << 20]);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    t.server.offer("a.vmdk", &bomb, "1");
    let error = t.images.pull(&t.server.name("a.vmdk")).await.unwrap_err();
    let is_limit = matches!(error, Error::TooLarge { limit, .. } if limit == 1 << 20);
    assert!(is_limit, "{error}");
    assert!(t.partials().is_empty() && t.data().is_empty());
}

#[tokio::test]
async fn a_conversion_that_finds_no_room_keeps_the_download() {
    let file = streamed(&vec![7; 8 << 20]);
    let t = TestEnvironment::with(|s| {
        converting(s);
        s.max_partial_bytes = 1 << 20;
    })
    .await;
    t.server.offer("a.vmdk", &file, "1");
    let name = t.server.name("a.vmdk");
    let error = t.images.pull(&name).await.unwrap_err();
    let is_limit = matches!(error, Error::Crowded { limit } if limit == 1 << 20);
    assert!(is_limit, "{error}");
    assert_eq!(t.partials().len(), 2, "the download and its note");
}

#[tokio::test]
async fn a_file_that_qemu_img_cannot_read_is_refused_in_its_words() {
    let t = TestEnvironment::with(converting).await;
    let mut file = streamed(&raw());
    // The first grain is compressed; its header stays.
    let end = file.len();
    file[(64 << 10) + 64..end].fill(0x55);
    t.server.offer("a.vmdk", &file, "1");
    let error = t.images.pull(&t.server.name("a.vmdk")).await.unwrap_err();
    assert!(matches!(error, Error::Convert { .. }), "{error}");
    assert!(error.to_string().contains("qemu-img: "), "{error}");
    assert_eq!(t.partials().len(), 2, "the download and its note");
    assert!(t.data().is_empty());
}

#[tokio::test]
async fn what_becomes_another_disk_is_refused() {
    let fake = Arc::new(Fake {
        writes: made(&disk(64, 1), "qcow2", &[]),
        ..Fake::default()
    });
    let t = TestEnvironment::with(|s| fake.replace(s)).await;
    t.server.offer("a.vmdk", &vmdk(), "1");
    let error = t.images.pull(&t.server.name("a.vmdk")).await.unwrap_err();
    assert!(error.to_string().contains("another disk"), "{error}");
    assert!(fake.was_called());
    assert!(t.data().is_empty());
}

#[tokio::test]
async fn a_conversion_ends_with_the_daemon_and_the_next_pull_repeats_it() {
    let fake = Arc::new(Fake {
        hangs: true,
        ..Fake::default()
    });
    let t = TestEnvironment::with(|s| fake.replace(s)).await;
    t.server.offer("a.vmdk", &vmdk(), "1");
    let images = t.images.clone();
    let name = t.server.name("a.vmdk");
    let pull = tokio::spawn(async move { images.pull(&name).await });
    fake.began.notified().await;
    tokio::time::timeout(TIMEOUT, t.images.settle())
        .await
        .unwrap();
    let error = pull.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Stopping), "{error}");
    assert_eq!(t.partials().len(), 2, "the download and its note");

    let mut settings = t.settings.clone();
    converting(&mut settings);
    let images = Images::open(t.db.clone(), settings).await.unwrap();
    let image = images.pull(&t.server.name("a.vmdk")).await.unwrap();
    assert!(content(&image.path) == raw());
    // The second request was whether the file is still the same.
    let seen = t.server.seen();
    assert!(seen[1].header(http::header::IF_NONE_MATCH).is_some());
    assert!(t.partials().is_empty(), "{:?}", t.partials());
}

#[tokio::test]
async fn inspection_says_what_a_pull_makes_of_the_image() {
    let t = TestEnvironment::with(converting).await;
    let vhdx = made(&raw(), "vhdx", &[]);
    for (file, virtual_bytes) in [(vmdk(), 4 << 20), (vhdx, 0)] {
        t.server.offer("a", &file, "1");
        let found = t.images.inspect(&t.server.name("a")).await.unwrap();
        let expected = Inspected {
            format: Some(Format::Qcow2),
            virtual_bytes,
            file_bytes: file.len() as u64,
            bootable: true,
            firmware: None,
            digest: None,
        };
        assert_eq!(found, expected);
    }
}

/// A program in the place of qemu-img.
#[derive(Debug, Default)]
struct Fake {
    writes: Vec<u8>,
    hangs: bool,
    began: Notify,
    called: AtomicBool,
}

impl Fake {
    fn replace(self: &Arc<Self>, settings: &mut Settings) {
        converting(settings);
        settings.converter = Some(Arc::clone(self) as Arc<dyn Converter>);
    }

    fn was_called(&self) -> bool {
        self.called.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Converter for Fake {
    fn convert<'a>(&'a self, work: &'a Conversion) -> BoxFuture<'a, Result<(), Unconverted>> {
        self.called
            .store(true, std::sync::atomic::Ordering::Relaxed);
        self.began.notify_one();
        Box::pin(async {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            let written = std::fs::write(&work.target, &self.writes);
            written.map_err(|e| Unconverted::Failed(e.to_string()))
        })
    }
}

//! The real `qemu-img`, and scripts in its place.
//!
//! Invariant: each test has a scratch directory of its own.
//! Failure: none expected.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A user without rights: `nobody`.
const UNPRIVILEGED: u32 = 65534;

/// The program as an unprivileged user; a test that is not root runs it as its own user.
fn qemu_img() -> QemuImg {
    QemuImg::new(UNPRIVILEGED, UNPRIVILEGED)
}

/// A shell script in the place of the program; `$2` and so on are the program's arguments.
fn script(dir: &Path, text: &str) -> QemuImg {
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let user = User {
        uid: UNPRIVILEGED,
        gid: UNPRIVILEGED,
    };
    QemuImg::with(Helper::new(path, user))
}

/// An image of 1 MiB, and where a disk may be made.
fn files(dir: &Path) -> (PathBuf, PathBuf) {
    let (image, disk) = (dir.join("image"), dir.join("disk"));
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    (image, disk)
}

fn raw(path: &Path) -> Base<'_> {
    let format = Format::Raw;
    Base { path, format }
}

#[tokio::test]
async fn a_copy_needs_nothing_but_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let base = raw(&image);
    let mut last = 0;
    qemu_img()
        .copy(&disk, base, 4 << 20, |percent| last = percent)
        .await
        .unwrap();
    assert_eq!(last, 100);
    std::fs::remove_file(&image).unwrap();
    let check = Command::new("qemu-img").arg("info").arg(&disk).output();
    let text = String::from_utf8(check.await.unwrap().stdout).unwrap();
    assert!(text.contains("4 MiB"), "{text}");
    assert!(!text.contains("backing"), "{text}");
    let gone = qemu_img().copy(&disk, base, 1, |_| {}).await.unwrap_err();
    assert!(gone.reason.contains("image"), "{gone}");
    assert!(!disk.exists(), "a part of a disk is left");
}

#[tokio::test]
async fn a_program_that_outlived_an_earlier_attempt_delays_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let base = raw(&image);
    qemu_img().overlay(&disk, base, 1 << 20).await.unwrap();
    let mut other = Command::new("qemu-io");
    other.args(["-f", "qcow2"]).arg(&disk).kill_on_drop(true);
    other.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().unwrap();
    let mut words = other.stdin.take().unwrap();
    words.write_all(b"length\n").await.unwrap();
    let mut reported = [0; 16];
    let reported = other.stdout.as_mut().unwrap().read(&mut reported).await;
    assert!(reported.unwrap() > 0, "it has the disk open");
    qemu_img().overlay(&disk, base, 1 << 20).await.unwrap();
    qemu_img().copy(&disk, base, 1 << 20, |_| {}).await.unwrap();
    assert!(other.try_wait().unwrap().is_none());
    drop(words);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_the_programs_only_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    // The directory is closed to the program: it gets descriptors.
    let owner = || {
        let disk = std::fs::metadata(&disk).unwrap();
        (disk.uid(), disk.mode() & 0o777)
    };
    qemu_img()
        .overlay(&disk, raw(&image), 1 << 20)
        .await
        .unwrap();
    assert_eq!(owner(), (0, 0o600));
    qemu_img()
        .copy(&disk, raw(&image), 1 << 20, |_| {})
        .await
        .unwrap();
    assert_eq!(owner(), (0, 0o600));
    qemu_img().grow(&disk, 8 << 20).await.unwrap();
    assert_eq!(owner(), (0, 0o600));
    // A disk that another user has is written as that user.
    std::os::unix::fs::chown(&disk, Some(4711), Some(4711)).unwrap();
    qemu_img().grow(&disk, 16 << 20).await.unwrap();
    assert_eq!(owner(), (4711, 0o600));
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_verb_runs_as_the_configured_user() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let fake = script(
        dir.path(),
        "id -u >&2; grep -h ^CapEff /proc/self/status >&2; exit 1",
    );
    let device = || File::options().read(true).write(true).open(&image).unwrap();
    let part = Part {
        path: &image,
        offset: 0,
        size: 1 << 20,
    };
    let errors = [
        fake.overlay(&disk, raw(&image), 512).await.unwrap_err(),
        fake.copy(&disk, raw(&image), 512, |_| {})
            .await
            .unwrap_err(),
        fake.grow(&image, 2 << 20).await.unwrap_err(),
        fake.write(part, raw(&image), 512, device(), |_| {})
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.reason, "65534\nCapEff:\t0000000000000000");
    }
    assert_eq!(std::fs::metadata(&image).unwrap().uid(), 0);
}

#[tokio::test]
async fn a_program_that_writes_too_much_is_ended_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    // The last argument is the disk.
    let fake = script(
        dir.path(),
        "for last; do :; done; exec head -c 100000000 /dev/zero >$last",
    );
    let refused = fake.copy(&disk, raw(&image), 1 << 20, |_| {}).await;
    assert_eq!(
        refused.unwrap_err().reason,
        "qemu-img wrote more than the disk may take"
    );
    assert!(!disk.exists());
}

#[tokio::test]
async fn disks_beyond_the_budget_of_the_node_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = files(dir.path());
    let (pods, disks) = (dir.path().join("pods"), dir.path().join("disks"));
    let place = |root: &Path, name: &str, file: &str| {
        std::fs::create_dir_all(root.join(name)).unwrap();
        root.join(name).join(file)
    };
    let budget = Budget::new(Some(10 << 20), 0, vec![pods.clone(), disks.clone()]);
    let qemu_img = qemu_img().within(budget);
    let pod = place(&pods, "a", "root.qcow2");
    qemu_img.overlay(&pod, raw(&image), 4 << 20).await.unwrap();
    let whole = place(&disks, "b", "root.new");
    qemu_img
        .copy(&whole, raw(&image), 4 << 20, |_| {})
        .await
        .unwrap();

    let third = place(&disks, "c", "root.new");
    for refused in [
        qemu_img.overlay(&third, raw(&image), 3 << 20).await,
        qemu_img.copy(&third, raw(&image), 3 << 20, |_| {}).await,
        qemu_img.grow(&pod, 7 << 20).await,
    ] {
        let reason = refused.unwrap_err().reason;
        assert!(
            reason.contains("the node's disk budget of 10485760 bytes"),
            "{reason}"
        );
    }
    assert!(!third.exists());
    qemu_img
        .overlay(&third, raw(&image), 2 << 20)
        .await
        .unwrap();
    // What is gone counts no more.
    std::fs::remove_file(&whole).unwrap();
    qemu_img.grow(&pod, 8 << 20).await.unwrap();
}

#[tokio::test]
async fn the_reserve_of_the_file_system_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let qemu_img = qemu_img().within(Budget::new(None, u64::MAX, Vec::new()));
    for refused in [
        qemu_img.overlay(&disk, raw(&image), 1 << 20).await,
        qemu_img.copy(&disk, raw(&image), 1 << 20, |_| {}).await,
    ] {
        let reason = refused.unwrap_err().reason;
        assert!(reason.starts_with("No space left on device: "), "{reason}");
        assert!(
            reason.ends_with("are reserved (images.reserve)"),
            "{reason}"
        );
    }
    assert!(!disk.exists());
}

/// A file system of 32 MiB, gone with this.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A small qcow2 whose guest would see 64 MiB of data: all entries of its L2 table are one cluster.
fn bomb(dir: &Path) -> PathBuf {
    let path = dir.join("bomb");
    let run = |program: &str, args: &[&str]| {
        let mut command = std::process::Command::new(program);
        let done = command.args(args).arg(&path).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-o", "size=64M"],
    );
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 64k"]);
    let mut bytes = std::fs::read(&path).unwrap();
    let number = |bytes: &[u8], at: usize| {
        let eight: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
        // Without the flag in the highest bit.
        usize::try_from(u64::from_be_bytes(eight) & !(1 << 63)).unwrap()
    };
    let table = number(&bytes, number(&bytes, 40));
    let cluster = number(&bytes, table) as u64;
    for entry in 0..1024 {
        let at = table + entry * 8;
        bytes[at..at + 8].copy_from_slice(&cluster.to_be_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_image_whose_clusters_are_shared_cannot_fill_the_disk() {
    use nix::mount::{MsFlags, mount};
    let dir = tempfile::tempdir().unwrap();
    let image = bomb(dir.path());
    assert!(std::fs::metadata(&image).unwrap().len() < 1 << 20);
    let small = Small(dir.path().join("small"));
    std::fs::create_dir(&small.0).unwrap();
    let kind = Some("tmpfs");
    mount(kind, &small.0, kind, MsFlags::empty(), Some("size=32m")).unwrap();
    let base = Base {
        path: &image,
        format: Format::Qcow2,
    };
    let disk = small.0.join("disk");
    let limited = qemu_img().within(Budget::new(None, 8 << 20, Vec::new()));
    let refused = limited
        .copy(&disk, base, 64 << 20, |_| {})
        .await
        .unwrap_err();
    assert_eq!(
        refused.reason,
        "No space left on device: the disk takes more than the 25165824 bytes that are free beside \
         the reserve (images.reserve)"
    );
    assert!(!disk.exists());
    // Where there is room, it becomes an ordinary disk of its virtual size.
    let roomy = dir.path().join("disk");
    qemu_img()
        .copy(&roomy, base, 64 << 20, |_| {})
        .await
        .unwrap();
    let length = std::fs::metadata(&roomy).unwrap().len();
    assert!(length <= (64 << 20) + tables(64 << 20), "{length}");
}

//! The real `qemu-img`, and scripts in its place.
//!
//! Invariant: each test has a scratch directory of its own.
//! Failure: none expected.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const NOBODY: u32 = 65534;

/// Run as nobody where the test may change users.
fn qemu_img() -> QemuImg {
    QemuImg::new(NOBODY, NOBODY)
}

/// A shell script in the place of the program; `$2` and so on are the program's arguments.
fn script(dir: &Path, text: &str) -> QemuImg {
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let user = User {
        uid: NOBODY,
        gid: NOBODY,
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
async fn a_program_that_outlived_an_earlier_attempt_is_in_nobodys_way() {
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

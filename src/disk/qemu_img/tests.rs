//! The real `qemu-img`, and scripts in its place.
//!
//! Invariant: each test has a scratch directory of its own.
//! Failure: none expected.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::*;
use crate::helper;
use crate::metadata::Db;
use crate::space::Space;

mod blocks;
mod export;
mod lent;
mod replaced;
mod shared;

/// The user ID of a user without rights.
const UNPRIVILEGED: u32 = 65534;

/// The program as unprivileged users; a test that is not root runs it as its own user.
fn qemu_img() -> QemuImg {
    QemuImg::new(UNPRIVILEGED)
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
    // Scripts wait at pipes.
    QemuImg::with(Helper::as_user(path, user).reaching(dir))
}

/// An image of 1 MiB, and where a disk may be made.
fn files(dir: &Path) -> (PathBuf, PathBuf) {
    let image = dir.join("image");
    let disk = dir.join("disk");
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    (image, disk)
}

/// A file of a volume.
fn opened(path: &Path) -> Open<File> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    Foreign::default().keep("/volume", file)
}

const fn as_disk(file: Open<File>, format: Format) -> OpenDisk {
    OpenDisk { file, format }
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

/// A pod that has the volume, too, gives a disk that is being made to another user of the node, and
/// writes a header that has the content in a file of that user.
#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_that_is_swapped_while_it_is_made_leads_to_no_file_of_the_node() {
    const VICTIM: u32 = 4242;
    let volume = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (image, path) = files(volume.path());
    let target = home.path().join("authorized_keys");
    let plan = volume.path().join("plan");
    let data = format!("data_file={},data_file_raw=on", target.display());
    let mut create = std::process::Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-o", &data]);
    let made = create.arg(&plan).arg("1M").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let swap = std::fs::read(&plan).unwrap();
    std::fs::write(&target, "kept").unwrap();
    for owned in [home.path(), &target] {
        std::os::unix::fs::chown(owned, Some(VICTIM), Some(VICTIM)).unwrap();
    }

    std::fs::write(&path, "").unwrap();
    qemu_img()
        .format_qcow2(opened(&path), 1 << 20)
        .await
        .unwrap();
    let attack = || {
        std::fs::write(&path, &swap).unwrap();
        std::os::unix::fs::chown(&path, Some(VICTIM), Some(VICTIM)).unwrap();
    };
    attack();
    let program = qemu_img();
    let filled = program.fill(
        as_disk(opened(&path), Format::Qcow2),
        raw(&image),
        1 << 20,
        |_| {},
    );
    let refused = filled.await.unwrap_err();
    assert!(refused.contains("external data file"), "{refused}");
    let owner = || std::fs::metadata(&path).unwrap().uid();
    assert_eq!(owner(), VICTIM, "not taken back before the error");
    // A file that all may write to, as others of its owner; the program opens the disk after the swap.
    for file in [home.path(), &target] {
        std::fs::set_permissions(file, Permissions::from_mode(0o777)).unwrap();
    }
    let text = "for last; do :; done; disk=${last##*=}; cat plan >$disk; exec qemu-img \"$@\"";
    let text = text.replace("plan", &plan.display().to_string());
    for has_landlock in [true, false] {
        for owner in [0, VICTIM] {
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&plan, Permissions::from_mode(0o644)).unwrap();
            let program = qemu_img();
            program.format_qcow2(opened(&path), 1 << 20).await.unwrap();
            std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
            let mut program = script(volume.path(), &text);
            if !has_landlock {
                program.helper = program.helper.without_landlock();
            }
            let filled = program.fill(
                as_disk(opened(&path), Format::Qcow2),
                raw(&image),
                1 << 20,
                |_| {},
            );
            let refused = filled.await.unwrap_err();
            assert!(refused.contains("authorized_keys"), "{refused}");
            assert_eq!(std::fs::read(&target).unwrap(), b"kept", "{has_landlock}");
        }
    }
    attack();
    let enlarged = qemu_img().enlarge_qcow2(opened(&path), 2 << 20).await;
    assert_eq!(owner(), VICTIM, "not taken back before the error");
    for refused in [
        enlarged.unwrap_err(),
        // A disk of ours, whose emulator its guest has taken over.
        qemu_img().grow(&path, 2 << 20).await.unwrap_err().reason,
    ] {
        assert!(refused.contains("external data file"), "{refused}");
    }
    assert_eq!(std::fs::read(&target).unwrap(), b"kept");
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
    let node = TestNode::new(dir.path());
    let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
    let pod = node.place("pods/a/root.qcow2");
    qemu_img.overlay(&pod, raw(&image), 4 << 20).await.unwrap();
    let whole = node.place("disks/b/root.new");
    qemu_img
        .copy(&whole, raw(&image), 4 << 20, |_| {})
        .await
        .unwrap();

    let third = node.place("disks/c/root.new");
    for refused in [
        qemu_img.overlay(&third, raw(&image), 3 << 20).await,
        qemu_img.copy(&third, raw(&image), 3 << 20, |_| {}).await,
        qemu_img.grow(&pod, 7 << 20).await,
    ] {
        let refused = refused.unwrap_err();
        assert!(refused.is_over_budget(), "{refused}");
        let reason = refused.reason;
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
    let whole = whole.parent().unwrap();
    std::fs::remove_dir_all(whole).unwrap();
    qemu_img.forget(whole).await.unwrap();
    qemu_img.grow(&pod, 8 << 20).await.unwrap();
}

/// QEMU writes its disk, and with it the header.
#[rstest::rstest]
#[case::one_byte(1)]
#[case::all_that_there_is(u64::MAX)]
#[tokio::test]
async fn what_a_machine_writes_to_its_header_changes_no_budget(#[case] size: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = files(dir.path());
    let node = TestNode::new(dir.path());
    let first = node.place("pods/a/root.qcow2");
    let second = node.place("pods/b/root.qcow2");
    for is_restarted in [false, true] {
        let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
        if !is_restarted {
            qemu_img
                .overlay(&first, raw(&image), 6 << 20)
                .await
                .unwrap();
            set_size(&first, size);
        }
        let refused = qemu_img.overlay(&second, raw(&image), 5 << 20).await;
        let reason = refused.unwrap_err().reason;
        assert!(
            reason.contains("other disks have 6291456 bytes"),
            "{reason}"
        );
        qemu_img
            .overlay(&second, raw(&image), 4 << 20)
            .await
            .unwrap();
        std::fs::remove_dir_all(second.parent().unwrap()).unwrap();
        qemu_img.forget(second.parent().unwrap()).await.unwrap();
        node.place("pods/b/root.qcow2");
    }
}

/// As an earlier version left it.
#[tokio::test]
async fn a_disk_without_a_record_is_measured_once_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = files(dir.path());
    let node = TestNode::new(dir.path());
    let disk = node.place("pods/a/root.qcow2");
    qemu_img()
        .overlay(&disk, raw(&image), 6 << 20)
        .await
        .unwrap();
    drop(node.qemu_img(None, 0).await);
    set_size(&disk, 1);
    let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
    let second = node.place("pods/b/root.qcow2");
    let refused = qemu_img.overlay(&second, raw(&image), 5 << 20).await;
    let reason = refused.unwrap_err().reason;
    assert!(
        reason.contains("other disks have 6291456 bytes"),
        "{reason}"
    );
    // A disk that went while no daemon ran counts no more.
    std::fs::remove_dir_all(disk.parent().unwrap()).unwrap();
    let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
    qemu_img
        .overlay(&second, raw(&image), 10 << 20)
        .await
        .unwrap();
}

/// A daemon that dies while the disk grows must not count less than the disk may have.
#[tokio::test]
async fn a_disk_counts_as_grown_before_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = files(dir.path());
    let node = TestNode::new(dir.path());
    let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
    let disk = node.place("disks/a/root.qcow2");
    qemu_img.overlay(&disk, raw(&image), 2 << 20).await.unwrap();
    let (failing, begun, go_on) = held(dir.path(), "resize", "echo broken >&2; exit 1");
    let failing = failing.within(qemu_img.budget.clone());
    let growing = tokio::spawn(async move { failing.grow(&disk, 8 << 20).await });
    tokio::fs::read(&begun).await.unwrap();
    let second = node.place("disks/b/root.new");
    let refused = qemu_img.overlay(&second, raw(&image), 3 << 20).await;
    let reason = refused.unwrap_err().reason;
    assert!(
        reason.contains("other disks have 8388608 bytes"),
        "{reason}"
    );
    tokio::fs::write(&go_on, "").await.unwrap();
    let failed = growing.await.unwrap().unwrap_err();
    assert_eq!(failed.reason, "broken");
    // It is as it was.
    qemu_img
        .overlay(&second, raw(&image), 8 << 20)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_reserve_of_the_file_system_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let qemu_img = TestNode::new(dir.path()).qemu_img(None, u64::MAX).await;
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

#[tokio::test(start_paused = true)]
async fn a_look_at_the_header_of_a_disk_that_does_not_answer_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (_, disk) = files(dir.path());
    let program = qemu_img();
    let _hung = program.foreign.hold(disk.display().to_string());
    let refused = program.is_overlay(&disk).await.unwrap_err().to_string();
    assert!(refused.starts_with("open it: "), "{refused}");
    assert!(refused.contains("did not answer within 20 s"), "{refused}");
}

/// The directories and the database of a node.
struct TestNode {
    root: PathBuf,
    db: Db,
}

impl TestNode {
    fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            db: Db::in_memory().unwrap(),
        }
    }

    /// As the daemon starts it.
    async fn qemu_img(&self, most: Option<u64>, reserve: u64) -> QemuImg {
        let roots = vec![self.root.join("pods"), self.root.join("disks")];
        let space = Space::new(reserve);
        let budget = Budget::open(most, space, self.db.clone(), roots).await;
        qemu_img().within(budget.unwrap())
    }

    /// Where a disk may be made.
    fn place(&self, path: &str) -> PathBuf {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

/// A program that says that it has begun, and waits, before it does this for a verb; others it does
/// at once.
fn held(dir: &Path, verb: &str, then: &str) -> (QemuImg, PathBuf, PathBuf) {
    let begun = dir.join("begun");
    let go_on = dir.join("go-on");
    for pipe in [&begun, &go_on] {
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::empty()).unwrap();
        std::fs::set_permissions(pipe, Permissions::from_mode(0o666)).unwrap();
    }
    let begun_at = begun.display();
    let go_on_at = go_on.display();
    let text = format!("[ $1 != {verb} ] || {{ : >{begun_at}; : <{go_on_at}; }}; {then}");
    (script(dir, &text), begun, go_on)
}

/// Writes a virtual size to a header, as QEMU could.
fn set_size(disk: &Path, size: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = File::options().write(true).open(disk).unwrap();
    file.write_all_at(&size.to_be_bytes(), 24).unwrap();
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
    let limited = TestNode::new(dir.path()).qemu_img(None, 8 << 20).await;
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

/// Each alone would fit.
#[tokio::test]
#[ignore = "needs root"]
async fn copies_that_are_written_together_leave_the_reserve_alone() {
    use nix::mount::{MsFlags, mount};
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![7; 12 << 20]).unwrap();
    let small = Small(dir.path().join("small"));
    std::fs::create_dir(&small.0).unwrap();
    let kind = Some("tmpfs");
    mount(kind, &small.0, kind, MsFlags::empty(), Some("size=32m")).unwrap();
    let limited = TestNode::new(&small.0).qemu_img(None, 8 << 20).await;
    let (held, begun, go_on) = held(dir.path(), "convert", "exec qemu-img \"$@\"");
    let held = held.within(limited.budget.clone());
    let first = {
        let image = image.clone();
        let disk = small.0.join("first");
        tokio::spawn(async move { held.copy(&disk, raw(&image), 12 << 20, |_| {}).await })
    };
    tokio::fs::read(&begun).await.unwrap();
    let second = small.0.join("second");
    let refused = limited.copy(&second, raw(&image), 12 << 20, |_| {}).await;
    let reason = refused.unwrap_err().reason;
    assert!(
        reason.starts_with("No space left on device: 12582912 bytes are needed, 33554432 are free"),
        "{reason}"
    );
    // An overlay takes next to nothing, and waits for no copy.
    let overlay = small.0.join("overlay");
    limited
        .overlay(&overlay, raw(&image), 12 << 20)
        .await
        .unwrap();
    tokio::fs::write(&go_on, "").await.unwrap();
    first.await.unwrap().unwrap();
    let free = nix::sys::statvfs::statvfs(&small.0).unwrap();
    assert!(free.blocks_available() * free.fragment_size() >= 8 << 20);
}

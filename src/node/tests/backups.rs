//! Backups as tasks: full ones, increments, and what ends a chain; verified, restored and removed, and across the ends of
//! this process.
//!
//! Invariant: real disks, `qemu-img` and a real directory; what a guest would read is compared byte by byte.
//! Failure: a test prints the task that did not end as it should.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use libvirt::FakeHypervisor;
use serde_json::json;

use super::*;
use crate::backup::{Location, Targets};
use crate::disk::{DesiredDisk, SnapshotUid};

mod ends;
mod exports;
mod machines;
mod restores;

const SIZE: u64 = 8 << 20;
const VM: u32 = 9;
const NEW: u32 = 10;

/// A node with a disk, and an agenda with a target.
struct Backups {
    node: Node,
    agenda: Arc<Tasks>,
    scratch: tempfile::TempDir,
    tasks: u32,
    _work: AbortOnDropHandle<()>,
}

impl Backups {
    async fn of_disk(linked: bool) -> Self {
        let node = Node::new().await;
        make_disk(&node, linked).await;
        Self::on(node, tempfile::tempdir().unwrap(), 0).await
    }

    async fn on(node: Node, scratch: tempfile::TempDir, tasks: u32) -> Self {
        let agenda = Arc::into_inner(agenda(&node).await).unwrap();
        let agenda = Arc::new(agenda.with_targets(targets(scratch.path())));
        let _work = work(&agenda);
        Self {
            node,
            agenda,
            scratch,
            tasks,
            _work,
        }
    }

    fn targets(&self) -> Targets {
        targets(self.scratch.path())
    }

    /// As after a restart of the daemon.
    async fn restarted(self) -> Self {
        let Self {
            node,
            agenda,
            scratch,
            tasks,
            _work,
        } = self;
        drop((agenda, _work));
        Self::on(node.restarted().await, scratch, tasks).await
    }

    async fn run_of(&mut self, vm: u32, work: Work) -> Arc<Task> {
        self.tasks += 1;
        let task = uid(self.tasks);
        self.agenda.submit(task, uid(vm), work).await.unwrap();
        ended(&self.agenda, task).await
    }

    async fn run(&mut self, work: Work) -> Arc<Task> {
        self.run_of(VM, work).await
    }

    async fn done(&mut self, n: u32) -> DoneBackup {
        let task = self.run(backup(n)).await;
        assert_eq!(task.state, State::Success, "{task:?}");
        task.backup.clone().unwrap()
    }

    async fn failure(&mut self, work: Work) -> Failure {
        self.run(work).await.failure.clone().unwrap()
    }

    fn write(&self, mib: u64, pattern: u8) {
        self.change(&format!("write -P {pattern} {mib}M 64k"));
    }

    /// As a guest does, by `qemu-io`.
    fn change(&self, command: &str) {
        tool("qemu-io", &["-c", command, &self.whole(VM)]);
    }

    /// Restores a backup to a new disk, and compares it with the bytes that the disk had.
    async fn restores(&mut self, n: u32, expected: &[u8]) {
        let restored = self.run_of(NEW, restore(n, "default/new")).await;
        assert_eq!(restored.state, State::Success, "{restored:?}");
        assert!(self.content(NEW) == expected, "backup {n}");
        let disks = &self.node.disks;
        let source = disks.generation(uid(VM)).await.ok();
        let copy = disks.generation(uid(NEW)).await.unwrap();
        assert_ne!(source, Some(copy), "its guest finds out that it is a copy");
        let file = self.node.disks.file(uid(NEW));
        let folder = file.parent().unwrap();
        assert!(!folder.join("backup").exists());
        let deleted = self.run_of(NEW, Work::DeleteDisk).await;
        assert_eq!(deleted.state, State::Success, "{deleted:?}");
    }

    /// What a guest reads.
    fn content(&self, vm: u32) -> Vec<u8> {
        let raw = self.scratch.path().join("raw");
        tool(
            "qemu-img",
            &["convert", "-O", "raw", &self.whole(vm), text(&raw)],
        );
        let bytes = std::fs::read(&raw).unwrap();
        std::fs::remove_file(raw).unwrap();
        bytes
    }

    /// All files of a disk, as the record has them: headers name files that were merged.
    fn whole(&self, vm: u32) -> String {
        let files = self.node.disks.files(uid(vm));
        let image = self.node.disks.base(uid(vm));
        let image = image.filter(|_| self.node.disks.get(uid(vm)).unwrap().linked);
        let mut whole = image.map(|image| {
            json!({
                "driver": image.format.as_str(),
                "file": {"driver": "file", "filename": image.path},
            })
        });
        for file in files.below.iter().rev().chain([&files.active]) {
            let file = json!({"driver": "file", "filename": file});
            whole = Some(json!({"driver": "qcow2", "file": file, "backing": whole}));
        }
        format!("json:{}", whole.unwrap())
    }

    fn stored(&self, n: u32, file: &str) -> PathBuf {
        let machine = self.scratch.path().join(uid(VM).to_string());
        machine.join(object(n).to_string()).join(file)
    }

    fn layers(&self) -> usize {
        1 + self.node.disks.files(uid(VM)).below.len()
    }
}

fn targets(root: &Path) -> Targets {
    Targets::new(BTreeMap::from([
        ("nfs".to_owned(), Location::Directory(root.to_owned())),
        ("gone".to_owned(), Location::Directory(root.join("gone"))),
    ]))
}

async fn make_disk(node: &Node, linked: bool) {
    let made = DesiredDisk {
        vm: uid(VM),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: SIZE,
        linked,
    };
    node.disks.make(&made, |_| {}).await.unwrap();
}

fn object(n: u32) -> SnapshotUid {
    uid(1000 + n)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn tool(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
}

fn backup(n: u32) -> Work {
    backup_with(n, |_| {})
}

fn backup_with(n: u32, change: impl FnOnce(&mut Backup)) -> Work {
    let mut desired = Backup {
        uid: object(n),
        target: "nfs".to_owned(),
        name: "default/vm".to_owned(),
        full: false,
        quiesce: 0,
        most_increments: 62,
    };
    change(&mut desired);
    Work::Backup(desired)
}

fn stored(n: u32, name: &str) -> StoredBackup {
    StoredBackup {
        uid: object(n),
        target: "nfs".to_owned(),
        name: name.to_owned(),
        sha256: None,
    }
}

fn verify(n: u32) -> Work {
    Work::VerifyBackup {
        stored: stored(n, "default/vm"),
    }
}

fn delete(n: u32) -> Work {
    Work::DeleteBackup {
        stored: stored(n, "default/vm"),
    }
}

fn restore(n: u32, name: &str) -> Work {
    Work::RestoreBackup {
        stored: stored(n, name),
        source: uid(VM),
        size: 0,
    }
}

fn snapshot(n: u32) -> Work {
    Work::Snapshot {
        snapshot: uid(500 + n),
        quiesce: 0,
        memory: false,
    }
}

#[rstest::rstest]
#[case::linked(true)]
#[case::direct(false)]
#[tokio::test]
async fn each_backup_of_a_chain_is_restored_as_the_disk_was(#[case] linked: bool) {
    let mut backups = Backups::of_disk(linked).await;
    let mut contents = Vec::new();
    for n in 1..=3 {
        backups.write(u64::from(n) + 3, 0x50);
        backups.write(7, u8::try_from(n).unwrap());
        contents.push(backups.content(VM));
        let done = backups.done(n).await;
        assert_eq!(done.parent, (n > 1).then(|| object(n - 1)), "{done:?}");
        assert_eq!(done.virtual_bytes, SIZE);
        if n > 1 {
            // Two blocks that were written, and what qcow2 needs for them.
            assert!(done.read_bytes < 640 << 10, "{done:?}");
        }
        // One for the base, one for what is written after it.
        assert_eq!(backups.layers(), 2);
    }
    let listed = backups.node.disks.get(uid(VM)).unwrap();
    assert_eq!(backups.node.disks.snapshots(&listed), []);
    let verified = backups.run(verify(3)).await;
    assert_eq!(verified.state, State::Success, "{verified:?}");
    for (n, expected) in (1..).zip(&contents) {
        backups.restores(n, expected).await;
    }
    assert!(backups.content(VM) == contents[2]);
}

#[tokio::test]
async fn blocks_of_zeros_are_changes_too() {
    let mut backups = Backups::of_disk(true).await;
    backups.write(4, 0x77);
    backups.done(1).await;
    backups.change("write -z 4M 64k");
    let expected = backups.content(VM);
    assert!(
        expected[4 << 20..][..64 << 10]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert!(backups.done(2).await.parent.is_some());
    backups.restores(2, &expected).await;
}

#[tokio::test]
async fn snapshots_of_a_user_do_not_end_a_chain_and_a_revert_does() {
    let mut backups = Backups::of_disk(true).await;
    backups.run(snapshot(0)).await;
    backups.write(4, 1);
    backups.done(1).await;
    backups.write(5, 2);
    backups.run(snapshot(1)).await;
    backups.write(6, 3);
    let expected = backups.content(VM);
    let done = backups.done(2).await;
    assert_eq!(done.parent, Some(object(1)));
    backups.restores(2, &expected).await;
    let deleted = backups
        .run(Work::DeleteSnapshot { snapshot: uid(501) })
        .await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    backups.write(5, 4);
    let expected = backups.content(VM);
    assert_eq!(backups.done(3).await.parent, Some(object(2)));
    backups.restores(3, &expected).await;
    let revert = Work::Revert {
        snapshot: uid(500),
        memory: false,
    };
    let reverted = backups.run(revert).await;
    assert_eq!(reverted.state, State::Success, "{reverted:?}");
    let expected = backups.content(VM);
    let done = backups.done(4).await;
    assert!(
        done.full_reason.contains("reverted since backup"),
        "{done:?}"
    );
    backups.restores(4, &expected).await;
    assert_eq!(backups.done(5).await.parent, Some(object(4)));
}

#[tokio::test]
async fn what_a_chain_cannot_go_on_from_makes_a_full_backup_and_is_said() {
    let mut backups = Backups::of_disk(true).await;
    let mut reasons = vec![backups.done(1).await.full_reason];
    let full = backup_with(2, |desired| desired.full = true);
    reasons.push(backups.run(full).await.backup.clone().unwrap().full_reason);
    backups.done(3).await;
    let short = backup_with(4, |desired| desired.most_increments = 1);
    reasons.push(backups.run(short).await.backup.clone().unwrap().full_reason);
    std::fs::write(backups.stored(4, "manifest.json"), "{}").unwrap();
    reasons.push(backups.done(5).await.full_reason);
    std::fs::remove_file(backups.stored(5, "0.qcow2")).unwrap();
    reasons.push(backups.done(6).await.full_reason);
    std::fs::remove_dir_all(backups.stored(6, "")).unwrap();
    reasons.push(backups.done(7).await.full_reason);
    let expected = [
        "no earlier backup",
        "requested",
        "1 increments",
        "failed to use the manifest",
        "it is gone",
        "is not in target",
    ];
    for (reason, expected) in reasons.iter().zip(expected) {
        assert!(reason.contains(expected), "{reason:?} for {expected:?}");
    }
    // Its manifest was replaced by another one that is sound.
    let manifest = backups.stored(7, "manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, format!("{text}\n")).unwrap();
    let done = backups.done(8).await;
    assert!(
        done.full_reason.contains("is not what was written"),
        "{done:?}"
    );
}

#[tokio::test]
async fn a_running_machine_is_backed_up_and_a_task_that_needs_its_disk_ends_the_backup() {
    let node = Node::with(FakeHypervisor::default()).await;
    make_disk(&node, true).await;
    let vm = uid(VM).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    let mut backups = Backups::on(node, tempfile::tempdir().unwrap(), 0).await;
    let first = backups.done(1).await;
    assert!(first.running && first.parent.is_none(), "{first:?}");
    backups.write(4, 1);
    let second = backups.done(2).await;
    assert!(
        second.running && second.parent == Some(object(1)),
        "{second:?}"
    );
    assert_eq!(backups.layers(), 2);
    let verified = backups.run(verify(2)).await;
    assert_eq!(verified.state, State::Success, "{verified:?}");

    // A snapshot does not wait for a backup that waits for the database.
    let held = backups.node.hold_writes().await;
    let third = uid(700);
    let snapshots = uid(701);
    let agenda = Arc::clone(&backups.agenda);
    let submitting = tokio::spawn(async move {
        agenda.submit(third, uid(VM), backup(3)).await.unwrap();
        agenda
            .submit(snapshots, uid(VM), snapshot(3))
            .await
            .unwrap();
    });
    drop(held);
    submitting.await.unwrap();
    let taken = ended(&backups.agenda, snapshots).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
    let third = ended(&backups.agenda, third).await;
    let is_over = third.state == State::Success
        || third
            .failure
            .as_ref()
            .is_some_and(|failure| failure.transient);
    assert!(is_over, "{third:?}");
    assert_eq!(backups.done(3).await.parent, Some(object(2)));
}

#[tokio::test]
async fn the_base_goes_with_its_backup() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    backups.done(2).await;
    let expected = backups.content(VM);
    let needed = backups.failure(delete(1)).await;
    assert!(
        needed.transient && needed.message.contains("is based on it"),
        "{needed:?}"
    );
    let deleted = backups.run(delete(2)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(backups.node.disks.get(uid(VM)).unwrap().layers.is_none());
    assert!(backups.content(VM) == expected);
    for n in [2, 1, 1] {
        let deleted = backups.run(delete(n)).await;
        assert_eq!(deleted.state, State::Success, "{deleted:?}");
    }
    assert!(!backups.stored(1, "").exists());
    // Backups outlive their machine.
    backups.done(3).await;
    let deleted = backups.run(Work::DeleteDisk).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    backups.restores(3, &expected).await;
}

//! Backups that fail or are interrupted, and what is left then: of the target, and of the layers of the disk.
//!
//! Invariant: as of all tests of backups. A step that was not reached is one that a killed daemon did not reach.
//! Failure: a test prints the task, or the layers that are left.

use futures_util::poll;

use super::*;
use crate::node::task::Failure;

impl Backups {
    /// Another backup from the files of one, as another program could write it; the digest of its manifest.
    fn forge(&self, from: u32, to: u32) -> String {
        std::fs::rename(self.stored(from, ""), self.stored(to, "")).unwrap();
        let manifest = self.stored(to, "manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let text = text.replace(&object(from).to_string(), &object(to).to_string());
        std::fs::write(&manifest, &text).unwrap();
        use sha2::Digest as _;
        let sum = sha2::Sha256::digest(text.as_bytes());
        crate::images::Digest::from_bytes(sum.into()).hex()
    }

    fn is_single(&self) -> bool {
        self.node.disks.get(uid(VM)).unwrap().layers.is_none()
    }

    async fn deleted(&mut self, n: u32) {
        let deleted = self.run(delete(n)).await;
        assert_eq!(deleted.state, State::Success, "{deleted:?}");
    }
}

#[tokio::test]
async fn a_target_that_is_not_there_leaves_the_machine_as_it_is() {
    let mut backups = Backups::of_disk(true).await;
    for (target, words) in [("gone", "open the directory"), ("other", "backup.targets")] {
        let work = backup_with(1, |desired| desired.target = target.to_owned());
        let failed = backups.failure(work).await;
        assert!(
            failed.transient && failed.message.contains(words),
            "{failed:?}"
        );
    }
    assert!(backups.node.disks.get(uid(VM)).unwrap().layers.is_none());
}

#[tokio::test]
async fn a_backup_that_fails_keeps_no_layer_and_leaves_the_base() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    let before = backups.content(VM);
    let layers = backups.layers();
    // The file of the image is gone meanwhile.
    let full = || backup_with(2, |desired| desired.full = true);
    let image = backups.node.disks.base(uid(VM)).unwrap().path;
    let aside = image.with_extension("aside");
    std::fs::rename(&image, &aside).unwrap();
    let failed = backups.failure(full()).await;
    std::fs::rename(&aside, &image).unwrap();
    assert!(failed.transient, "{failed:?}");
    assert!(!backups.node.disks.is_snapshot(uid(VM), object(2)));
    assert!(backups.node.disks.is_backup_base(uid(VM), object(1)));
    // What it has left is merged by the next one.
    assert_eq!(backups.done(2).await.parent, Some(object(1)));
    assert_eq!(backups.layers(), layers);
    backups.restores(2, &before).await;
}

#[tokio::test]
async fn a_backup_that_was_interrupted_is_completed_by_the_next_process() {
    let backups = Backups::of_disk(true).await;
    backups.write(4, 1);
    let expected = backups.content(VM);
    // The snapshot was taken, and a part of it was copied.
    let taken = backups
        .node
        .containers
        .take_for_backup(uid(VM), object(1), 0);
    taken.await.unwrap();
    let left = backups
        .stored(1, "")
        .with_file_name(format!(".new-{}", object(1)));
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("0.qcow2"), "a part").unwrap();
    let mut backups = backups.restarted().await;
    let created = backups.done(1).await.created_at;
    assert!(!left.exists() && backups.layers() == 2);
    // The backup has its name, and the record of the disk does not say that it is the base.
    let taken = backups
        .node
        .containers
        .take_for_backup(uid(VM), object(2), 0);
    taken.await.unwrap();
    let sha256 = backups.forge(1, 2);
    let noted = backups.node.disks.note_backup(uid(VM), object(2), sha256);
    noted.await.unwrap();
    let mut backups = backups.restarted().await;
    assert_eq!(backups.done(2).await.created_at, created);
    assert!(backups.node.disks.is_backup_base(uid(VM), object(2)));
    assert_eq!(backups.layers(), 2);
    backups.restores(2, &expected).await;
}

#[tokio::test]
async fn a_backup_that_the_node_has_not_written_is_replaced() {
    let mut backups = Backups::of_disk(true).await;
    backups.write(4, 1);
    backups.done(1).await;
    let forged = backups.forge(1, 2);
    backups.write(4, 2);
    let expected = backups.content(VM);
    let done = backups.done(2).await;
    assert!(done.sha256 != forged && done.parent.is_none(), "{done:?}");
    assert!(done.full_reason.contains("is not in target"), "{done:?}");
    backups.restores(2, &expected).await;
    // Again is the same.
    assert_eq!(backups.done(2).await, done);
}

/// Its result was lost, and a later one was written meanwhile.
#[tokio::test]
async fn a_backup_that_the_base_is_based_on_is_found() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    let second = backups.done(2).await;
    backups.write(5, 1);
    let expected = backups.content(VM);
    backups.done(3).await;
    for n in [4, 5] {
        assert_eq!(backups.done(2).await, second);
        assert!(backups.node.disks.is_backup_base(uid(VM), object(n - 1)));
        assert_eq!(backups.layers(), 2);
        assert_eq!(backups.done(n).await.parent, Some(object(n - 1)));
    }
    backups.restores(5, &expected).await;
    // One that was replaced is not.
    let manifest = backups.stored(2, "manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, format!("{text}\n")).unwrap();
    let failed = backups.failure(backup(2)).await;
    assert!(failed.message.contains("is based on it"), "{failed:?}");
}

/// Its result was lost; the base now is a full one, which names none below it.
#[tokio::test]
async fn a_backup_with_an_increment_and_a_full_one_after_it_is_found() {
    let mut backups = Backups::of_disk(true).await;
    let first = backups.done(1).await;
    backups.write(4, 1);
    let second = backups.done(2).await;
    let full = backup_with(3, |desired| desired.full = true);
    let third = backups.run(full).await;
    assert_eq!(third.state, State::Success, "{third:?}");
    assert_eq!(backups.done(1).await, first);
    assert_eq!(backups.done(2).await, second);
    assert!(backups.node.disks.is_backup_base(uid(VM), object(3)));
    assert_eq!(backups.layers(), 2);
}

#[tokio::test]
async fn a_backup_that_ends_in_the_merge_after_it_is_complete() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    let agenda = Arc::into_inner(agenda(&backups.node).await).unwrap();
    let agenda = Arc::new(agenda.with_targets(backups.targets()));
    let submitted = agenda.submit(uid(700), uid(VM), backup(2)).await;
    submitted.unwrap();
    let next = agenda.next();
    let mut carried = Box::pin(agenda.carry_out(&next[0], CancellationToken::new()));
    while !backups.node.disks.is_backup_base(uid(VM), object(2)) {
        assert!(poll!(&mut carried).is_pending());
        tokio::task::yield_now().await;
    }
    let submitted = agenda.submit(uid(701), uid(VM), snapshot(1)).await;
    submitted.unwrap();
    assert!(
        agenda.next().is_empty(),
        "it waits for the end of the backup"
    );
    carried.await;
    assert_eq!(backups.layers(), 3, "the merge has not ended");
    let task = ended(&agenda, uid(700)).await;
    assert_eq!(task.state, State::Success, "{task:?}");
    let done = task.backup.clone().unwrap();
    assert_eq!(done.parent, Some(object(1)));
    // Again is the same, with the merge, once the emulator of the first one has let go of the layers.
    for _ in 0..100 {
        assert_eq!(backups.done(2).await, done);
        if backups.layers() == 2 {
            break;
        }
    }
    assert_eq!(backups.layers(), 2);
}

/// Another node has removed the base in the last moment, and this one was killed before it looked.
#[tokio::test]
async fn a_backup_that_is_based_on_what_is_gone_is_written_again() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    let expected = backups.content(VM);
    backups.done(2).await;
    std::fs::remove_dir_all(backups.stored(1, "")).unwrap();
    let done = backups.done(2).await;
    assert!(done.parent.is_none(), "{done:?}");
    backups.restores(2, &expected).await;
    backups.write(5, 1);
    assert_eq!(backups.done(3).await.parent, Some(object(2)));
}

#[tokio::test]
async fn the_deletion_of_a_backup_leaves_no_layer_whatever_was_left_of_it() {
    let mut backups = Backups::of_disk(true).await;
    let content = backups.content(VM);
    // Its snapshot was being taken.
    let disks = Arc::clone(&backups.node.disks);
    let change = disks.begin_snapshot(uid(VM), object(1), false).await;
    disks.make_layer(uid(VM), change.unwrap()).await.unwrap();
    backups.deleted(1).await;
    assert!(backups.is_single());
    // It had been taken.
    let taken = backups
        .node
        .containers
        .take_for_backup(uid(VM), object(2), 0);
    taken.await.unwrap();
    backups.deleted(2).await;
    assert!(backups.is_single());
    // It was the base, and its layer was to be merged.
    backups.done(3).await;
    disks.release_layer(uid(VM), object(3)).await.unwrap();
    assert!(!backups.is_single());
    backups.deleted(3).await;
    assert!(backups.is_single());
    // Its target is no more in the configuration: the layer goes, and another node deletes the data.
    backups.done(4).await;
    let mut of = stored(4, "default/vm");
    of.target = "other".to_owned();
    let failed = backups.failure(Work::DeleteBackup { stored: of }).await;
    assert!(!failed.transient && backups.is_single(), "{failed:?}");
    assert!(backups.stored(4, "").exists());
    // It is back there before another node has it.
    backups.deleted(4).await;
    assert!(!backups.stored(4, "").exists());
    assert!(backups.content(VM) == content);
}

/// Another node takes the place of this one only after a failure that is final.
#[tokio::test]
async fn a_deletion_that_fails_for_good_leaves_no_layer_and_one_that_may_be_repeated_does() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    let with = |change: fn(&mut StoredBackup)| {
        let mut of = stored(1, "default/vm");
        change(&mut of);
        Work::DeleteBackup { stored: of }
    };
    let absent = with(|of| of.target = "gone".to_owned());
    let failed = backups.failure(absent).await;
    assert!(failed.transient, "{failed:?}");
    let other = with(|of| of.name = "other/vm".to_owned());
    let failed = backups.failure(other).await;
    assert!(failed.message.contains("another namespace"), "{failed:?}");
    assert!(backups.node.disks.is_backup_base(uid(VM), object(1)));
    let manifest = backups.stored(1, "manifest.json");
    std::fs::remove_file(&manifest).unwrap();
    std::os::unix::fs::symlink("0.qcow2", &manifest).unwrap();
    let failed = backups.failure(delete(1)).await;
    assert!(!failed.transient && backups.is_single(), "{failed:?}");
    assert!(failed.message.contains("is a link"), "{failed:?}");
}

#[tokio::test]
async fn a_snapshot_that_a_running_machine_was_not_switched_to_is_no_backup() {
    let node = Node::with(FakeHypervisor::default()).await;
    make_disk(&node, true).await;
    let vm = uid(VM).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let change = node.disks.begin_snapshot(uid(VM), object(1), true).await;
    node.disks
        .make_layer(uid(VM), change.unwrap())
        .await
        .unwrap();
    let abandoned = node.containers.abandon_backup(uid(VM), object(1));
    abandoned.await.unwrap();
    assert!(node.disks.get(uid(VM)).unwrap().layers.is_none());
}

#[tokio::test]
async fn a_machine_that_is_to_start_ends_the_merge_of_a_backup() {
    let backups = Backups::of_disk(true).await;
    let disks = &backups.node.disks;
    let yielding = disks.yielding(uid(VM));
    let reserved = disks.reserve(uid(VM)).await.unwrap();
    let image = backups.node.image("disk");
    disks.usable(uid(VM), &[image.as_str()]).unwrap_err();
    yielding.asked().await;
    drop((yielding, reserved));
    disks.usable(uid(VM), &[image.as_str()]).unwrap();
}

#[tokio::test]
async fn a_disk_whose_backup_could_not_be_restored_is_refused() {
    let mut backups = Backups::of_disk(false).await;
    let refused = async |backups: &mut Backups, n| -> Failure {
        let failed = backups.failure(backup(n)).await;
        assert!(!backups.node.disks.is_snapshot(uid(VM), object(n)));
        failed
    };
    let file = backups.node.disks.file(uid(VM));
    tool(
        "qemu-img",
        &["resize", "-q", "-f", "qcow2", text(&file), "16M"],
    );
    let failed = refused(&mut backups, 1).await;
    assert!(
        failed.transient && failed.message.contains("by its header"),
        "{failed:?}"
    );
    let root = backups.node.disks.layer(uid(VM), 0);
    std::fs::remove_file(&root).unwrap();
    let data = backups.scratch.path().join("data");
    let option = format!("data_file={}", text(&data));
    let create = [
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        &option,
        text(&root),
        "8M",
    ];
    tool("qemu-img", &create);
    let failed = refused(&mut backups, 2).await;
    assert!(
        !failed.transient && failed.message.contains("external data file"),
        "{failed:?}"
    );
}

/// Lets two places of a disk refer to the same cluster.
fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let offset = |bytes: &[u8], at: usize| {
        let entry = u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        usize::try_from(entry & 0x00ff_ffff_ffff_fe00).unwrap()
    };
    let first = offset(&bytes, 40);
    let second = offset(&bytes, first);
    let entry = |mib: usize| second + (mib << 4) * 8;
    bytes.copy_within(entry(4)..entry(4) + 8, entry(6));
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_disk_whose_tables_are_damaged_is_not_backed_up() {
    let mut backups = Backups::of_disk(false).await;
    for mib in [4, 6] {
        backups.write(mib, 1);
    }
    backups.done(1).await;
    for mib in [4, 6] {
        backups.write(mib, 2);
    }
    damage(&backups.node.disks.file(uid(VM)));
    let failed = backups.failure(backup(2)).await;
    assert!(
        !failed.transient && failed.message.contains("damaged places"),
        "{failed:?}"
    );
    assert!(!backups.node.disks.is_snapshot(uid(VM), object(2)));
    assert!(!backups.stored(2, "").exists());
    assert!(backups.node.disks.is_backup_base(uid(VM), object(1)));
}

#[tokio::test]
async fn a_verification_holds_up_a_deletion_alone() {
    let backups = Backups::of_disk(true).await;
    let agenda = agenda(&backups.node).await;
    let works = [verify(1), verify(2), backup(3), delete(4), snapshot(5)];
    for (task, work) in (1..).zip(works) {
        agenda.submit(uid(task), uid(VM), work).await.unwrap();
    }
    let next = agenda.next();
    let kinds: Vec<_> = next.iter().map(|task| task.work.kind()).collect();
    assert_eq!(kinds, ["verify_backup", "backup"]);
}

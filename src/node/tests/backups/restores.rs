//! Restores that are refused: of other namespaces, and of what was not written.
//!
//! Invariant: as of all tests of backups; who else writes to the target is the test.
//! Failure: a test prints what was restored, or the words of the refusal.

use super::*;

#[tokio::test]
async fn a_restore_is_of_the_same_namespace_and_of_what_was_written() {
    let mut backups = Backups::of_disk(true).await;
    let sha256 = backups.done(1).await.sha256;
    let restore_with = |change: fn(&mut StoredBackup, String), size| {
        let mut of = stored(1, "default/new");
        change(&mut of, sha256.clone());
        Work::RestoreBackup {
            stored: of,
            source: uid(VM),
            size,
        }
    };
    let mut failed = async |work, words: &str| {
        let task = backups.run_of(NEW, work).await;
        let failure = task.failure.clone().unwrap();
        assert!(
            !failure.transient && failure.message.contains(words),
            "{failure:?}"
        );
        assert!(backups.node.disks.get(uid(NEW)).is_none(), "{words}");
    };
    let other = restore_with(|of, _| of.name = "other/new".to_owned(), 0);
    failed(other, "another namespace").await;
    failed(restore_with(|_, _| {}, SIZE - 1), "never made smaller").await;
    let another = restore_with(|of, _| of.sha256 = Some("0a".repeat(32)), 0);
    failed(another, "is not what was written").await;
    failed(restore(7, "default/new"), "is not in target").await;
    let larger = restore_with(|of, sha256| of.sha256 = Some(sha256), 2 * SIZE);
    let done = backups.run_of(NEW, larger).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert_eq!(
        backups.node.disks.get(uid(NEW)).unwrap().virtual_bytes,
        2 * SIZE
    );
    // Again is the same, whatever the target has.
    std::fs::remove_dir_all(backups.stored(1, "")).unwrap();
    let again = backups.run_of(NEW, restore(1, "default/new")).await;
    assert_eq!(again.state, State::Success, "{again:?}");
}

#[tokio::test]
async fn a_byte_that_was_changed_is_restored_by_none() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    let file = backups.stored(1, "0.qcow2");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    for (vm, work) in [(VM, verify(1)), (NEW, restore(1, "default/new"))] {
        let task = backups.run_of(vm, work).await;
        let failure = task.failure.clone().unwrap();
        assert!(
            failure.message.contains("file 0.qcow2 of backup"),
            "{failure:?}"
        );
    }
    assert!(backups.node.disks.get(uid(NEW)).is_none());
}

/// Who can write to the target can write a manifest that fits.
#[tokio::test]
async fn a_file_that_names_others_is_not_followed_and_one_of_another_size_is_refused() {
    let mut backups = Backups::of_disk(false).await;
    backups.done(1).await;
    let secret = backups.scratch.path().join("secret");
    std::fs::write(&secret, vec![0x5e; 1 << 20]).unwrap();
    let file = backups.stored(1, "0.qcow2");
    let manifest = backups.stored(1, "manifest.json");
    let replace = |arguments: &[&str]| {
        std::fs::remove_file(&file).unwrap();
        tool(
            "qemu-img",
            &[&["create", "-q", "-f", "qcow2"][..], arguments].concat(),
        );
        let text = std::fs::read_to_string(&manifest).unwrap();
        let mut read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        use sha2::Digest as _;
        let sum = sha2::Sha256::digest(&bytes);
        let sum = crate::images::Digest::from_bytes(sum.into());
        read["files"][0]["sha256"] = sum.hex().into();
        read["files"][0]["bytes"] = bytes.len().into();
        std::fs::write(&manifest, read.to_string()).unwrap();
    };
    let size = SIZE.to_string();
    replace(&["-b", text(&secret), "-F", "raw", text(&file), &size]);
    backups
        .restores(1, &vec![0; usize::try_from(SIZE).unwrap()])
        .await;
    replace(&[text(&file), "1T"]);
    let failed = backups.run_of(NEW, restore(1, "default/new")).await;
    let failure = failed.failure.clone().unwrap();
    assert!(failure.message.contains("by the manifest"), "{failure:?}");
    let data = file.with_extension("data");
    let option = format!("data_file={}", text(&data));
    replace(&["-o", &option, text(&file), &size]);
    let failed = backups.run_of(NEW, restore(1, "default/new")).await;
    let failure = failed.failure.clone().unwrap();
    assert!(
        failure.message.contains("external data file"),
        "{failure:?}"
    );
}

const CLAIM: &str = "claim:0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";

#[tokio::test]
async fn a_claim_that_no_pod_has_mounted_is_waited_for_and_its_deletion_releases_the_layer() {
    let mut backups = Backups::of_disk(true).await;
    let in_claim = backup_with(1, |desired| desired.target = CLAIM.to_owned());
    let failed = backups.failure(in_claim).await;
    let words = "no pod of namespace default";
    assert!(
        failed.transient && failed.message.contains(words),
        "{failed:?}"
    );
    assert!(backups.node.disks.get(uid(VM)).unwrap().layers.is_none());
    backups.done(1).await;
    assert!(backups.node.disks.is_backup_base(uid(VM), object(1)));
    // As where the claim is gone.
    let stored = StoredBackup {
        target: CLAIM.to_owned(),
        ..stored(1, "default/vm")
    };
    let failed = backups.failure(Work::DeleteBackup { stored }).await;
    assert!(
        !failed.transient && failed.message.contains(words),
        "{failed:?}"
    );
    assert!(!backups.node.disks.is_backup_base(uid(VM), object(1)));
    assert_eq!(backups.layers(), 1);
}

//! Partial files, without a server.
//!
//! Invariant: the hash covers what is in the file.
//! Failure: none expected.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn note(total: u64) -> Note {
    let validators = Validators {
        etag: Some("\"1\"".into()),
        modified: None,
    };
    Note::new("h/a".into(), validators, Some(total))
}

fn open(dir: &Path) -> Partial {
    Partial::open(dir, "k", Path::new(boot_id::KERNEL)).unwrap()
}

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_partial_is_taken_up_where_it_was_left() {
    let dir = scratch();
    let mut partial = open(dir.path());
    partial.restart(note(6)).unwrap();
    partial.append(b"abc").unwrap();
    drop(partial);
    let mut partial = open(dir.path());
    assert_eq!(partial.received(), 3);
    assert!(!partial.is_whole());
    partial.append(b"def").unwrap();
    assert!(partial.is_whole());
    let digest = partial.finish().unwrap();
    assert_eq!(digest, Digest::from_bytes(Sha256::digest(b"abcdef").into()));
    let target = dir.path().join("target");
    partial.place(&target).unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"abcdef");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
#[ignore = "needs root"]
fn a_power_cut_leaves_a_complete_file_under_its_name() {
    let disk = testfs::StrictDisk::new().unwrap();
    let [partial, data] = ["partial", "data"].map(|name| disk.path().join(name));
    for directory in [&partial, &data] {
        std::fs::create_dir(directory).unwrap();
    }
    disk.settle().unwrap();
    let mut partial = open(&partial);
    partial.restart(note(6)).unwrap();
    partial.append(b"abcdef").unwrap();
    partial.finish().unwrap();
    partial.place(&data.join("target")).unwrap();
    let left = disk.cut().unwrap();
    let read = std::fs::read(left.path().join("data/target"));
    assert_eq!(read.unwrap(), b"abcdef");
}

#[test]
fn bytes_of_another_boot_are_not_continued() {
    let dir = scratch();
    let boot = dir.path().join("boot-id");
    let open = || Partial::open(dir.path(), "k", &boot).unwrap();
    std::fs::write(&boot, "first\n").unwrap();
    let mut partial = open();
    partial.restart(note(6)).unwrap();
    partial.append(b"abc").unwrap();
    drop(partial);
    assert_eq!(open().received(), 3);
    std::fs::write(&boot, "second\n").unwrap();
    assert_eq!(open().received(), 0);
}

#[test]
fn without_a_boot_id_a_download_works_and_is_not_continued() {
    let dir = scratch();
    let open = || Partial::open(dir.path(), "k", &dir.path().join("none")).unwrap();
    let mut partial = open();
    partial.restart(note(6)).unwrap();
    partial.append(b"abc").unwrap();
    drop(partial);
    assert_eq!(open().received(), 0);
}

#[test]
fn a_weak_validator_or_none_is_nothing_to_continue_by() {
    for etag in [None, Some("W/\"1\"".to_owned())] {
        let dir = scratch();
        let mut partial = open(dir.path());
        let validators = Validators {
            etag,
            modified: None,
        };
        partial
            .restart(Note {
                validators,
                ..note(6)
            })
            .unwrap();
        partial.append(b"abc").unwrap();
        drop(partial);
        assert_eq!(open(dir.path()).received(), 0);
    }
}

#[test]
fn more_bytes_than_the_file_has_are_not_continued() {
    let dir = scratch();
    let mut partial = open(dir.path());
    partial.restart(note(2)).unwrap();
    partial.append(b"abc").unwrap();
    drop(partial);
    let mut partial = open(dir.path());
    assert_eq!(partial.received(), 0);
    partial.append(b"de").unwrap();
    assert_eq!(std::fs::read(dir.path().join("k.part")).unwrap(), b"de");
}

#[test]
fn a_note_that_makes_no_sense_is_forgotten() {
    for text in ["", "{}", "[1]", "\u{fffd}", &"x".repeat(20_000)] {
        let dir = scratch();
        std::fs::write(dir.path().join("k.part"), b"abc").unwrap();
        std::fs::write(dir.path().join("k.json"), text).unwrap();
        assert_eq!(open(dir.path()).received(), 0);
        assert_eq!(
            std::fs::metadata(dir.path().join("k.part")).unwrap().len(),
            0
        );
    }
}

#[test]
fn the_next_holder_waits_and_never_gets_a_file_that_was_placed() {
    let dir = scratch();
    let mut first = open(dir.path());
    first.restart(note(3)).unwrap();
    first.append(b"abc").unwrap();
    let path = dir.path().to_owned();
    let second = std::thread::spawn(move || {
        let mut second = open(&path);
        second.append(b"x").unwrap();
        second.received()
    });
    let deadline = Instant::now() + Duration::from_secs(90);
    let inode = format!(":{} ", first.file.metadata().unwrap().ino());
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !std::fs::read_to_string("/proc/locks")
        .unwrap()
        .lines()
        .any(waits)
    {
        assert!(Instant::now() < deadline, "no thread waits for the lock");
        std::thread::yield_now();
    }
    let target = dir.path().join("target");
    first.place(&target).unwrap();
    File::create(dir.path().join("k.part")).unwrap();
    drop(first);
    assert_eq!(second.join().unwrap(), 1);
    assert_eq!(std::fs::read(target).unwrap(), b"abc");
}

/// A note that is nearly right, or anything.
fn note_bytes() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop::option::of("(W/)?\"[a-z]{0,3}\"");
    let near = (tag, prop::option::of(any::<u8>()), "(this|other|)");
    let near = near.prop_map(|(etag, total, boot)| {
        let validators = serde_json::json!({"etag": etag, "modified": null});
        let note = serde_json::json!({"location": "h/a", "validators": validators, "total": total,
            "boot": boot});
        note.to_string().into_bytes()
    });
    prop_oneof![3 => near, 1 => prop::collection::vec(any::<u8>(), 0..60)]
}

proptest! {
    #[test]
    fn what_is_continued_was_left_by_this_boot_with_a_strong_validator(
        note in note_bytes(),
        part in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let dir = scratch();
        let boot = dir.path().join("boot-id");
        std::fs::write(&boot, "this\n").unwrap();
        std::fs::write(dir.path().join("k.json"), &note).unwrap();
        std::fs::write(dir.path().join("k.part"), &part).unwrap();
        let partial = Partial::open(dir.path(), "k", &boot).unwrap();
        let received = usize::try_from(partial.received()).unwrap();
        prop_assert!(received == 0 || received == part.len());
        prop_assert_eq!(partial.file().metadata().unwrap().len(), partial.received());
        prop_assert!(partial.note().total.is_none_or(|total| partial.received() <= total));
        if received > 0 {
            let read: serde_json::Value = serde_json::from_slice(&note).unwrap();
            prop_assert_eq!(&read["boot"], "this");
            let etag = read["validators"]["etag"].as_str().unwrap();
            prop_assert!(!etag.starts_with("W/"));
        }
    }
}

/// The runtime of the test has one thread.
#[tokio::test]
async fn a_job_whose_disk_does_not_answer_blocks_no_thread_of_the_runtime() {
    let dir = scratch();
    let key = "k".to_owned();
    let handle = Handle::open(dir.path().into(), key, boot_id::KERNEL.into()).await;
    let handle = handle.unwrap();
    let (answer, answered) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let job = tokio::spawn({
        let handle = handle.clone();
        let hang = move |_: &mut Partial| {
            begin.send(()).unwrap();
            // An error is what it waits for: the other end no longer exists.
            answered.recv().unwrap_err();
            Ok(())
        };
        async move { handle.work(hang).await }
    });
    begun.await.unwrap();
    let mut received = std::pin::pin!(handle.read(Partial::received));
    assert!(futures_util::poll!(received.as_mut()).is_pending());
    drop(answer);
    assert_eq!(received.await, 0);
    job.await.unwrap().unwrap();
}

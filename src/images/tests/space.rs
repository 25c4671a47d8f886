//! A full disk.
//!
//! Invariant: the mount of a test is removed with it, also when the test fails.
//! Failure: none expected.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;
use crate::images::Upload;
use crate::space::Space;

/// A file system of one mebibyte.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let kind = Some("tmpfs");
        mount(kind, &at, kind, MsFlags::empty(), Some("size=1m")).unwrap();
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_full_disk_is_reported_and_leaves_no_files() {
    let scratch = tempfile::tempdir().unwrap();
    let small = Small::mount(scratch.path().join("small"));
    let settings = Settings {
        dir: small.0.clone(),
        stall_timeout: TIMEOUT / 10,
        ..settings(scratch.path())
    };
    let images = Images::open(Db::in_memory().unwrap(), settings)
        .await
        .unwrap();
    let server = Server::start().await;
    server.offer("a.img", &disk(4096, 1), "1");
    // The first is refused by its length alone, the second when the disk is full.
    server.script([Step::HoldAfter(0), Step::Unsized]);
    for _ in 0..2 {
        let error = images.pull(&server.name("a.img")).await.unwrap_err();
        let place = small.0.join("partial");
        assert_eq!(
            error.to_string(),
            format!("no space left in {}", place.display())
        );
        assert!(files(&place).is_empty());
    }
    assert_eq!(server.seen().len(), 2);
    server.offer("b.img", &disk(100, 1), "1");
    images.pull(&server.name("b.img")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn images_without_users_make_room_for_a_pull_and_below_the_high_mark() {
    let scratch = tempfile::tempdir().unwrap();
    let small = Small::mount(scratch.path().join("small"));
    let settings = Settings {
        dir: small.0.clone(),
        collection: Collection {
            marks: Some(Marks { high: 90, low: 50 }),
            max_unused: None,
        },
        ..settings(scratch.path())
    };
    let db = Db::in_memory().unwrap();
    let open = async || {
        let long_ago = db.write(|t| t.execute("UPDATE images SET used_at = 1", ()));
        long_ago.await.unwrap();
        Images::open(db.clone(), settings.clone()).await.unwrap()
    };
    let images = open().await;
    let server = Server::start().await;
    for (path, seed) in [("a.img", 1), ("b.img", 2)] {
        server.offer(path, &disk(1200, seed), "1");
    }
    let [a, b] = ["a.img", "b.img"].map(|path| server.name(path));
    let old = images.pull(&a).await.unwrap();
    let refused = images.pull(&b).await;
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    images.pin("pod", &a).await.unwrap();

    let images = open().await;
    let refused = images.pull(&b).await;
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert!(old.path.exists(), "it has a user");
    images.unpin("pod").await.unwrap();

    let images = open().await;
    let new = images.pull(&b).await.unwrap();
    assert!(!old.path.exists() && images.find(&a).is_none());

    let images = open().await;
    images.collect().await.unwrap();
    assert!(new.path.exists(), "below the mark");
    std::fs::write(small.0.join("other"), disk(700, 1)).unwrap();
    images.collect().await.unwrap();
    assert!(!new.path.exists() && images.list().is_empty());
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_upload_that_finds_no_space_leaves_no_files_and_images_without_users_make_room_for_one()
{
    let scratch = tempfile::tempdir().unwrap();
    let small = Small::mount(scratch.path().join("small"));
    let settings = Settings {
        dir: small.0.clone(),
        collection: Collection {
            marks: Some(Marks { high: 90, low: 50 }),
            max_unused: None,
        },
        ..settings(scratch.path())
    };
    let db = Db::in_memory().unwrap();
    let images = Images::open(db.clone(), settings.clone()).await.unwrap();
    let bytes = disk(1200, 3);
    let digest = Digest::from_bytes(Sha256::digest(&bytes).into());
    let begin = async |images: &Images| {
        let name = "vmlet.dev/upload.invalid/default/web:1";
        match images.upload(name, bytes.len() as u64, digest).await {
            Ok(Upload::Missing(receiver)) => receiver,
            other => panic!("bytes are missing: {other:?}"),
        }
    };
    let receiver = begin(&images).await;
    let other = small.0.join("other");
    std::fs::write(&other, disk(1400, 1)).unwrap();
    let full = receiver.append(bytes.clone()).await;
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    drop(receiver);
    assert!(files(&small.0.join("partial")).is_empty());
    std::fs::remove_file(&other).unwrap();

    let server = Server::start().await;
    server.offer("a.img", &disk(1200, 1), "1");
    let old = images.pull(&server.name("a.img")).await.unwrap();
    let long_ago = db.write(|t| t.execute("UPDATE images SET used_at = 1", ()));
    long_ago.await.unwrap();
    let images = Images::open(db, settings).await.unwrap();
    let receiver = begin(&images).await;
    assert!(!old.path.exists());
    receiver.append(bytes.clone()).await.unwrap();
    let image = receiver.finish().await.unwrap();
    assert_eq!(std::fs::read(image.path).unwrap(), bytes);
}

#[tokio::test]
#[ignore = "needs root"]
async fn downloads_leave_the_space_of_copies_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let small = Small::mount(scratch.path().join("small"));
    let space = Space::default();
    let settings = Settings {
        dir: small.0.clone(),
        space: space.clone(),
        ..settings(scratch.path())
    };
    let images = Images::open(Db::in_memory().unwrap(), settings)
        .await
        .unwrap();
    let server = Server::start().await;
    server.offer("a.img", &disk(1000, 1), "1");
    let copy = space.claim(&small.0.join("copy"), 0, 600 << 10).unwrap();
    let error = images.pull(&server.name("a.img")).await;
    assert!(matches!(error, Err(Error::NoSpace { .. })), "{error:?}");
    drop(copy);
    images.pull(&server.name("a.img")).await.unwrap();
}

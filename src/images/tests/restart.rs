//! What a start of the daemon finds and repairs.
//!
//! Invariant: after the start, files and rows agree.
//! Failure: none expected.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use super::*;

#[tokio::test]
async fn images_and_names_survive_a_restart() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let env = env.reopened().await;
    assert_eq!(env.images.list(), [image]);
    env.images.pull(&env.server.name("a.img")).await.unwrap();
    let seen = env.server.seen();
    assert!(seen[1].header(http::header::IF_NONE_MATCH).is_some());
}

#[tokio::test]
async fn unreferenced_files_are_collected() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let data = env.settings.dir.join("data");
    std::fs::write(data.join("ab".repeat(32)), b"x").unwrap();
    std::fs::write(data.join("not-a-digest"), b"x").unwrap();
    std::fs::create_dir(data.join("lost+found")).unwrap();
    let env = env.reopened().await;
    assert_eq!(env.data(), [image.path, data.join("lost+found")]);
}

#[tokio::test]
async fn an_image_without_its_file_or_with_another_size_is_forgotten() {
    let env = TestEnvironment::new().await;
    let gone = env.pulled("a.img", &disk(4, 1)).await;
    let short = env.pulled("b.img", &disk(4, 2)).await;
    let kept = env.pulled("c.img", &disk(4, 3)).await;
    env.images.pin("pod", &gone.digest.hex()).await.unwrap();
    std::fs::remove_file(&gone.path).unwrap();
    File::options()
        .write(true)
        .open(&short.path)
        .unwrap()
        .set_len(7)
        .unwrap();
    let env = env.reopened().await;
    assert_eq!(env.images.list().as_slice(), std::slice::from_ref(&kept));
    assert_eq!(env.data(), [kept.path]);
    assert_eq!(env.images.pinned("pod"), None);
    let error = env.images.pin("pod", &kept.digest.hex()).await.unwrap_err();
    assert!(matches!(error, Error::Vanished { .. }), "{error}");

    env.images.pull(&env.server.name("a.img")).await.unwrap();
    assert_eq!(env.images.pinned("pod").unwrap().digest, gone.digest);
}

#[tokio::test]
async fn downloads_that_cannot_be_continued_are_collected() {
    let env = TestEnvironment::new().await;
    let make = |name: &str, content: &[u8]| {
        let path = env.settings.dir.join("partial").join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let kept = [make("good.json", b"{}"), make("good.part", b"x")];
    make("lonely.json", b"{}");
    make("noteless.part", b"x");
    make("empty.part", b"");
    make("empty.json", b"{}");
    make("half.new", b"{");
    make("old.json", b"{}");
    let old = make("old.part", b"x");
    let yesterday = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
    File::options()
        .write(true)
        .open(old)
        .unwrap()
        .set_modified(yesterday)
        .unwrap();
    let env = env.reopened().await;
    assert_eq!(env.partials(), kept);
}

#[tokio::test]
async fn qemu_may_read_image_files_but_list_nothing() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&image.path), 0o640);
    assert_eq!(mode(&env.settings.dir), 0o711);
    assert_eq!(mode(&env.settings.dir.join("data")), 0o2711);
    assert_eq!(mode(&env.settings.dir.join("partial")), 0o2700);
}

#[tokio::test]
async fn usage_counts_the_stores_own_files() {
    let env = TestEnvironment::new().await;
    let empty = env.images.usage().await.unwrap();
    env.pulled("a.img", &disk(2048, 1)).await;
    let used = env.images.usage().await.unwrap();
    assert_eq!(used.mountpoint, env.settings.dir);
    assert_eq!(used.inodes, empty.inodes + 1);
    let more = used.used_bytes - empty.used_bytes;
    assert!((1 << 20..2 << 20).contains(&more), "{more}");
}

#[tokio::test]
async fn a_translation_that_cannot_work_stops_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = Settings {
        translations: vec![Translation {
            pattern: Pattern::Exact("a".into()),
            url: "ftp://example.org/a".into(),
        }],
        ..settings(scratch.path())
    };
    let refused = Images::open(Db::in_memory().unwrap(), settings).await;
    assert!(
        matches!(refused, Err(Error::Translation { .. })),
        "{refused:?}"
    );
}

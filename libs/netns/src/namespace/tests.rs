//! Namespaces on the real kernel.
//!
//! Invariant: every test removes its mounts even when it fails, because they sit in a [`Scratch`].
//! Failure: a leftover mount would show as a temporary directory that cannot be removed.

use super::*;

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

#[test]
fn a_missing_path_and_a_plain_file_are_no_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plain");
    std::fs::write(&file, "").unwrap();
    assert!(
        Namespace::open(&dir.path().join("missing"))
            .unwrap()
            .is_none()
    );
    assert!(Namespace::open(&file).unwrap().is_none());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_namespace_is_entered_by_a_thread_of_its_own_and_deleted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let ours = inode(Path::new("/proc/thread-self/ns/net"));
    let ns = Namespace::create(dir.path(), "a").await.unwrap();
    let path = ns.path().to_owned();
    let inside = ns
        .run(|| inode(Path::new("/proc/thread-self/ns/net")))
        .await
        .unwrap();
    assert_eq!(inside, inode(&path));
    assert_ne!(inside, ours);
    assert_eq!(inode(Path::new("/proc/thread-self/ns/net")), ours);
    assert!(Namespace::open(&path).unwrap().is_some());
    drop(ns);
    Namespace::delete(&path).await.unwrap();
    assert!(!path.exists());
    Namespace::delete(&path).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_file_left_by_a_crash_before_the_mount_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::write(&path, "").unwrap();
    assert!(matches!(
        Namespace::create(dir.path(), "a").await,
        Err(Error::MountPoint { .. })
    ));
    Namespace::delete(&path).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_panic_inside_is_an_error_outside() {
    let dir = tempfile::tempdir().unwrap();
    let ns = Namespace::create(dir.path(), "a").await.unwrap();
    let outcome = ns.run(|| panic!("expected by the test")).await;
    assert!(
        matches!(outcome, Err(Error::Panicked)),
        "{:?}",
        outcome.map(|_: ()| ())
    );
    Namespace::delete(ns.path()).await.unwrap();
}

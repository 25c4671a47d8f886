//! Death at every persisted step.
//!
//! Invariant: after a restart and the same requests again, all is as if nothing had happened.
//! Failure: a child that does not die at its point fails the test.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use super::*;

/// With these the test below is not the test, but the process that it starts.
const DIR: &str = "VMLET_TEST_IMAGES_DIR";
const SERVER: &str = "VMLET_TEST_IMAGES_SERVER";
/// Number of the image that is pulled first, and dies.
const FIRST: &str = "VMLET_TEST_IMAGES_FIRST";
const SIGKILL: i32 = 9;

async fn open(dir: &Path) -> Images {
    let db = Db::open(&dir.join("vmlet.db")).unwrap();
    let mut settings = settings(dir);
    convert::converting(&mut settings);
    Images::open(db, settings).await.unwrap()
}

/// A file, a compressed one, a container disk in a registry, and one that is converted.
const KINDS: usize = 4;

/// In the place of the number of a kind: the collection removes the first image once.
const COLLECTED: usize = KINDS;

/// Passes every point of [`FAULT_POINTS`], whichever image is the first.
async fn live(images: &Images, server: &str, first: usize) {
    let mut names = ["a.img", "b.img.gz", "c:1", "d.vmdk"].map(|path| format!("{server}/{path}"));
    let url = format!("oci://{}", names[2]);
    names.rotate_left(first % KINDS);
    for name in &names {
        let url = url.ends_with(name).then_some(url.as_str());
        images.pull(Locator::new(name, url)).await.unwrap();
    }
    if first == COLLECTED {
        // At a time at which the oldest, and no more than that, makes room.
        images.inner.free(1, i64::MAX).await.unwrap();
        images.pull(&names[0]).await.unwrap();
    }
    let pinned = images.pin("pod", &names[0]).await.unwrap();
    let other = images.pin("container", &names[1]).await.unwrap();
    for name in &names {
        images.remove(name).await.unwrap();
    }
    assert!(pinned.path.exists() && other.path.exists());
    images.move_pin("container", "pod", "other").await.unwrap();
    assert_eq!(images.owners(), ["pod"]);
    assert_eq!(images.pinned("pod").unwrap().digest, other.digest);
    images.unpin("pod").await.unwrap();
}

#[tokio::test]
async fn death_at_any_point_leaves_nothing_that_a_restart_does_not_repair() {
    if let (Ok(dir), Ok(server)) = (std::env::var(DIR), std::env::var(SERVER)) {
        // This is the process that dies.
        let first = std::env::var(FIRST).unwrap().parse().unwrap();
        return live(&open(Path::new(&dir)).await, &server, first).await;
    }
    let lives = (0..KINDS).flat_map(|first| FAULT_POINTS.iter().map(move |point| (first, point)));
    let vmdk = convert::made(&disk(400, 4), "vmdk", &[]);
    let removals = ["images.remove.unrecorded", "images.remove.unlinked"];
    let collections = removals.iter().map(|point| (COLLECTED, point));
    for (first, point) in lives.chain(collections) {
        let scratch = tempfile::tempdir().unwrap();
        let server = Server::start().await;
        server.offer("a.img", &disk(400, 1), "1");
        server.offer("b.img.gz", &packed::gzip(&disk(400, 2)), "1");
        registries::container_disk(&server, "c", "1", &disk(400, 3), "");
        server.offer("d.vmdk", &vmdk, "1");
        let armed = scratch.path().join("armed");
        std::fs::create_dir(&armed).unwrap();
        std::fs::write(armed.join(point), "").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .arg("--exact")
            .arg("images::tests::crash::death_at_any_point_leaves_nothing_that_a_restart_does_not_repair")
            .env(DIR, scratch.path())
            .env(SERVER, &server.authority)
            .env(FIRST, first.to_string())
            .env(faultpoint::DIR_VARIABLE, &armed)
            .stdout(Stdio::null());
        let child = tokio::task::spawn_blocking(move || child.status().unwrap());
        let status = tokio::time::timeout(TIMEOUT, child).await.unwrap().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "{first}, {point}: {status}");

        let images = open(scratch.path()).await;
        for image in images.list() {
            assert!(image.path.exists(), "{point}");
        }
        live(&images, &server.authority, first).await;
        assert!(
            images.list().is_empty() && images.owners().is_empty(),
            "{first}, {point}"
        );
        for place in ["data", "partial"] {
            let left = files(&scratch.path().join("images").join(place));
            assert!(left.is_empty(), "{first}, {point}: {left:?}");
        }
    }
}

#[tokio::test]
async fn a_download_that_was_complete_at_death_is_not_repeated() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.offer("a.img", &bytes, "1");
    env.server
        .script([Step::CutAfter(1_000), Step::Status(404)]);
    let name = env.server.name("a.img");
    env.images.pull(&name).await.unwrap_err();
    let partial = env.partials().pop().unwrap();
    std::fs::write(partial, &bytes).unwrap();
    let image = env.images.pull(&name).await.unwrap();
    assert_eq!(image.digest, digest_of(&bytes));
    let seen = env.server.seen();
    assert_eq!(seen[2].header(http::header::IF_NONE_MATCH), Some("\"1\""));
    assert_eq!(seen.len(), 3);
}

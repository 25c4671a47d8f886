//! Limits of size and time, and content that is no disk.
//!
//! Invariant: what breaks a limit leaves no file.
//! Failure: each error names the limit.

use super::*;

#[tokio::test]
async fn a_file_above_the_limit_is_refused_before_or_while_it_comes() {
    let env = TestEnvironment::with(|s| s.max_download_bytes = 100_000).await;
    env.server.offer("a.img", &disk(400, 1), "1");
    env.server.script([Step::Serve, Step::Unsized]);
    for _ in 0..2 {
        let error = env
            .images
            .pull(&env.server.name("a.img"))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::TooLarge { limit: 100_000, .. }),
            "{error}"
        );
        assert!(env.partials().is_empty());
    }
    assert_eq!(env.server.seen().len(), 2);
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let env = TestEnvironment::new().await;
    let name = env.server.name("a.img");
    let stall = env.settings.stall_timeout;
    env.server.offer("a.img", &disk(400, 1), "1");
    // Each attempt gets another number of bytes, by which it is known.
    env.server.script((1..=4).map(Step::HoldAfter));
    let images = env.images.clone();
    let pull = {
        let name = name.clone();
        tokio::spawn(async move { images.pull(&name).await })
    };
    for attempt in 1..=4 {
        // Written in the same step in which the download begins to wait for the rest.
        until(|| {
            env.images
                .progress(&name)
                .is_some_and(|p| p.received == attempt)
        })
        .await;
        tokio::time::pause();
        for _ in 0..9 {
            tokio::time::advance(stall / 10).await;
            settle().await;
        }
        assert_eq!(env.server.seen().len() as u64, attempt, "it has time left");
        tokio::time::advance(stall / 10).await;
        tokio::time::resume();
    }
    let error = tokio::time::timeout(TIMEOUT, pull).await.unwrap().unwrap();
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
    assert_eq!(env.server.seen().len(), 4);
}

#[tokio::test]
async fn a_virtual_disk_above_the_limit_is_refused() {
    let env = TestEnvironment::with(|s| s.max_virtual_bytes = 1024).await;
    env.server.offer("a.img", &disk(3, 1), "1");
    let error = env
        .images
        .pull(&env.server.name("a.img"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");
    assert!(env.partials().is_empty() && env.data().is_empty());
}

#[tokio::test]
async fn a_login_page_is_not_a_disk() {
    let env = TestEnvironment::new().await;
    env.server
        .offer("a.img", b"\n<!DocType html><title>Log in</title>", "1");
    let error = env
        .images
        .pull(&env.server.name("a.img"))
        .await
        .unwrap_err();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.starts_with("it is a web page"), "{reason}");
    assert!(env.partials().is_empty() && env.data().is_empty());
}

/// What qemu-img makes of these options: a disk of 3 GiB.
pub(super) fn qcow2(options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.qcow2");
    let made = std::process::Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .args(options)
        .arg(&path)
        .arg("3G")
        .status();
    assert!(made.expect("qemu-img is installed").success());
    std::fs::read(path).unwrap()
}

#[tokio::test]
async fn a_qcow2_header_gives_the_virtual_size() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.qcow2", &qcow2(&[])).await;
    assert_eq!((image.format, image.virtual_size), (Format::Qcow2, 3 << 30));
    assert_eq!(env.reopened().await.images.list(), [image]);
}

#[tokio::test]
async fn a_qcow2_that_would_read_a_file_of_the_node_is_refused() {
    let env = TestEnvironment::new().await;
    let hostile = qcow2(&["-b", "/etc/passwd", "-F", "raw"]);
    env.server.offer("a.qcow2", &hostile, "1");
    let error = env
        .images
        .pull(&env.server.name("a.qcow2"))
        .await
        .unwrap_err();
    let refused = FormatError::Qcow2(Qcow2Error::BackingFile);
    assert!(
        matches!(error, Error::Format { reason, .. } if reason == refused),
        "{error}"
    );
    assert!(env.partials().is_empty() && env.data().is_empty());
}

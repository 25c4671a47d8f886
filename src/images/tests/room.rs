//! What downloads may take of the disk and of the time.
//!
//! Invariant: waits have no length of their own: time is paused, or an event is awaited.
//! Failure: none expected.

use std::fs::File;
use std::time::SystemTime;

use super::*;
use crate::space::Space;

/// Leaves a download that can be continued, of `bytes`, written some hours ago.
fn leave(env: &TestEnvironment, name: &str, bytes: usize, hours: u64) -> [PathBuf; 2] {
    let path = env.settings.dir.join("partial").join(name);
    let note = path.with_extension("json");
    let part = path.with_extension("part");
    std::fs::write(&note, b"{}").unwrap();
    std::fs::write(&part, vec![1; bytes]).unwrap();
    let written = SystemTime::now() - Duration::from_secs(hours * 3600);
    let file = File::options().write(true).open(&part).unwrap();
    file.set_modified(written).unwrap();
    [note, part]
}

#[tokio::test]
async fn old_downloads_go_while_the_store_is_open() {
    let env = TestEnvironment::new().await;
    let kept = leave(&env, "new", 512, 23);
    leave(&env, "old", 512, 25);
    env.images.age().await.unwrap();
    assert_eq!(env.partials(), kept);
}

#[tokio::test]
async fn the_oldest_partial_downloads_make_room_for_a_new_one() {
    let env = TestEnvironment::with(|s| s.max_partial_bytes = 1 << 20).await;
    leave(&env, "oldest", 400 << 10, 3);
    leave(&env, "old", 400 << 10, 2);
    let kept = leave(&env, "new", 400 << 10, 1);
    env.images.age().await.unwrap();
    assert_eq!(env.partials().len(), 4, "1200 KiB are more than the limit");
    // 512 KiB leave room for one of 400 KiB.
    env.pulled("a.img", &disk(1024, 1)).await;
    assert_eq!(env.partials(), kept);
}

#[tokio::test]
async fn downloads_in_progress_are_limited_together() {
    let env = TestEnvironment::with(|s| s.max_partial_bytes = 1 << 20).await;
    let first = env.server.name("a.img");
    let second = env.server.name("b.img");
    env.server.offer("a.img", &disk(1200, 1), "1");
    env.server.offer("b.img", &disk(1200, 2), "1");
    env.server.script([Step::HoldAfter(512)]);
    let images = env.images.clone();
    let pull = {
        let first = first.clone();
        tokio::spawn(async move { images.pull(&first).await })
    };
    until(|| {
        env.images
            .progress(&first)
            .is_some_and(|p| p.received == 512)
    })
    .await;
    // With its length, and without.
    env.server.script([Step::Serve, Step::Unsized]);
    for _ in 0..2 {
        let error = env.images.pull(&second).await.unwrap_err();
        assert!(
            matches!(error, Error::Crowded { limit } if limit == 1 << 20),
            "{error}"
        );
    }
    env.server.go_on();
    pull.await.unwrap().unwrap();
    env.images.pull(&second).await.unwrap();
}

#[tokio::test]
async fn the_reserve_of_the_disk_is_left_alone() {
    let env = TestEnvironment::with(|s| s.space = Space::new(u64::MAX)).await;
    env.server.offer("a.img", &disk(4, 1), "1");
    let error = env.images.pull(&env.server.name("a.img")).await;
    assert!(matches!(error, Err(Error::NoSpace { .. })), "{error:?}");
    let text = error.unwrap_err().to_string();
    let words = format!("but images.reserve keeps {} of them free", u64::MAX);
    assert!(text.ends_with(&words), "{text}");
    assert!(env.partials().is_empty() && env.data().is_empty());
}

#[tokio::test]
async fn a_server_that_trickles_is_given_up_and_holds_up_no_other_pull() {
    let env = TestEnvironment::with(|s| s.min_rate = 1 << 10).await;
    let slow = env.server.name("slow.img");
    let stall = env.settings.stall_timeout;
    env.server.offer("slow.img", &disk(400, 1), "1");
    env.server.script([Step::Trickle]);
    let pull = {
        let images = env.images.clone();
        let slow = slow.clone();
        tokio::spawn(async move { images.pull(&slow).await })
    };
    for sent in 1..=11 {
        env.server.go_on();
        until(|| {
            env.images
                .progress(&slow)
                .map_or(sent == 11, |p| p.received == sent)
        })
        .await;
        // Another image comes meanwhile.
        if sent == 1 {
            env.pulled("quick.img", &disk(4, 2)).await;
        }
        // Never so long as to be silent.
        tokio::time::pause();
        tokio::time::advance(stall / 10).await;
        settle().await;
        tokio::time::resume();
    }
    let error = tokio::time::timeout(TIMEOUT, pull).await.unwrap().unwrap();
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Slow { limit: 1024, .. }), "{error}");
    assert_eq!(env.partials().len(), 2, "the next pull continues it");
}

#[tokio::test]
async fn a_file_that_is_no_disk_is_refused_before_the_rest_comes() {
    let env = TestEnvironment::new().await;
    let mut page = disk(400, 1);
    page[..6].copy_from_slice(b"<html>");
    env.server.offer("a.img", &page, "1");
    // The rest never comes.
    env.server.script([Step::HoldAfter(128 << 10)]);
    let name = env.server.name("a.img");
    let pull = tokio::time::timeout(TIMEOUT / 3, env.images.pull(&name));
    let error = pull.await.expect("no wait for the rest").unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");
    assert!(env.partials().is_empty() && env.data().is_empty());
}

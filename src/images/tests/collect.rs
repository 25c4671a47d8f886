//! The collection of images that nothing uses.
//!
//! Invariant: tests choose all times: they write the last use of an image into the database, as an
//! earlier life of the daemon would have.
//! Failure: none expected.

use std::collections::HashSet;

use super::*;
use crate::images::collect::Measured;
use crate::images::share::Turn;

/// A day, in nanoseconds.
const DAY: i64 = 86_400_000_000_000;
const NOW: i64 = 100 * DAY;

impl TestEnvironment {
    /// The same store in a later life of the daemon, with these days of the last use.
    async fn used_on(self, days: &[(Digest, i64)]) -> Self {
        let days = days.to_vec();
        let written = self.db.write(move |t| {
            for (digest, day) in days {
                let update = "UPDATE images SET used_at = ?2 WHERE digest = ?1";
                t.execute(update, (digest.to_string(), day * DAY))?;
            }
            Ok(())
        });
        written.await.unwrap();
        self.reopened().await
    }

    fn ids(&self) -> HashSet<Digest> {
        let images = self.images.list().into_iter();
        images.map(|image| image.digest).collect()
    }

    async fn three(&self) -> [Image; 3] {
        [
            self.pulled("a.img", &disk(64, 1)).await,
            self.pulled("b.img", &disk(64, 2)).await,
            self.pulled("c.img", &disk(64, 3)).await,
        ]
    }
}

fn unused_for(days: u64) -> Collection {
    Collection {
        max_unused: Some(Duration::from_secs(days * 86_400)),
        ..Collection::default()
    }
}

/// Containers that refer to images.
#[derive(Debug)]
struct Containers(HashSet<Digest>);

impl Users for Containers {
    fn images(&self) -> HashSet<Digest> {
        self.0.clone()
    }
}

#[tokio::test]
async fn what_was_unused_for_too_long_is_collected_and_stays_away_after_a_restart() {
    let env = TestEnvironment::with(|s| s.collection = unused_for(7)).await;
    let [a, b, c] = env.three().await.map(|image| image.digest);
    let env = env.used_on(&[(a, 92), (b, 93), (c, 94)]).await;
    env.images.inner.collect(NOW).await.unwrap();
    assert_eq!(env.ids(), HashSet::from([c]), "after exactly 7 days, too");
    assert_eq!(env.data().len(), 1);
    let env = env.reopened().await;
    assert_eq!(env.ids(), HashSet::from([c]));
    let page = env
        .settings
        .metrics
        .text(&crate::metrics::Census::default());
    let line = r#"vmlet_images_collected_total{reason="unused"} 2"#;
    assert!(page.contains(line), "{page}");
}

#[tokio::test]
async fn the_least_recently_used_images_make_room_and_no_more_than_are_needed() {
    let env = TestEnvironment::new().await;
    let [a, b, c] = env.three().await.map(|image| image.digest);
    let env = env.used_on(&[(a, 30), (b, 10), (c, 20)]).await;
    let inner = &env.images.inner;
    assert_eq!(inner.free(0, NOW).await.unwrap(), 0);
    assert_eq!(env.ids().len(), 3);
    let one = inner.free(1, NOW).await.unwrap();
    assert_eq!((env.ids(), one >= 64 * 512), (HashSet::from([a, c]), true));
    inner.free(1, NOW).await.unwrap();
    assert_eq!(env.ids(), HashSet::from([a]));
    assert_eq!(inner.free(u64::MAX, NOW).await.unwrap(), one);
    assert!(env.ids().is_empty() && env.data().is_empty());
}

#[tokio::test]
async fn images_with_users_are_never_collected() {
    let env = TestEnvironment::with(|s| s.collection = unused_for(1)).await;
    let [pinned, referred, pulling] = env.three().await;
    let unused = env.pulled("d.img", &disk(64, 4)).await.digest;
    let recent = env.pulled("e.img", &disk(64, 5)).await.digest;
    env.images.pin("pod", &pinned.tags[0]).await.unwrap();
    let days = [&pinned, &referred, &pulling].map(|image| (image.digest, 0));
    let env = env.used_on(&days).await;
    let env = env.used_on(&[(unused, 0), (recent, 100)]).await;
    let containers = HashSet::from([referred.digest]);
    env.images.set_users(Arc::new(Containers(containers)));
    let source = env.images.inner.catalog.read(|rows| {
        let mut sources = rows.sources.iter();
        let of_it = sources.find(|(_, (arrived, _))| arrived.digest == pulling.digest);
        of_it.unwrap().0.clone()
    });
    let turn = env.images.inner.downloads.turn(source, "").await;
    assert!(matches!(turn, Turn::Lead(_)));
    let kept = HashSet::from([pinned.digest, referred.digest, pulling.digest, recent]);
    env.images.inner.collect(NOW).await.unwrap();
    assert_eq!(env.ids(), kept);
    env.images.inner.free(u64::MAX, NOW).await.unwrap();
    assert_eq!(env.ids(), kept);

    drop(turn);
    env.images.unpin("pod").await.unwrap();
    env.images.inner.collect(NOW).await.unwrap();
    let kept = HashSet::from([pinned.digest, referred.digest, recent]);
    assert_eq!(env.ids(), kept, "the pin ended a moment ago");
}

#[tokio::test]
async fn pulls_and_both_ends_of_a_pin_are_uses_that_survive_a_restart() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(64, 1)).await;
    let name = env.server.name("a.img");
    let used = |env: &TestEnvironment| env.images.use_of(image.digest).unwrap();
    let first = used(&env);
    assert!(first.pulled_at > 0 && first.used_at == first.pulled_at);

    let env = env.used_on(&[(image.digest, 1)]).await;
    assert_eq!(used(&env).used_at, DAY);
    env.images.pin("pod", &name).await.unwrap();
    let pinned = used(&env);
    assert!(pinned.used_at > DAY);
    assert_eq!(pinned.owners, ["pod"]);
    let env = env.reopened().await;
    assert_eq!(used(&env), pinned);

    let env = env.used_on(&[(image.digest, 1)]).await;
    env.images.unpin("pod").await.unwrap();
    assert!(used(&env).used_at > DAY);

    let env = env.used_on(&[(image.digest, 1)]).await;
    env.images.pull(&name).await.unwrap();
    let again = used(&env);
    assert!(again.used_at > DAY);
    assert_eq!(
        again.pulled_at, first.pulled_at,
        "the file did not come again"
    );
    let env = env.reopened().await;
    assert_eq!(used(&env), again);
}

#[tokio::test]
async fn the_end_of_the_daemon_ends_a_round() {
    let env = TestEnvironment::with(|s| s.collection = unused_for(1)).await;
    let [a, b, c] = env.three().await.map(|image| image.digest);
    let env = env.used_on(&[(a, 0), (b, 0), (c, 0)]).await;
    env.images.settle().await;
    let ended = env.images.inner.collect(NOW).await;
    assert!(matches!(ended, Err(Error::Stopping)), "{ended:?}");
    assert_eq!(env.ids().len(), 3);
}

#[test]
fn above_the_high_mark_the_excess_over_the_low_mark_goes() {
    let marks = Marks { high: 90, low: 80 };
    for (capacity, available, excess) in [
        (1000, 1000, 0),
        (1000, 101, 0),
        (1000, 100, 100),
        (1000, 0, 200),
        (0, 0, 0),
        (u64::MAX, 0, u64::MAX - u64::MAX / 5 * 4),
    ] {
        let fs = Measured {
            capacity,
            available,
        };
        assert_eq!(marks.excess(fs), excess, "{fs:?}");
    }
}

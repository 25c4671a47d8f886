//! Pulls of the same URL at the same time.
//!
//! Invariant: one download serves all of them.
//! Failure: an error reaches all of them.

use super::*;

fn pulling(env: &TestEnvironment, name: String) -> tokio::task::JoinHandle<Result<Image>> {
    let images = env.images.clone();
    tokio::spawn(async move { images.pull(&name).await })
}

fn received(env: &TestEnvironment, name: &str) -> u64 {
    env.images
        .progress(name)
        .map_or(0, |progress| progress.received)
}

#[tokio::test]
async fn concurrent_pulls_make_one_request() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.offer("a.img", &bytes, "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let name = env.server.name("a.img");
    let first = pulling(&env, name.clone());
    until(|| received(&env, &name) == 1_000).await;
    let others: Vec<_> = ["x", "y"]
        .map(|tag| pulling(&env, format!("{name}:{tag}")))
        .into();
    tokio::task::yield_now().await;
    let progress = env.images.progress(&name).unwrap();
    assert_eq!(env.images.pulls(), [(format!("{name}:latest"), progress)]);
    env.server.go_on();
    assert_eq!(first.await.unwrap().unwrap().digest, digest_of(&bytes));
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().digest, digest_of(&bytes));
    }
    assert!(env.images.pulls().is_empty());
    assert_eq!(env.server.seen().len(), 1);
    assert_eq!(env.images.list()[0].tags.len(), 3);
}

#[tokio::test]
async fn when_the_leader_goes_away_another_continues_its_download() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.offer("a.img", &bytes, "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let name = env.server.name("a.img");
    let leader = pulling(&env, name.clone());
    until(|| received(&env, &name) == 1_000).await;
    let follower = pulling(&env, name.clone());
    tokio::task::yield_now().await;
    leader.abort();
    assert_eq!(follower.await.unwrap().unwrap().digest, digest_of(&bytes));
    let seen = env.server.seen();
    assert_eq!(seen[1].header(http::header::RANGE), Some("bytes=1000-"));
}

#[tokio::test]
async fn a_follower_with_another_digest_gets_an_error() {
    let env = TestEnvironment::new().await;
    env.server.offer("a.img", &disk(400, 1), "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let name = env.server.name("a.img");
    let leader = pulling(&env, name.clone());
    until(|| received(&env, &name) == 1_000).await;
    let follower = pulling(&env, format!("{name}@{}", digest_of(b"other")));
    tokio::task::yield_now().await;
    env.server.go_on();
    leader.await.unwrap().unwrap();
    let error = follower.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    assert_eq!(env.images.list().len(), 1);
}

#[tokio::test]
async fn a_follower_of_a_wrong_digest_still_gets_its_image() {
    let env = TestEnvironment::new().await;
    env.server.offer("a.img", &disk(400, 1), "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let name = env.server.name("a.img");
    let leader = pulling(&env, format!("{name}@{}", digest_of(b"other")));
    until(|| received(&env, &name) == 1_000).await;
    let follower = pulling(&env, name.clone());
    tokio::task::yield_now().await;
    env.server.go_on();
    leader.await.unwrap().unwrap_err();
    follower.await.unwrap().unwrap();
}

#[tokio::test]
async fn each_pod_that_waits_for_a_download_is_listed_until_its_pull_ends() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.offer("a.img", &bytes, "1");
    env.server.script([Step::HoldAfter(bytes.len() / 2)]);
    let url = format!("http://{}/a.img?key=hush", env.server.authority);
    let waiting = |pod: &str| {
        let images = env.images.clone();
        let url = url.clone();
        let part = |text: &str| text.to_owned();
        let pod = Requester::new(part("ns"), part(pod), format!("uid-{pod}"));
        tokio::spawn(async move {
            let name = podspec::url_image_name(&url);
            let image = Locator::new(&name, Some(&url));
            images.pull_for(pod, image, None).await
        })
    };
    let mut changes = env.images.pod_pull_changes();
    let one = waiting("one");
    let two = waiting("two");
    let both = async {
        while env.images.pod_pulls().len() < 2 {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, both).await.unwrap();
    let mut listed: Vec<_> = env.images.pod_pulls().into_values().collect();
    listed.sort_by(|one, other| one.pod.name.cmp(&other.pod.name));
    for (pull, pod) in listed.iter().zip(["one", "two"]) {
        assert_eq!(
            (pull.pod.name.as_str(), pull.progress.percent()),
            (pod, Some(50))
        );
        assert_eq!(pull.image, format!("http://{}/a.img", env.server.authority));
    }
    one.abort();
    assert!(one.await.unwrap_err().is_cancelled());
    assert_eq!(env.images.pod_pulls().len(), 1);
    env.server.go_on();
    two.await.unwrap().unwrap();
    assert!(env.images.pod_pulls().is_empty());
}

//! Removing and pinning.
//!
//! Invariant: a pinned file stays; an image that was removed is neither listed nor found.
//! Failure: none expected.

use super::*;

#[tokio::test]
async fn a_removed_image_is_gone_with_all_its_names() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    env.images
        .pull(&env.server.name("a.img:other"))
        .await
        .unwrap();
    env.images
        .remove(&env.server.name("a.img:other"))
        .await
        .unwrap();
    assert!(env.images.list().is_empty());
    assert_eq!(env.images.find(&image.digest.hex()), None);
    assert!(!image.path.exists());
    env.images.remove(&image.digest.hex()).await.unwrap();
}

#[tokio::test]
async fn five_parallel_removals_succeed() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let id = image.digest.to_string();
    let removals = (0..5).map(|_| {
        let images = env.images.clone();
        let id = id.clone();
        tokio::spawn(async move { images.remove(&id).await })
    });
    for removal in removals.collect::<Vec<_>>() {
        removal.await.unwrap().unwrap();
    }
    assert!(env.data().is_empty());
}

#[tokio::test]
async fn a_pin_keeps_the_file_of_a_removed_image_until_it_is_given_up() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let name = env.server.name("a.img");
    env.images.pin("pod-1", &name).await.unwrap();
    env.images.pin("pod-2", &image.digest.hex()).await.unwrap();
    env.images.remove(&name).await.unwrap();
    assert!(env.images.list().is_empty() && env.images.find(&name).is_none());

    let env = env.reopened().await;
    let pinned = env.images.pinned("pod-1").unwrap();
    assert_eq!((pinned.digest, &pinned.path), (image.digest, &image.path));
    assert_eq!((pinned.format, pinned.virtual_size), (Format::Raw, 2048));
    env.images.unpin("pod-1").await.unwrap();
    assert!(image.path.exists());
    env.images.unpin("pod-2").await.unwrap();
    assert!(!image.path.exists());
    assert_eq!(env.images.pinned("pod-2"), None);
    env.images.unpin("pod-2").await.unwrap();
}

#[tokio::test]
async fn an_owner_keeps_the_image_that_it_pinned_first() {
    let env = TestEnvironment::new().await;
    let old = env.pulled("a.img", &disk(4, 1)).await;
    let name = env.server.name("a.img");
    env.images.pin("pod", &name).await.unwrap();
    env.server.offer("a.img", &disk(4, 2), "2");
    let new = env.images.pull(&name).await.unwrap();
    assert_eq!(
        env.images.pin("pod", &name).await.unwrap().digest,
        old.digest
    );
    assert_eq!(
        env.images.pin("other", &name).await.unwrap().digest,
        new.digest
    );
    env.images.remove(&old.digest.hex()).await.unwrap();
    assert_eq!(env.images.pin("pod", "gone").await.unwrap().path, old.path);
    assert!(old.path.exists());
    let mut owners = env.images.owners();
    owners.sort();
    assert_eq!(owners, ["other", "pod"]);
}

#[tokio::test]
async fn the_name_by_which_an_owner_knows_its_image_survives_a_restart() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let id = image.digest.to_string();
    let text = |env: &TestEnvironment, owner| env.images.pinned(owner).unwrap().text;
    env.images.pin("disk", &id).await.unwrap();
    env.images.pin_as("pod", &id, "a").await.unwrap();
    assert_eq!(text(&env, "pod"), Some("a".to_owned()));
    env.images.pin_as("pod", &id, "b").await.unwrap();
    env.images.pin("pod", &id).await.unwrap();
    let env = env.reopened().await;
    assert_eq!(
        (text(&env, "pod"), text(&env, "disk")),
        (Some("b".to_owned()), None)
    );
}

#[tokio::test]
async fn a_pin_that_moves_takes_the_place_of_another_or_changes_nothing() {
    let env = TestEnvironment::new().await;
    let old = env.pulled("a.img", &disk(4, 1)).await;
    let new = env.pulled("b.img", &disk(4, 2)).await;
    env.images.pin("pod", &old.digest.hex()).await.unwrap();
    let refused = env.images.move_pin("container", "pod", "b").await;
    assert!(matches!(refused, Err(Error::Absent { .. })), "{refused:?}");
    env.images
        .pin("container", &new.digest.hex())
        .await
        .unwrap();
    for image in [&old, &new] {
        env.images.remove(&image.digest.hex()).await.unwrap();
    }
    let pins = |env: &TestEnvironment| {
        ["pod", "container"].map(|owner| env.images.pinned(owner).map(|pinned| pinned.digest))
    };
    let refuse =
        |set: bool| move |t: &rusqlite::Transaction<'_>| t.pragma_update(None, "query_only", set);
    env.db.write(refuse(true)).await.unwrap();
    let refused = env.images.move_pin("container", "pod", "b").await;
    assert!(refused.is_err());
    env.db.write(refuse(false)).await.unwrap();
    assert_eq!(pins(&env), [Some(old.digest), Some(new.digest)]);
    let env = env.reopened().await;
    assert_eq!(pins(&env), [Some(old.digest), Some(new.digest)]);

    env.images.move_pin("container", "pod", "b").await.unwrap();
    assert_eq!(pins(&env), [Some(new.digest), None]);
    assert!(new.path.exists() && !old.path.exists());
    let env = env.reopened().await;
    assert_eq!(pins(&env), [Some(new.digest), None]);
    let text = env.images.pinned("pod").unwrap().text;
    assert_eq!(text.as_deref(), Some("b"));
    // To an owner without a pin.
    env.images.move_pin("pod", "other", "c").await.unwrap();
    assert_eq!(env.images.owners(), ["other"]);
    env.images.unpin("other").await.unwrap();
    assert!(!new.path.exists());
}

#[tokio::test]
async fn an_image_that_is_pulled_again_while_pinned_is_listed_again() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 1)).await;
    let name = env.server.name("a.img");
    env.images.pin("pod", &name).await.unwrap();
    env.images.remove(&name).await.unwrap();
    assert_eq!(env.images.pull(&name).await.unwrap(), image);
    env.images.unpin("pod").await.unwrap();
    assert!(image.path.exists());
}

#[tokio::test]
async fn what_is_not_there_cannot_be_pinned() {
    let env = TestEnvironment::new().await;
    let error = env.images.pin("pod", "example.org/a").await.unwrap_err();
    assert!(matches!(error, Error::Absent { .. }), "{error}");
    let image = env.pulled("a.img", &disk(4, 1)).await;
    std::fs::remove_file(&image.path).unwrap();
    let error = env
        .images
        .pin("pod", &image.digest.hex())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Absent { .. }), "{error}");
    assert!(env.images.owners().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pulls_pins_and_removals_of_one_content_never_lose_a_pinned_file() {
    let env = TestEnvironment::new().await;
    env.pulled("a.img", &disk(40, 1)).await;
    let name = env.server.name("a.img");
    let lives = (0..8).map(|n| {
        let images = env.images.clone();
        let name = name.clone();
        tokio::spawn(async move {
            let owner = format!("pod-{n}");
            for _ in 0..20 {
                images.pull(&name).await.unwrap();
                match images.pin(&owner, &name).await {
                    Ok(image) => assert!(image.path.exists()),
                    Err(Error::Absent { .. }) => continue,
                    Err(other) => panic!("{other}"),
                }
                images.remove(&name).await.unwrap();
                assert!(images.pinned(&owner).unwrap().path.exists());
                images.unpin(&owner).await.unwrap();
            }
        })
    });
    for life in lives.collect::<Vec<_>>() {
        life.await.unwrap();
    }
    env.images.remove(&name).await.unwrap();
    assert!(env.data().is_empty() && env.images.list().is_empty());
}

/// kubelet pulls an image that it does not find, also when a machine's disk has its file.
#[tokio::test]
async fn an_image_that_was_removed_under_a_disk_comes_back_without_a_download() {
    let mut env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(64, 1)).await;
    let name = env.server.name("a.img");
    env.images.pin("pod-1", &name).await.unwrap();
    for is_restarted in [false, true] {
        env.images.remove(&name).await.unwrap();
        assert!(env.images.find(&name).is_none());
        if is_restarted {
            env = env.reopened().await;
        }
        let before = env.server.seen().len();
        assert_eq!(env.images.pull(&name).await.unwrap(), image);
        let seen = env.server.seen().split_off(before);
        assert_eq!(seen.len(), 1);
        assert!(seen[0].header(http::header::IF_NONE_MATCH).is_some());
        assert_eq!(env.images.list(), std::slice::from_ref(&image));
    }
    // Where the file goes, what is known of its source goes, too.
    env.images.remove(&name).await.unwrap();
    env.images.unpin("pod-1").await.unwrap();
    assert!(!image.path.exists());
    let before = env.server.seen().len();
    env.images.pull(&name).await.unwrap();
    let seen = env.server.seen().split_off(before);
    assert_eq!(seen[0].header(http::header::IF_NONE_MATCH), None);
}

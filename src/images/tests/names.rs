//! Names, tags and digests of pulled images.
//!
//! Invariant: lists and look-ups show a pull as soon as it returns.
//! Failure: none expected.

use super::*;

#[tokio::test]
async fn a_pulled_image_is_found_by_every_kind_of_reference() {
    let env = TestEnvironment::new().await;
    let bytes = disk(9, 1);
    let image = env.pulled("debian.img", &bytes).await;
    let name = env.server.name("debian.img");
    let digest = digest_of(&bytes);

    assert_eq!(image.digest, digest);
    assert_eq!(image.tags, [format!("{name}:latest")]);
    assert_eq!(image.digests, [format!("{name}@{digest}")]);
    assert_eq!((image.size, image.virtual_size), (9 * 512, 9 * 512));
    assert_eq!(image.format, Format::Raw);
    assert_eq!(std::fs::read(&image.path).unwrap(), bytes);
    for reference in [
        digest.to_string(),
        digest.hex(),
        digest.hex()[..13].to_owned(),
        name.clone(),
        format!("{name}:latest"),
        format!("{name}@{digest}"),
    ] {
        assert_eq!(
            env.images.find(&reference),
            Some(image.clone()),
            "{reference}"
        );
    }
    for reference in [
        &format!("{name}:other"),
        &digest.hex()[..11],
        "",
        "debian.img",
    ] {
        assert_eq!(env.images.find(reference), None, "{reference}");
    }
    assert_eq!(env.images.list(), [image]);
}

#[tokio::test]
async fn a_pull_by_digest_has_no_tag_and_needs_no_second_download() {
    let env = TestEnvironment::new().await;
    let bytes = disk(4, 2);
    env.server.offer("a.img", &bytes, "1");
    let by_digest = format!("{}@{}", env.server.name("a.img"), digest_of(&bytes));
    let tagged = format!("{}:v1@{}", env.server.name("a.img"), digest_of(&bytes));
    let image = env.images.pull(&by_digest).await.unwrap();
    assert!(image.tags.is_empty());
    assert_eq!(image.digests, [by_digest]);
    assert_eq!(env.images.pull(&tagged).await.unwrap(), image);
    assert_eq!(env.server.seen().len(), 1);
}

#[tokio::test]
async fn three_tags_of_one_content_are_one_image() {
    let env = TestEnvironment::new().await;
    env.server.offer("a.img", &disk(4, 2), "1");
    let name = env.server.name("a.img");
    for tag in ["1", "2", "3"] {
        env.images.pull(&format!("{name}:{tag}")).await.unwrap();
    }
    let list = env.images.list();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].tags, [1, 2, 3].map(|tag| format!("{name}:{tag}")));
    assert_eq!(list[0].digests.len(), 1);
}

#[tokio::test]
async fn an_unchanged_file_is_not_sent_again() {
    let env = TestEnvironment::new().await;
    let first = env.pulled("a.img", &disk(4, 2)).await;
    let again = env.images.pull(&env.server.name("a.img")).await.unwrap();
    assert_eq!(first, again);
    let seen = env.server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].header(http::header::IF_NONE_MATCH), Some("\"1\""));
    assert!(env.partials().is_empty());
}

#[tokio::test]
async fn a_tag_moves_to_new_content_and_the_old_image_keeps_its_digest_name() {
    let env = TestEnvironment::new().await;
    let old = env.pulled("a.img", &disk(4, 2)).await;
    env.server.offer("a.img", &disk(4, 3), "2");
    let new = env.images.pull(&env.server.name("a.img")).await.unwrap();
    assert_ne!(old.digest, new.digest);
    assert_eq!(new.tags, old.tags);
    let old = env.images.find(&old.digest.hex()).unwrap();
    assert!(old.tags.is_empty());
    assert_eq!(old.digests.len(), 1);
}

#[tokio::test]
async fn a_routing_prefix_stays_in_the_name_and_out_of_the_url() {
    let env = TestEnvironment::new().await;
    env.server.offer("x/a.img", &disk(1, 0), "1");
    let name = format!("virtlet.cloud/{}", env.server.name("x/a.img"));
    let image = env.images.pull(&name).await.unwrap();
    assert_eq!(image.tags, [format!("{name}:latest")]);
    assert_eq!(env.server.seen()[0].path, "/x/a.img");
}

#[tokio::test]
async fn an_image_that_vanished_from_disk_is_pulled_again() {
    let env = TestEnvironment::new().await;
    let image = env.pulled("a.img", &disk(4, 2)).await;
    std::fs::remove_file(&image.path).unwrap();
    let again = env.images.pull(&env.server.name("a.img")).await.unwrap();
    assert_eq!(again, image);
    assert!(image.path.exists());
}

#[tokio::test]
async fn an_id_cannot_be_pulled() {
    let env = TestEnvironment::new().await;
    let id = digest_of(b"x").to_string();
    let refused = env.images.pull(&id).await;
    assert!(
        matches!(refused, Err(Error::InvalidName { .. })),
        "{refused:?}"
    );
}

//! Interrupted, refused and strange transfers.
//!
//! Invariant: a partial is continued only with bytes of the same version.
//! Failure: each error states what is wrong and where.

use http::header;

use super::*;

#[tokio::test]
async fn a_cut_transfer_is_resumed_within_the_same_pull() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 5);
    env.server
        .script([Step::CutAfter(70_000), Step::Status(503)]);
    let image = env.pulled("a.img", &bytes).await;
    assert_eq!(image.digest, digest_of(&bytes));
    let seen = env.server.seen();
    assert_eq!(seen.len(), 3);
    let range = seen[2].header(header::RANGE).unwrap();
    assert_eq!(range, "bytes=70000-");
    assert_eq!(seen[2].header(header::IF_RANGE), Some("\"1\""));
    assert!(env.partials().is_empty());
}

#[tokio::test]
async fn a_truncated_download_fails_after_three_retries_and_is_resumed_by_the_next_pull() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 6);
    env.server.offer("a.img", &bytes, "1");
    env.server
        .script([1, 2, 3, 4].map(|_| Step::CutAfter(1_000)));
    let name = env.server.name("a.img");
    let error = env.images.pull(&name).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("truncated: {name} sent 1000 of 204800 bytes")
    );
    assert_eq!(env.server.seen().len(), 4);
    assert_eq!(env.partials().len(), 2);

    let env = env.reopened().await;
    let image = env.images.pull(&name).await.unwrap();
    assert_eq!(image.digest, digest_of(&bytes));
    assert_eq!(
        env.server.seen()[4].header(header::RANGE),
        Some("bytes=1000-")
    );
}

#[tokio::test]
async fn another_version_on_the_server_starts_the_download_over() {
    let env = TestEnvironment::new().await;
    env.server.offer("a.img", &disk(400, 1), "1");
    env.server
        .script([Step::CutAfter(1_000), Step::Status(404)]);
    let name = env.server.name("a.img");
    env.images.pull(&name).await.unwrap_err();
    let changed = disk(300, 2);
    env.server.offer("a.img", &changed, "2");
    let image = env.images.pull(&name).await.unwrap();
    assert_eq!(image.digest, digest_of(&changed));
    let seen = env.server.seen();
    assert_eq!(seen[2].header(header::IF_RANGE), Some("\"1\""));
}

#[tokio::test]
async fn a_range_other_than_requested_restarts_the_download() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.script([
        Step::CutAfter(1_000),
        Step::With(header::CONTENT_RANGE, "bytes 999-204799/204800"),
    ]);
    let image = env.pulled("a.img", &bytes).await;
    assert_eq!(image.digest, digest_of(&bytes));
    assert_eq!(env.server.seen().len(), 3);
}

#[tokio::test]
async fn a_partial_of_an_earlier_boot_is_not_trusted() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.server.offer("a.img", &bytes, "1");
    env.server
        .script([Step::CutAfter(1_000), Step::Status(404)]);
    let name = env.server.name("a.img");
    env.images.pull(&name).await.unwrap_err();
    let note = &env.partials()[0];
    let mut text: serde_json::Value =
        serde_json::from_slice(&std::fs::read(note).unwrap()).unwrap();
    text["boot"] = "another".into();
    std::fs::write(note, text.to_string()).unwrap();
    env.images.pull(&name).await.unwrap();
    assert_eq!(env.server.seen()[2].header(header::RANGE), None);
}

#[tokio::test]
async fn a_dropped_pull_keeps_what_it_received() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 7);
    env.server.offer("a.img", &bytes, "1");
    env.server.script([Step::HoldAfter(100_000)]);
    let name = env.server.name("a.img");
    let pulling = tokio::spawn({
        let images = env.images.clone();
        let name = name.clone();
        async move { images.pull(&name).await }
    });
    let expected = Some(Progress {
        received: 100_000,
        total: Some(204_800),
    });
    until(|| env.images.progress(&name) == expected).await;
    pulling.abort();
    assert!(pulling.await.unwrap_err().is_cancelled());
    assert_eq!(env.images.progress(&name), None);

    assert_eq!(
        env.images.pull(&name).await.unwrap().digest,
        digest_of(&bytes)
    );
    assert_eq!(
        env.server.seen()[1].header(header::RANGE),
        Some("bytes=100000-")
    );
    assert_eq!(env.images.progress(&name), None);
}

#[tokio::test]
async fn a_body_without_length_is_taken_to_its_end() {
    let env = TestEnvironment::new().await;
    env.server.script([Step::Unsized]);
    let bytes = disk(5_000, 8);
    assert_eq!(env.pulled("a.img", &bytes).await.digest, digest_of(&bytes));
}

#[tokio::test]
async fn a_wrong_digest_names_both_and_leaves_nothing() {
    let env = TestEnvironment::new().await;
    let bytes = disk(4, 1);
    env.server.offer("a.img", &bytes, "1");
    let wrong = digest_of(b"other");
    let right = digest_of(&bytes);
    let name = env.server.name("a.img");
    let error = env
        .images
        .pull(&format!("{name}@{wrong}"))
        .await
        .unwrap_err();
    let text = format!("digest mismatch: {name} has {right}, expected {wrong}");
    assert_eq!(error.to_string(), text);
    assert!(env.partials().is_empty() && env.data().is_empty() && env.images.list().is_empty());
}

#[tokio::test]
async fn a_missing_file_is_not_requested_again() {
    let env = TestEnvironment::new().await;
    let name = env.server.name("none.img");
    let error = env.images.pull(&name).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("not found: {name} answered 404 Not Found")
    );
    assert_eq!(env.server.seen().len(), 1);
    assert!(env.partials().is_empty());
}

#[tokio::test]
async fn a_translated_url_keeps_its_secrets_out_of_errors_and_files() {
    let env = TestEnvironment::new().await;
    let url = format!("http://me:hush@{}?token=hush", env.server.name("p/a.img"));
    let env = TestEnvironment {
        images: Images::open(
            env.db.clone(),
            Settings {
                translations: vec![Translation {
                    pattern: Pattern::Exact("a".into()),
                    url,
                }],
                ..env.settings.clone()
            },
        )
        .await
        .unwrap(),
        ..env
    };
    env.server.offer("p/a.img", &disk(400, 1), "1");
    env.server
        .script([Step::CutAfter(1_000), Step::Status(403)]);
    let error = env.images.pull("a").await.unwrap_err();
    let location = env.server.name("p/a.img");
    assert_eq!(
        error.to_string(),
        format!("refused: {location} answered 403 Forbidden")
    );
    assert!(!format!("{error:?}").contains("hush"));
    assert!(env.server.seen()[0].header(header::AUTHORIZATION).is_some());
    for file in env.partials() {
        let content = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        assert!(!content.contains("hush"), "{}", file.display());
    }
}

#[tokio::test]
async fn a_failing_server_gets_four_requests() {
    let env = TestEnvironment::new().await;
    env.server.script([1, 2, 3, 4].map(|_| Step::Status(500)));
    let error = env
        .images
        .pull(&env.server.name("a.img"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(env.server.seen().len(), 4);
}

#[tokio::test]
async fn a_redirect_is_followed_and_a_circle_is_not() {
    let env = TestEnvironment::new().await;
    let target = format!("http://{}", env.server.name("real.img"));
    env.server.offer("real.img", &disk(4, 1), "1");
    env.server.script([Step::Redirect(target)]);
    env.images.pull(&env.server.name("a.img")).await.unwrap();

    let here = format!("http://{}", env.server.name("circle.img"));
    env.server
        .script(std::iter::repeat_n(Step::Redirect(here), 20));
    let error = env
        .images
        .pull(&env.server.name("circle.img"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error}");
    assert_eq!(env.server.seen().len(), 2 + 11);
}

#[tokio::test]
async fn a_compressed_body_is_refused() {
    let env = TestEnvironment::new().await;
    env.server.offer("a.img", &disk(4, 1), "1");
    env.server
        .script([Step::With(header::CONTENT_ENCODING, "gzip")]);
    let error = env
        .images
        .pull(&env.server.name("a.img"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Reply { .. }), "{error}");
    assert_eq!(
        env.server.seen()[0].header(header::ACCEPT_ENCODING),
        Some("identity")
    );
}

#[tokio::test]
async fn a_missing_listener_is_reported() {
    let env = TestEnvironment::new().await;
    // Bound, so that no other process gets it, and without a listener.
    let mute = tokio::net::TcpSocket::new_v4().unwrap();
    mute.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = mute.local_addr().unwrap().port();
    let error = env
        .images
        .pull(&format!("127.0.0.1:{port}/a.img"))
        .await
        .unwrap_err();
    let text = format!("failed to fetch 127.0.0.1:{port}/a.img: connection refused");
    assert_eq!(crate::one_line(&error), text);
}

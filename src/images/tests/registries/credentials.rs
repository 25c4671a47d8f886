//! Credentials, tokens and mirrors of registries.
//!
//! Invariant: a real server on a socket answers, with what it was shown.
//! Failure: the assertion shows the requests.

use super::*;

fn credentials(password: &str) -> Credentials {
    Credentials {
        username: "me".into(),
        password: password.into(),
        ..Credentials::default()
    }
}

#[tokio::test]
async fn basic_credentials_are_shown_when_they_are_demanded() {
    let t = registry().await;
    artifact(&t.server, "a", "1", &disk(8, 1));
    t.server
        .script([Step::Challenge("Basic realm=\"r\"".into())]);
    let given = credentials("hush");
    let pulled = t
        .images
        .pull_with(&t.server.name("a:1"), Some(&given))
        .await;
    pulled.unwrap();
    let seen = t.server.seen();
    let expected = format!("Basic {}", STANDARD.encode("me:hush"));
    assert_eq!(seen[0].header(header::AUTHORIZATION), None);
    let later = seen[1..].iter().map(|s| s.header(header::AUTHORIZATION));
    assert!(later.clone().all(|shown| shown == Some(expected.as_str())));
    assert_eq!(later.count(), 2);

    t.server
        .script([Step::Challenge("Basic realm=\"r\"".into())]);
    let refused = t.images.pull(&t.server.name("a:1")).await.unwrap_err();
    assert!(
        matches!(refused, Error::Refused { code: 401, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_token_is_fetched_for_the_image_and_renewed_for_its_blob() {
    let t = registry().await;
    artifact(&t.server, "a/b", "1", &disk(8, 1));
    t.server.offer("token", br#"{"token": "t1"}"#, "1");
    let realm = format!("http://{}/token", t.server.authority);
    let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
    t.server.script([
        Step::Challenge(challenge.clone()),
        Step::Serve,                        // the token
        Step::Serve,                        // the manifest
        Step::Challenge(challenge.clone()), // the blob: the token has ended
        Step::Challenge(challenge),
        Step::Serve, // another token
        Step::Serve, // the blob
    ]);
    let given = credentials("hush");
    let pulled = t
        .images
        .pull_with(&t.server.name("a/b:1"), Some(&given))
        .await;
    pulled.unwrap();
    let seen = t.server.seen();
    let shown: Vec<_> = seen
        .iter()
        .map(|s| s.header(header::AUTHORIZATION))
        .collect();
    let basic = format!("Basic {}", STANDARD.encode("me:hush"));
    let token = "Bearer t1";
    let basic = Some(basic.as_str());
    let token = Some(token);
    assert_eq!(shown, [None, basic, token, token, None, basic, token]);
    let query = seen[1].query.as_deref();
    assert_eq!(query, Some("service=s&scope=repository%3Aa%2Fb%3Apull"));
}

#[tokio::test]
async fn pulls_with_other_credentials_share_no_answer() {
    let t = registry().await;
    artifact(&t.server, "a", "1", &disk(8, 1));
    let challenge = || Step::Challenge("Basic realm=\"r\"".into());
    t.server
        .script([challenge(), challenge(), challenge(), Step::Serve]);
    let name = t.server.name("a:1");
    let refused = t.images.pull(&name).await.unwrap_err();
    assert!(
        matches!(refused, Error::Refused { code: 401, .. }),
        "{refused}"
    );
    let wrong = credentials("wrong");
    let refused = t.images.pull_with(&name, Some(&wrong)).await.unwrap_err();
    assert!(
        matches!(refused, Error::Refused { code: 401, .. }),
        "{refused}"
    );
    assert!(!refused.to_string().contains("wrong"));
    let given = credentials("hush");
    t.images.pull_with(&name, Some(&given)).await.unwrap();
}

#[tokio::test]
async fn a_mirror_serves_first_and_the_registry_serves_what_it_lacks() {
    let t = registry().await;
    let mirror = Server::start().await;
    let upstream = Server::start().await;
    artifact(&mirror, "a", "1", &disk(8, 1));
    artifact(&upstream, "b", "1", &disk(8, 2));
    let dir = t.settings.registries_dir.join("r.example");
    std::fs::create_dir_all(&dir).unwrap();
    let file = format!(
        "server = \"http://{}\"\n[host.\"http://{}\"]\n",
        upstream.authority, mirror.authority
    );
    std::fs::write(dir.join("hosts.toml"), file).unwrap();
    upstream.script([Step::Challenge("Basic realm=\"r\"".into())]);
    let given = credentials("hush");
    let pull = |name| t.images.pull_with(name, Some(&given));
    assert_eq!(
        pull("r.example/a:1").await.unwrap().digest,
        digest_of(&disk(8, 1))
    );
    assert!(upstream.seen().is_empty());
    assert_eq!(
        pull("r.example/b:1").await.unwrap().digest,
        digest_of(&disk(8, 2))
    );
    // Only the registry receives the credentials; the mirror receives the registry's name (`ns`).
    assert!(
        mirror
            .seen()
            .iter()
            .all(|s| s.header(header::AUTHORIZATION).is_none())
    );
    assert_eq!(mirror.seen()[0].query.as_deref(), Some("ns=r.example"));
    assert!(
        upstream
            .seen()
            .iter()
            .any(|s| s.header(header::AUTHORIZATION).is_some())
    );
}

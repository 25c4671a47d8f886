//! Images of one tenant for another one, who knows their digests.
//!
//! Invariant: who has not brought an image is served by its server alone, and by it once.
//! Failure: none expected.

use super::registries::{artifact, registry};
use super::*;

const CHALLENGE: &str = "Basic realm=\"r\"";

fn credentials(password: &str) -> Credentials {
    Credentials {
        username: "me".into(),
        password: password.into(),
        ..Credentials::default()
    }
}

/// A registry, and an image in it that came by a password; its disk and the digest of its manifest.
async fn private() -> (TestEnvironment, Vec<u8>, Digest) {
    let t = registry().await;
    let disk = disk(64, 1);
    let digest = artifact(&t.server, "a", "1", &disk);
    t.server.script([Step::Challenge(CHALLENGE.into())]);
    let given = credentials("hush");
    let name = t.server.name("a:1");
    t.images.pull_with(&name, Some(&given)).await.unwrap();
    (t, disk, digest)
}

/// The manifest was requested, and of the blob its first byte.
fn assert_only_a_byte(asked: &[server::Seen]) {
    let [manifest, blob] = asked else {
        panic!("{asked:?}");
    };
    assert!(manifest.path.contains("/manifests/"), "{manifest:?}");
    assert!(blob.path.contains("/blobs/"), "{blob:?}");
    assert_eq!(blob.header(http::header::RANGE), Some("bytes=0-0"));
}

/// A second registry, which an attacker may run.
async fn stranger(t: &TestEnvironment) -> Server {
    let server = Server::start().await;
    let dir = t.settings.registries_dir.join(&server.authority);
    std::fs::create_dir_all(dir).unwrap();
    server
}

#[tokio::test]
async fn a_private_image_is_for_the_credentials_that_brought_it_also_after_a_restart() {
    let (t, _, digest) = private().await;
    let t = t.reopened().await;
    let name = format!("{}@{digest}", t.server.name("a"));
    let before = t.server.seen().len();
    let given = credentials("hush");
    t.images.pull_with(&name, Some(&given)).await.unwrap();
    assert_eq!(t.server.seen().len(), before, "no request");

    for (others, refusals) in [(None, 1), (Some(credentials("wrong")), 2)] {
        let challenge = Step::Challenge(CHALLENGE.into());
        t.server.script(std::iter::repeat_n(challenge, refusals));
        let refused = t.images.pull_with(&name, others.as_ref()).await;
        assert!(
            matches!(refused, Err(Error::Refused { code: 401, .. })),
            "{refused:?}"
        );
    }
    assert_eq!(t.server.seen().len(), before + 3);
}

#[tokio::test]
async fn a_digest_under_a_strangers_name_leads_to_his_server() {
    let (t, disk, digest) = private().await;
    let other = stranger(&t).await;
    for digest in [digest_of(&disk), digest] {
        let name = format!("{}@{digest}", other.name("x"));
        let refused = t.images.pull(&name).await;
        assert!(
            matches!(refused, Err(Error::NotFound { .. })),
            "{refused:?}"
        );
        assert_eq!(t.images.find(&name), None);
    }
    assert_eq!(other.seen().len(), 2);
}

#[tokio::test]
async fn a_manifest_that_names_the_blob_of_another_host_brings_it_from_its_own_host() {
    let (t, disk, _) = private().await;
    let other = stranger(&t).await;
    let digest = artifact(&other, "x", "1", &disk);
    let path = format!("v2/x/blobs/{}", digest_of(&disk));
    // The server names a blob that it does not have.
    other.forget(&path);
    for version in [":1".to_owned(), format!("@{digest}")] {
        let refused = t
            .images
            .pull(&format!("{}{version}", other.name("x")))
            .await;
        assert!(
            matches!(refused, Err(Error::NotFound { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(t.images.list().len(), 1);
    assert_eq!(t.images.list()[0].digests.len(), 1);

    // Who has the content may have it: it is the same image.
    other.offer(&path, &disk, "1");
    let pulled = t.images.pull(&other.name("x:1")).await.unwrap();
    assert_eq!(pulled.digest, digest_of(&disk));
    assert_eq!(t.data().len(), 1);
}

#[tokio::test]
async fn an_image_that_came_without_credentials_is_for_everyone() {
    let (t, _, digest) = private().await;
    let name = format!("{}@{digest}", t.server.name("a"));
    // The server has opened it meanwhile: of the blob it sends the first byte.
    let before = t.server.seen().len();
    t.images.pull(&name).await.unwrap();
    assert_only_a_byte(&t.server.seen().split_off(before));
    let before = t.server.seen().len();
    for given in [None, Some(credentials("of another tenant"))] {
        t.images.pull_with(&name, given.as_ref()).await.unwrap();
    }
    assert_eq!(t.server.seen().len(), before, "no request");
}

#[tokio::test]
async fn of_an_image_of_an_earlier_version_its_server_is_asked_once_and_sends_no_blob() {
    let t = registry().await;
    let disk = disk(64, 2);
    let digest = artifact(&t.server, "a", "1", &disk);
    t.images.pull(&t.server.name("a:1")).await.unwrap();
    // As an earlier version has recorded it.
    let key = digest_of(format!("blob {}", digest_of(&disk)).as_bytes()).hex();
    let age = move |tables: &rusqlite::Transaction<'_>| {
        tables.execute("DELETE FROM image_access", [])?;
        tables.execute("UPDATE image_sources SET source = ?1", [key])
    };
    assert_eq!(t.db.write(age).await.unwrap(), 1);
    let t = t.reopened().await;

    // Not for a stranger who names it.
    let other = stranger(&t).await;
    artifact(&other, "x", "1", &disk);
    other.forget(&format!("v2/x/blobs/{}", digest_of(&disk)));
    let refused = t.images.pull(&other.name("x:1")).await;
    assert!(
        matches!(refused, Err(Error::NotFound { .. })),
        "{refused:?}"
    );

    let before = t.server.seen().len();
    let name = format!("{}@{digest}", t.server.name("a"));
    for _ in 0..2 {
        t.images.pull(&name).await.unwrap();
    }
    assert_only_a_byte(&t.server.seen().split_off(before));
    let t = t.reopened().await;
    t.images.pull(&t.server.name("a:1")).await.unwrap();
    let asked = t.server.seen().split_off(before + 2);
    assert!(
        asked.iter().all(|seen| seen.path.contains("/manifests/")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_blob_of_another_repository_is_not_for_a_manifest_that_names_it() {
    let (t, disk, _) = private().await;
    artifact(&t.server, "b", "1", &disk);
    // As in a registry that does not look for what a manifest names.
    t.server.forget(&format!("v2/b/blobs/{}", digest_of(&disk)));
    let refused = t.images.pull(&t.server.name("b:1")).await;
    assert!(
        matches!(refused, Err(Error::NotFound { .. })),
        "{refused:?}"
    );
    assert_eq!(t.images.find(&t.server.name("b:1")), None);
}

#[tokio::test]
async fn an_image_of_a_signed_url_is_for_those_who_have_the_url() {
    let t = TestEnvironment::new().await;
    let bytes = disk(8, 4);
    t.server.offer("a.img", &bytes, "1");
    let url = format!("http://{}?signature=hush", t.server.name("a.img"));
    let name = podspec::url_image_name(&url);
    let locator = Locator::new(&name, Some(&url));
    t.images.pull(locator).await.unwrap();
    assert!(t.images.is_usable(locator));
    let before = t.server.seen().len();
    let by_digest = format!("{name}@{}", digest_of(&bytes));
    let pulled = t.images.pull(Locator::new(&by_digest, Some(&url))).await;
    assert_eq!(pulled.unwrap().digest, digest_of(&bytes));
    assert_eq!(t.server.seen().len(), before, "no request");
    let stolen = format!("{}@{}", t.server.name("x"), digest_of(&bytes));
    let refused = t.images.pull(&stolen).await;
    assert!(
        matches!(refused, Err(Error::NotFound { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn an_uploaded_image_is_not_for_a_digest_under_another_name() {
    let t = TestEnvironment::new().await;
    let bytes = disk(8, 3);
    let name = "vmlet.dev/upload.invalid/default/web:1";
    let size = bytes.len() as u64;
    let upload = t.images.upload(name, size, digest_of(&bytes)).await;
    let Upload::Missing(receiver) = upload.unwrap() else {
        panic!("it is here");
    };
    receiver.append(bytes.clone()).await.unwrap();
    receiver.finish().await.unwrap();
    let stolen = format!("{}@{}", t.server.name("x"), digest_of(&bytes));
    let refused = t.images.pull(&stolen).await;
    assert!(
        matches!(refused, Err(Error::NotFound { .. })),
        "{refused:?}"
    );
    // Without a server, as before.
    assert_eq!(t.images.pull(name).await.unwrap().digest, digest_of(&bytes));
}

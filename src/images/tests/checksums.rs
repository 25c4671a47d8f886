//! Files on web servers that a file of checksums is beside: which version it names, and what is pulled by that.
//!
//! Invariant: a name with a checksum never leads to other bytes.
//! Failure: what the file of checksums lacks is said in words; nothing is kept.

use podspec::url_image_name;

use super::*;

const LIST: &str = "pool/SUMS";
const FILE: &str = "pool/disk.img";

fn sha256_of(bytes: &[u8]) -> String {
    digest_of(bytes).to_string()
}

fn sha512_of(bytes: &[u8]) -> String {
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    Sha512::of_file(&file).unwrap().to_string()
}

/// The line of a file with this checksum.
fn line(checksum: &str) -> String {
    let (_, digits) = checksum.split_once(':').unwrap();
    format!("{}  other.img\n{digits} *disk.img\n", "0".repeat(64))
}

impl TestEnvironment {
    /// Publishes a disk, and the file of checksums that has its digest.
    fn publishes(&self, bytes: &[u8], checksum: &str, version: &str) {
        self.server.offer(FILE, bytes, version);
        self.server.offer(LIST, line(checksum).as_bytes(), version);
    }

    fn url_of(&self, path: &str) -> String {
        format!("http://{}", self.server.name(path))
    }

    /// The version that the publisher has now.
    async fn checked(&self) -> Result<String> {
        let url = self.url_of(FILE);
        let list = self.url_of(LIST);
        let name = url_image_name(&url);
        let locator = Locator::new(&name, Some(&url)).with_checksums(Some(&list));
        let found = self.images.inspect(locator).await?;
        assert_eq!(found.format, Some(Format::Raw));
        Ok(found.digest.unwrap().to_string())
    }

    /// Pulls a version of what another environment publishes.
    async fn pulls_version(&self, publisher: &Self, version: &str) -> Result<Image> {
        let url = publisher.url_of(FILE);
        let name = format!("{}@{version}", url_image_name(&url));
        self.images.pull(Locator::new(&name, Some(&url))).await
    }
}

#[tokio::test]
async fn a_version_is_used_where_it_is_and_refused_where_the_server_has_another() {
    let both: [fn(&[u8]) -> String; 2] = [sha256_of, sha512_of];
    for digest in both {
        let env = TestEnvironment::new().await;
        let other = TestEnvironment::new().await;
        let old = disk(4, 1);
        let new = disk(4, 2);
        env.publishes(&old, &digest(&old), "1");
        let first = env.checked().await.unwrap();
        assert_eq!(first, digest(&old));
        assert!(env.data().is_empty() && env.partials().is_empty());
        let image = env.pulls_version(&env, &first).await.unwrap();
        assert_eq!(image.digest, digest_of(&old));

        env.publishes(&new, &digest(&new), "2");
        let second = env.checked().await.unwrap();
        assert_eq!(second, digest(&new));
        // Who has the first version needs no server for it.
        let before = env.server.seen().len();
        assert_eq!(env.pulls_version(&env, &first).await.unwrap(), image);
        assert_eq!(env.server.seen().len(), before);
        let gone = other.pulls_version(&env, &first).await.unwrap_err();
        let place = env.server.name(FILE);
        let words = format!("digest mismatch: {place} has {second}, expected {first}");
        assert_eq!(gone.to_string(), words);
        assert!(other.data().is_empty() && other.partials().is_empty());
        for node in [&env, &other] {
            let pulled = node.pulls_version(&env, &second).await.unwrap();
            assert_eq!(pulled.digest, digest_of(&new));
        }
        assert_eq!(env.images.list().len(), 2);
        let env = env.reopened().await;
        let before = env.server.seen().len();
        let known = env.pulls_version(&env, &second).await.unwrap();
        assert!(known.digests.iter().any(|name| name.ends_with(&second)));
        assert_eq!(env.server.seen().len(), before, "known after a restart");
    }
}

#[tokio::test]
async fn a_removed_file_that_stays_for_its_disks_is_known_by_its_checksum_until_they_go() {
    let both: [fn(&[u8]) -> String; 2] = [sha256_of, sha512_of];
    for digest in both {
        let env = TestEnvironment::new().await;
        let old = disk(4, 1);
        env.publishes(&old, &digest(&old), "1");
        let version = env.checked().await.unwrap();
        let image = env.pulls_version(&env, &version).await.unwrap();
        let id = image.digest.to_string();
        env.images.pin("disk", &id).await.unwrap();
        env.publishes(&disk(4, 2), &digest(&disk(4, 2)), "2");
        let before = env.server.seen().len();
        for _ in 0..2 {
            env.images.remove(&id).await.unwrap();
            assert!(env.images.list().is_empty());
            let name = format!("{}@{version}", url_image_name(&env.url_of(FILE)));
            assert_eq!(env.images.find(&name), None);
            let again = env.pulls_version(&env, &version).await.unwrap();
            assert_eq!(again.digest, image.digest);
            assert!(again.digests.contains(&name), "{again:?}");
        }
        env.images.remove(&id).await.unwrap();
        let env = env.reopened().await;
        let again = env.pulls_version(&env, &version).await.unwrap();
        assert_eq!(again.path, image.path);
        assert_eq!(env.server.seen().len(), before, "the file is here");

        env.images.remove(&id).await.unwrap();
        env.images.unpin("disk").await.unwrap();
        assert!(!image.path.exists());
        let gone = env.pulls_version(&env, &version).await.unwrap_err();
        assert!(matches!(gone, Error::Digest { .. }), "{gone}");
    }
}

#[tokio::test]
async fn what_is_here_by_another_name_is_compared_with_a_sha512() {
    let env = TestEnvironment::new().await;
    let bytes = disk(4, 1);
    let sum = sha512_of(&bytes);
    env.publishes(&bytes, &sum, "1");
    let url = env.url_of(FILE);
    let name = url_image_name(&url);
    let image = env
        .images
        .pull(Locator::new(&name, Some(&url)))
        .await
        .unwrap();
    let wrong = sha512_of(b"other");
    let refused = env.pulls_version(&env, &wrong).await.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
    let again = env.pulls_version(&env, &sum).await.unwrap();
    assert_eq!(again.digest, image.digest);
    assert!(
        again.digests.contains(&format!("{name}@{sum}")),
        "{again:?}"
    );
    assert_eq!(env.images.list().len(), 1);
}

#[tokio::test]
async fn a_pull_by_sha512_does_not_trust_the_download_of_another() {
    let env = TestEnvironment::new().await;
    let bytes = disk(400, 1);
    env.publishes(&bytes, &sha512_of(&bytes), "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let url = env.url_of(FILE);
    let name = url_image_name(&url);
    let locator = Locator::new(&name, Some(&url));
    let follower = async {
        until(|| {
            env.images
                .progress(locator)
                .is_some_and(|p| p.received == 1_000)
        })
        .await;
        let wrong = sha512_of(b"other");
        let pulled = env.pulls_version(&env, &wrong);
        let released = async {
            settle().await;
            env.server.go_on();
        };
        let (pulled, ()) = tokio::join!(pulled, released);
        pulled
    };
    let (leader, follower) = tokio::join!(env.images.pull(locator), follower);
    leader.unwrap();
    let refused = follower.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
}

#[tokio::test]
async fn a_file_of_checksums_that_says_nothing_is_refused_in_words() {
    let env = TestEnvironment::new().await;
    let place = env.server.name(LIST);
    env.server.offer(FILE, &disk(4, 1), "1");
    let missing = env.checked().await.unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    env.server.offer(LIST, b"<html>Not here</html>\n", "1");
    assert_eq!(
        env.checked().await.unwrap_err().to_string(),
        format!(
            "unusable checksums from {place}: it has no line with a SHA-256 or SHA-512 for disk.img"
        )
    );
    let both = [b"a", b"b"].map(|bytes| line(&sha256_of(bytes)));
    env.server.offer(LIST, both.concat().as_bytes(), "2");
    assert_eq!(
        env.checked().await.unwrap_err().to_string(),
        format!(
            "unusable checksums from {place}: it has two lines with different checksums for disk.img"
        )
    );
    env.server.offer(LIST, &vec![b'0'; (1 << 20) + 1], "3");
    let long = env.checked().await.unwrap_err();
    assert!(matches!(long, Error::Reply { .. }), "{long}");
    env.server
        .script([Step::Redirect("http://169.254.169.254/SUMS".to_owned())]);
    let elsewhere = env.checked().await.unwrap_err();
    assert!(matches!(elsewhere, Error::Address { .. }), "{elsewhere}");
    // The image itself is gone.
    env.publishes(&disk(4, 1), &sha256_of(b"a"), "4");
    env.server.forget(FILE);
    let gone = env.checked().await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
}

#[tokio::test]
async fn rules_of_the_node_are_for_the_file_of_checksums_too() {
    let env = TestEnvironment::new().await;
    let bytes = disk(4, 1);
    env.publishes(&bytes, &sha256_of(&bytes), "1");
    let open = async |url: String| {
        let rule = Translation {
            pattern: Pattern::Prefix("files.example/mirrored".into()),
            url,
        };
        let settings = Settings {
            translations: vec![rule],
            ..env.settings.clone()
        };
        Images::open(env.db.clone(), settings).await.unwrap()
    };
    let url = "https://files.example/mirrored/disk.img";
    let list = "https://files.example/mirrored/SUMS";
    let name = url_image_name(url);
    let locator = Locator::new(&name, Some(url)).with_checksums(Some(list));
    let images = open(env.server.name("pool")).await;
    let found = images.inspect(locator).await.unwrap();
    assert_eq!(found.digest, Some(digest_of(&bytes).into()));
    let images = open("oci://registry.example/mirrored".to_owned()).await;
    let refused = images.inspect(locator).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidName { .. }), "{refused}");
    let version = format!("{name}@{}", sha512_of(&bytes));
    let refused = images
        .pull(Locator::new(&version, Some(url)))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("not sha256"), "{refused}");
}

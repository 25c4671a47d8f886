//! Images that are given by a URL under a name that is made of it.
//!
//! Invariant: exactly that URL is fetched, unless a rule of the node has another for its host and
//! path.
//! Failure: what does not go together is refused before anything is asked.

use http::header;
use podspec::url_image_name;

use super::*;

const FILE: &str = "Pool/Debian-12.QCOW2";
const QUERY: &str = "Version=12&k=hush";

impl TestEnvironment {
    /// A URL of a file here that no image's name could hold, and the name that is made of it.
    fn url(&self) -> (String, String) {
        let url = format!("http://{}?{QUERY}", self.server.name(FILE));
        (url_image_name(&url), url)
    }
}

#[tokio::test]
async fn a_url_is_fetched_as_it_is_and_its_image_has_the_name() {
    // The URL's own scheme counts.
    let env = TestEnvironment::with(|s| s.protocol = Protocol::Https).await;
    let (name, url) = env.url();
    let bytes = disk(4, 1);
    env.server.offer(FILE, &bytes, "1");
    let locator = Locator::new(&name, Some(&url));
    let found = env.images.inspect(locator).await.unwrap();
    assert_eq!(found.file_bytes, 2048);
    let image = env.images.pull(locator).await.unwrap();
    assert_eq!(image.digest, digest_of(&bytes));
    assert_eq!(image.tags, [format!("{name}:latest")]);
    assert_eq!(image.digests, [format!("{name}@{}", image.digest)]);
    assert_eq!(env.images.find(&name), Some(image.clone()));
    let pinned = format!("{name}@{}", image.digest);
    let again = env.images.pull(Locator::new(&pinned, Some(&url))).await;
    assert_eq!(again.unwrap(), image);
    let seen = env.server.seen();
    assert_eq!(seen.len(), 2);
    for request in seen {
        assert_eq!(request.path, format!("/{FILE}"));
        assert_eq!(request.query.as_deref(), Some(QUERY));
    }
}

#[tokio::test]
async fn a_name_without_its_url_is_refused_before_a_request() {
    let env = TestEnvironment::new().await;
    let (name, url) = env.url();
    env.server.offer(FILE, &disk(4, 1), "1");
    let plain = env.server.name(FILE);
    let secret = url.replace("http://", "http://me:hush@");
    let of_secret = url_image_name(&secret);
    let other = url.replace("12", "13");
    for locator in [
        Locator::new(&name, None),
        Locator::new(&name, Some(&other)),
        Locator::new(&of_secret, Some(&secret)),
        Locator::new(&plain, Some(&url)),
    ] {
        let pulled = env.images.pull(locator).await.unwrap_err();
        let inspected = env.images.inspect(locator).await.unwrap_err();
        for error in [pulled, inspected] {
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        }
        assert_eq!(env.images.progress(locator), None);
    }
    assert!(env.server.seen().is_empty());
}

#[tokio::test]
async fn a_rule_for_host_and_path_is_for_the_url() {
    let env = TestEnvironment::new().await;
    let rule = Translation {
        pattern: Pattern::Prefix("files.example/Pool".into()),
        url: env.server.name("mirror"),
    };
    let settings = Settings {
        translations: vec![rule],
        ..env.settings.clone()
    };
    let images = Images::open(env.db.clone(), settings).await.unwrap();
    env.server.offer("mirror/A.img", &disk(4, 1), "1");
    let url = format!("https://files.example/Pool/A.img?{QUERY}");
    let name = url_image_name(&url);
    images.pull(Locator::new(&name, Some(&url))).await.unwrap();
    let seen = env.server.seen();
    assert_eq!(seen[0].path, "/mirror/A.img");
    assert_eq!(seen[0].query, None);
}

#[tokio::test]
async fn errors_and_files_hold_nothing_of_the_query() {
    let env = TestEnvironment::new().await;
    let (name, url) = env.url();
    let locator = Locator::new(&name, Some(&url));
    env.server.offer(FILE, &disk(400, 1), "1");
    env.server
        .script([Step::CutAfter(1_000), Step::Status(403)]);
    let error = env.images.pull(locator).await.unwrap_err();
    let place = env.server.name(FILE);
    let words = format!("refused: {place} answered 403 Forbidden");
    assert_eq!(error.to_string(), words);
    assert_eq!(env.partials().len(), 2);
    for file in env.partials() {
        let content = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        assert!(!content.contains("hush"), "{}", file.display());
    }
    // The next pull continues where this one was left.
    env.images.pull(locator).await.unwrap();
    let range = env.server.seen()[2]
        .header(header::RANGE)
        .map(str::to_owned);
    assert_eq!(range.as_deref(), Some("bytes=1000-"));
}

#[tokio::test]
async fn a_pull_of_a_url_has_progress() {
    let env = TestEnvironment::new().await;
    let (name, url) = env.url();
    env.server.offer(FILE, &disk(400, 1), "1");
    env.server.script([Step::HoldAfter(1_000)]);
    let locator = Locator::new(&name, Some(&url));
    let expected = Some(Progress {
        received: 1_000,
        total: Some(204_800),
    });
    let arriving = async {
        until(|| env.images.progress(locator) == expected).await;
        env.server.go_on();
    };
    let (pulled, ()) = tokio::join!(env.images.pull(locator), arriving);
    pulled.unwrap();
    assert_eq!(env.images.progress(locator), None);
}

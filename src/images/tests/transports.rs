//! Transport profiles, each field against a real server.
//!
//! Invariant: what a profile changes is changed for its rules alone.
//! Failure: each refusal names what the server or the proxy did.

use http::header;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::*;

mod secrets;

/// An authority of our own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: rustls::pki_types::CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self {
            pem: cert.pem(),
            der: cert.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for a name and its key, in PEM.
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server with a certificate for a name; with `clients`, for those alone that show one.
    async fn server(&self, name: &str, clients: Option<&Self>) -> Server {
        let (cert, key) = self.issue(name);
        let builder = match clients {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                ServerConfig::builder().with_client_cert_verifier(verifier.unwrap())
            }
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = builder.with_single_cert(vec![cert.der().clone()], key);
        let server = Server::start_tls(config.unwrap()).await;
        server.offer("a.img", &disk(4, 1), "1");
        server
    }
}

/// A store with one file of translations.
struct Node {
    images: Images,
    metrics: Arc<Metrics>,
    _scratch: TempDir,
}

/// A store with the rule that `disk` is at a URL by a transport, in JSON, which is YAML.
async fn node(url: &str, transport: serde_json::Value) -> Node {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("translations");
    std::fs::create_dir(&dir).unwrap();
    let file = serde_json::json!({
        "translations": [
            { "name": "disk", "url": url, "transport": "t" },
            { "name": "plain", "url": url },
        ],
        "transports": { "t": transport },
    });
    std::fs::write(dir.join("10.yaml"), file.to_string()).unwrap();
    let settings = Settings {
        translations_dir: dir,
        ..settings(scratch.path())
    };
    let metrics = Arc::clone(&settings.metrics);
    let images = Images::open(Db::in_memory().unwrap(), settings).await;
    Node {
        images: images.unwrap(),
        metrics,
        _scratch: scratch,
    }
}

impl Node {
    async fn error(&self, name: &str) -> Error {
        self.images.pull(name).await.unwrap_err()
    }

    /// Whether the file was refused.
    fn is_refused(&self) -> bool {
        let page = self.metrics.text(&crate::metrics::Census::default());
        page.contains("vmlet_image_translation_files{state=\"refused\"} 1")
    }
}

fn certificates(entries: &[(&str, Option<&str>)]) -> serde_json::Value {
    let entries = entries
        .iter()
        .map(|(cert, key)| serde_json::json!({ "cert": cert, "key": key }));
    serde_json::json!({ "tls": { "certificates": entries.collect::<Vec<_>>() } })
}

#[tokio::test]
async fn an_authority_of_a_profile_is_trusted_for_its_rules_alone() {
    let authority = Authority::new();
    let server = authority.server("localhost", None).await;
    let url = format!("https://{}", server.name("a.img"));
    let node = node(&url, certificates(&[(&authority.pem, None)])).await;
    let refused = node.error("plain").await;
    assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");
    node.images.pull("disk").await.unwrap();
    node.images.inspect("disk").await.unwrap();
    // What came by another transport is not taken for what this one would bring.
    let refused = node.error("plain").await;
    assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_client_certificate_is_shown_with_the_key_beside_or_below_it() {
    let authority = Authority::new();
    let clients = Authority::new();
    let server = authority.server("localhost", Some(&clients)).await;
    let url = format!("https://{}", server.name("a.img"));
    let (cert, key) = clients.issue("node");
    let cert = cert.pem();
    let key = key.serialize_pem();
    let both = format!("{cert}{key}");
    let none = node(&url, certificates(&[(&authority.pem, None)])).await;
    let refused = none.error("disk").await;
    assert!(matches!(refused, Error::Fetch { .. }), "{refused}");
    for client in [(cert.as_str(), Some(key.as_str())), (both.as_str(), None)] {
        let node = node(&url, certificates(&[(&authority.pem, None), client])).await;
        node.images.pull("disk").await.unwrap();
    }
}

#[tokio::test]
async fn the_name_in_a_servers_certificate_may_be_another_than_the_urls_host() {
    let authority = Authority::new();
    let server = authority.server("images.corp", None).await;
    let url = format!("https://{}", server.name("a.img"));
    let mut profile = certificates(&[(&authority.pem, None)]);
    let host = node(&url, profile.clone()).await.error("disk").await;
    assert!(matches!(host, Error::Untrusted { .. }), "{host}");
    profile["tls"]["serverName"] = "other.corp".into();
    let other = node(&url, profile.clone()).await.error("disk").await;
    assert!(matches!(other, Error::Untrusted { .. }), "{other}");
    assert!(server.seen().is_empty());
    profile["tls"]["serverName"] = "images.corp".into();
    node(&url, profile).await.images.pull("disk").await.unwrap();
    // The authority still counts.
    let stranger = serde_json::json!({ "tls": { "serverName": "images.corp" } });
    let stranger = node(&url, stranger).await.error("disk").await;
    assert!(matches!(stranger, Error::Untrusted { .. }), "{stranger}");
}

#[tokio::test]
async fn a_profile_may_accept_any_certificate() {
    let server = Authority::new().server("images.corp", None).await;
    let url = format!("https://{}", server.name("a.img"));
    let profile = serde_json::json!({ "tls": { "insecure": true } });
    let node = node(&url, profile).await;
    node.images.pull("disk").await.unwrap();
    let refused = node.error("plain").await;
    assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_refused_when_the_file_is_read() {
    let authority = Authority::new();
    let (cert, key) = authority.issue("node");
    let (_, other) = authority.issue("node");
    let cert = cert.pem();
    let key = key.serialize_pem();
    let other = other.serialize_pem();
    let own = (cert.as_str(), Some(key.as_str()));
    for entries in [
        &[(cert.as_str(), None)][..],
        &[(authority.pem.as_str(), Some(key.as_str()))],
        &[(cert.as_str(), Some(other.as_str()))],
        &[(cert.as_str(), Some("no key"))],
        &[own, own],
    ] {
        let node = node("http://localhost/a", certificates(entries)).await;
        assert!(node.is_refused(), "{entries:?}");
    }
    let node = node("http://localhost/a", certificates(&[own])).await;
    assert!(!node.is_refused());
}

#[tokio::test]
async fn as_many_redirects_are_followed_as_a_profile_allows() {
    for (profile, most) in [(Some(0), 0), (Some(2), 2), (Some(12), 12), (None, 10)] {
        let server = Server::start().await;
        server.offer("a.img", &disk(4, 1), "1");
        let url = format!("http://{}", server.name("a.img"));
        let node = node(&url, serde_json::json!({ "maxRedirects": profile })).await;
        let to_itself = |count| std::iter::repeat_n(Step::Redirect(url.clone()), count);
        server.script(to_itself(most));
        node.images.pull("disk").await.unwrap();
        assert_eq!(server.seen().len(), most + 1);
        server.script(to_itself(most + 1));
        let refused = node.error("disk").await;
        assert!(matches!(refused, Error::Redirect { .. }), "{refused}");
        let text = crate::one_line(&refused);
        assert!(
            text.contains(&format!("more than {most} redirects")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_redirect_of_a_profile_goes_to_no_refused_address() {
    let server = Server::start().await;
    let other = Server::start_at("127.0.0.2").await;
    other.offer("a.img", &disk(4, 1), "1");
    let url = format!("http://{}", server.name("a.img"));
    let node = node(&url, serde_json::json!({ "maxRedirects": 3 })).await;
    server.script([Step::Redirect(format!("http://{}", other.name("a.img")))]);
    let refused = node.error("disk").await;
    assert!(matches!(refused, Error::Address { .. }), "{refused}");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn an_address_is_checked_with_every_profile() {
    let server = Server::start_at("127.0.0.2").await;
    let url = format!("http://{}", server.name("a.img"));
    for profile in [
        serde_json::json!({ "timeout": 60_000 }),
        serde_json::json!({ "proxy": url }),
        serde_json::json!({ "tls": { "insecure": true } }),
    ] {
        let refused = node(&url, profile).await.error("disk").await;
        assert!(matches!(refused, Error::Address { .. }), "{refused}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_proxy_of_a_profile_gets_the_requests_of_its_rules() {
    let proxy = Server::start().await;
    proxy.offer("a.img", &disk(4, 1), "1");
    let address = proxy.authority.replace("localhost", "127.0.0.1");
    // No server has this name: only the proxy can answer.
    let url = "http://images.invalid/a.img";
    let profile = serde_json::json!({ "proxy": format!("http://me:word@{address}") });
    let node = node(url, profile).await;
    node.images.pull("disk").await.unwrap();
    let [seen] = proxy.seen().try_into().unwrap();
    assert_eq!(seen.header(header::HOST), Some("images.invalid"));
    let credentials = seen.header(header::PROXY_AUTHORIZATION).unwrap();
    assert_eq!(credentials, "Basic bWU6d29yZA==");
    assert!(matches!(
        node.error("plain").await,
        Error::Fetch { .. } | Error::Address { .. }
    ));
    assert_eq!(proxy.seen().len(), 1);
}

#[tokio::test]
async fn a_download_ends_at_the_timeout_of_its_profile_and_is_continued() {
    let server = Server::start().await;
    let bytes = disk(4, 1);
    server.offer("a.img", &bytes, "1");
    let url = format!("http://{}", server.name("a.img"));
    let node = node(&url, serde_json::json!({ "timeout": 30_000 })).await;
    server.script([Step::HoldAfter(700)]);
    let pull = {
        let images = node.images.clone();
        tokio::spawn(async move { images.pull("disk").await })
    };
    until(|| {
        let progress = node.images.progress("disk");
        progress.is_some_and(|p| p.received == 700)
    })
    .await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    let error = tokio::time::timeout(TIMEOUT, pull).await.unwrap().unwrap();
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Overdue { ms: 30_000, .. }),
        "{error}"
    );
    assert_eq!(server.seen().len(), 1, "it is not repeated");
    let image = node.images.pull("disk").await.unwrap();
    assert_eq!(image.digest, digest_of(&bytes));
    let range = server.seen()[1].header(header::RANGE).map(str::to_owned);
    assert_eq!(range.as_deref(), Some("bytes=700-"));
}

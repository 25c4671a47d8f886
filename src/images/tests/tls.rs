//! HTTPS with authorities of our own.
//!
//! Invariant: a server is trusted only through an authority that the settings or the system name.
//! Failure: an untrusted server is not asked twice.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

/// A server for `localhost`, and the PEM of the authority that signed its certificate.
async fn server() -> (Server, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_cert = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (Server::start_tls(config).await, authority_cert.pem())
}

async fn store(scratch: &Path, authority: Option<&str>) -> Images {
    let ca_file = authority.map(|pem| {
        let path = scratch.join("ca.pem");
        std::fs::write(&path, pem).unwrap();
        path
    });
    let settings = Settings {
        protocol: Protocol::Https,
        ca_file,
        ..settings(scratch)
    };
    Images::open(Db::in_memory().unwrap(), settings)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_authority_of_the_settings_is_trusted() {
    let (server, authority) = server().await;
    let scratch = tempfile::tempdir().unwrap();
    let images = store(scratch.path(), Some(&authority)).await;
    server.offer("a.img", &disk(4, 1), "1");
    images.pull(&server.name("a.img")).await.unwrap();
}

#[tokio::test]
async fn an_unknown_authority_is_refused_at_once() {
    let (server, _) = server().await;
    let scratch = tempfile::tempdir().unwrap();
    let images = Images::open(
        Db::in_memory().unwrap(),
        Settings {
            protocol: Protocol::Https,
            retry_wait: TIMEOUT * 100,
            ..settings(scratch.path())
        },
    );
    let images = images.await.unwrap();
    server.offer("a.img", &disk(4, 1), "1");
    let name = server.name("a.img");
    let pull = tokio::time::timeout(TIMEOUT, images.pull(&name));
    let error = pull.await.expect("no retries").unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_redirect_from_https_to_http_is_refused() {
    let (server, authority) = server().await;
    let plain = Server::start().await;
    plain.offer("a.img", &disk(4, 1), "1");
    let scratch = tempfile::tempdir().unwrap();
    let images = store(scratch.path(), Some(&authority)).await;
    server.script([Step::Redirect(format!("http://{}", plain.name("a.img")))]);
    let error = images.pull(&server.name("a.img")).await.unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error}");
    assert!(plain.seen().is_empty());
}

#[tokio::test]
async fn an_unusable_file_of_authorities_stops_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = Settings {
        ca_file: Some(scratch.path().join("none.pem")),
        ..settings(scratch.path())
    };
    let refused = Images::open(Db::in_memory().unwrap(), settings).await;
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
}

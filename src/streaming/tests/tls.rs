//! Sessions over TLS.
//!
//! Invariant: the client trusts the test's certificate only.
//! Failure: the assertion shows what came.

use futures_util::StreamExt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::super::tls;
use super::*;

struct Keys {
    scratch: tempfile::TempDir,
    certificate: rcgen::Certificate,
}

impl Keys {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(scratch.path().join("cert"), cert.pem()).unwrap();
        std::fs::write(scratch.path().join("key"), signing_key.serialize_pem()).unwrap();
        Self {
            scratch,
            certificate: cert,
        }
    }

    /// Of a client that trusts this certificate only.
    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// Whether a server shows this certificate.
    async fn is_shown_by(&self, server: &Server) -> bool {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connecting = self.connector().connect(name, server.connect().await);
        soon("a handshake", connecting).await.is_ok()
    }

    fn files(&self, certificate: &str, key: &str) -> tls::Files {
        tls::Files {
            certificate: self.scratch.path().join(certificate),
            key: self.scratch.path().join(key),
        }
    }
}

#[tokio::test]
async fn a_session_runs_over_tls() {
    let keys = Keys::new();
    let server = Server::with(Some(&keys.files("cert", "key"))).await;
    let connector = keys.connector();
    let (console, target) = server.console(Wanted {
        stdout: true,
        ..Wanted::default()
    });
    let url = server.url(&server.machine, target.clone());
    let (scheme, rest) = url.split_once(':').unwrap();
    assert_eq!(scheme, "https");
    let request = format!("wss:{rest}").into_client_request().unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let transport = connector
        .connect(name, server.connect().await)
        .await
        .unwrap();
    let (mut client, _) = tokio_tungstenite::client_async(request, transport)
        .await
        .unwrap();
    let mut guest = console.accept().await.unwrap().0;
    guest.write_all(b"boot").await.unwrap();
    for expected in [&b"\x01"[..], b"\x01boot"] {
        let message = soon("a message", client.next()).await.unwrap().unwrap();
        assert_eq!(message, Message::Binary(expected.into()));
    }

    // Without TLS there is no answer.
    let mut plain = server.connect().await;
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    // The server may reset the connection.
    soon("the end", plain.read_to_end(&mut answer)).await.ok();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn files_that_do_not_serve_are_named() {
    let keys = Keys::new();
    let other = Keys::new();
    std::fs::copy(other.files("", "key").key, keys.files("", "other").key).unwrap();
    for (certificate, key, expected) in [
        ("none", "key", "none"),
        ("key", "key", "no certificate"),
        ("cert", "cert", "no private key"),
        ("cert", "other", "cert"),
    ] {
        let files = keys.files(certificate, key);
        let refused = Streaming::bind(SocketAddr::from(([127, 0, 0, 1], 0)), Some(&files)).await;
        let text = crate::one_line(&refused.unwrap_err());
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("streaming.tls_cert"), "{text}");
    }
}

#[tokio::test]
async fn a_certificate_that_changes_serves_the_next_session() {
    let keys = Keys::new();
    let next = Keys::new();
    let files = keys.files("cert", "key");
    let server = Server::with(Some(&files)).await;
    assert!(keys.is_shown_by(&server).await);
    // Half of the change: it does not serve, and the old one stays.
    let new = next.files("cert", "key");
    std::fs::copy(&new.certificate, &files.certificate).unwrap();
    assert!(keys.is_shown_by(&server).await);
    std::fs::copy(&new.key, &files.key).unwrap();
    assert!(next.is_shown_by(&server).await);
    assert!(!keys.is_shown_by(&server).await);
    std::fs::remove_file(&files.key).unwrap();
    assert!(next.is_shown_by(&server).await);
}

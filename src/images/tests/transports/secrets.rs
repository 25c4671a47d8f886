//! Certificates of a Secret, for the server of one image.
//!
//! Invariant: real servers with certificates of their own answer.
//! Failure: the assertion shows the refusal.

use super::*;

fn secret(values: &[(&str, &str)]) -> Content {
    let pairs = values.iter();
    let pairs = pairs.map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
    Content(pairs.collect())
}

#[tokio::test]
async fn a_secret_has_authorities_and_a_client_certificate_for_one_image() {
    let authority = Authority::new();
    let clients = Authority::new();
    let server = authority.server("localhost", Some(&clients)).await;
    let url = format!("https://{}?key=hush", server.name("a.img"));
    let node = node(&url, serde_json::json!({})).await;
    let name = podspec::url_image_name(&url);
    let plain = Locator::new(&name, Some(&url));
    let refused = node.images.pull(plain).await.unwrap_err();
    assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");

    let (cert, key) = clients.issue("node");
    let cert = cert.pem();
    let key = key.serialize_pem();
    let only_authority = secret(&[("ca.crt", &authority.pem), ("tls.crt", ""), ("tls.key", "")]);
    let tls = node.images.server_tls(only_authority).await.unwrap();
    let refused = node.images.pull(plain.with_tls(Some(&tls))).await;
    assert!(matches!(refused, Err(Error::Fetch { .. })), "{refused:?}");
    let whole = secret(&[
        ("ca.crt", &authority.pem),
        ("tls.crt", &cert),
        ("tls.key", &key),
    ]);
    let tls = node.images.server_tls(whole.clone()).await.unwrap();
    assert_eq!(tls, node.images.server_tls(whole).await.unwrap());
    node.images
        .inspect(plain.with_tls(Some(&tls)))
        .await
        .unwrap();
    let image = node.images.pull(plain.with_tls(Some(&tls))).await.unwrap();
    // What came by these certificates is nothing to a pull without them, nor to a disk.
    let by_digest = format!("{name}@{}", image.digest);
    for name in [&name, &by_digest] {
        let plain = Locator::new(name, Some(&url));
        let refused = node.images.pull(plain).await.unwrap_err();
        assert!(matches!(refused, Error::Untrusted { .. }), "{refused}");
        assert!(!node.images.is_usable(plain));
    }
    assert!(node.images.is_usable(plain.with_tls(Some(&tls))));
    assert!(!format!("{tls:?} {:?}", plain.with_tls(Some(&tls))).contains("hush"));
}

#[tokio::test]
async fn certificates_that_have_no_use_or_are_none_are_refused_with_the_key_of_the_secret() {
    let authority = Authority::new();
    let node = node("http://localhost/a.img", serde_json::json!({})).await;
    let (cert, key) = authority.issue("node");
    let cert = cert.pem();
    let key = key.serialize_pem();
    let (_, other) = authority.issue("other");
    let other = other.serialize_pem();
    for (values, words) in [
        (&[][..], "none of ca.crt, tls.crt and tls.key"),
        (&[("x", "hush")], "none of ca.crt, tls.crt and tls.key"),
        (&[("tls.crt", &*cert)], "only one of tls.crt and tls.key"),
        (&[("tls.key", &*key)], "only one of tls.crt and tls.key"),
        (&[("ca.crt", "hush")], "ca.crt has no certificate in PEM"),
        (
            &[("ca.crt", &*cert)],
            "ca.crt has a certificate that is no authority",
        ),
        (
            &[("tls.crt", "hush"), ("tls.key", &*key)],
            "tls.crt has no certificate in PEM",
        ),
        (
            &[("tls.crt", &*cert), ("tls.key", "hush")],
            "tls.key has no private key",
        ),
        (&[("tls.crt", &*cert), ("tls.key", &*other)], "not usable"),
    ] {
        let refused = node.images.server_tls(secret(values)).await.unwrap_err();
        assert!(
            refused.contains(words) && !refused.contains("hush"),
            "{refused}"
        );
    }
    let tls = secret(&[("ca.crt", &authority.pem)]);
    let tls = node.images.server_tls(tls).await.unwrap();
    for (name, words) in [
        ("plain", "without TLS"),
        ("docker.io/disk", "is in a registry"),
    ] {
        let registry = (name != "plain").then(|| format!("oci://{name}"));
        let locator = Locator::new(name, registry.as_deref()).with_tls(Some(&tls));
        let refused = node.images.pull(locator).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

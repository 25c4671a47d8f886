//! Files of registries' servers, in containerd's format.
//!
//! Invariant: each test has a directory of its own.
//! Failure: none.

use std::fs;

use rstest::rstest;

use super::*;
use crate::images::Protocol;
use crate::images::reference::Version;

struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        // An error means that the program has installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn with(host: &str, text: &str) -> Self {
        let node = Self::new();
        node.write(host, FILE, text);
        node
    }

    fn write(&self, host: &str, file: &str, text: &str) {
        let dir = self.dir.path().join(host);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file), text).unwrap();
    }

    fn hosts(&self) -> Hosts {
        let live = Live::with_protocol(Protocol::Https);
        Hosts::new(self.dir.path().to_owned(), live)
    }

    fn endpoints(&self, name: &str) -> Result<Vec<Endpoint>> {
        let place = Place::parse(name, &Version::Tag("1".into())).unwrap();
        self.hosts().endpoints(&place, Client::builder)
    }

    fn urls(&self, name: &str) -> Vec<String> {
        let endpoints = self.endpoints(name).unwrap();
        endpoints.iter().map(|e| e.base.to_string()).collect()
    }

    fn reason(&self) -> String {
        let error = self.endpoints("r.example/a").unwrap_err();
        format!("{error}")
    }
}

#[test]
fn a_registry_without_a_file_is_its_own_server() {
    let node = Node::new();
    assert_eq!(
        node.urls("r.example:5000/a"),
        ["https://r.example:5000/v2/"]
    );
    assert_eq!(
        node.urls("docker.io/a"),
        ["https://registry-1.docker.io/v2/"]
    );
    assert!(!node.hosts().knows("r.example"));
}

#[test]
fn mirrors_come_first_in_the_order_of_the_file() {
    let node = Node::with(
        "r.example",
        r#"
        server = "https://up.example"
        [host."https://z.example"]
          capabilities = ["pull", "resolve"]
          [host."https://z.example".header]
            x-key = ["a", "b"]
        [host."http://a.example:5000/prefix"]
          capabilities = ["pull"]
        [host."https://p.example"]
          capabilities = ["push"]
        [host."https://o.example/own"]
          override_path = true
        "#,
    );
    let endpoints = node.endpoints("r.example/a").unwrap();
    let found: Vec<_> = endpoints
        .iter()
        .map(|e| (e.base.as_str(), e.is_registry, e.resolves))
        .collect();
    assert_eq!(
        found,
        [
            ("https://z.example/v2/", false, true),
            ("http://a.example:5000/prefix/v2/", false, false),
            ("https://o.example/own/", false, true),
            ("https://up.example/v2/", true, true),
        ]
    );
    let values: Vec<_> = endpoints[0].headers.get_all("x-key").iter().collect();
    assert_eq!(values, ["a", "b"]);
    assert!(values.iter().all(|value| value.is_sensitive()));
    assert!(node.hosts().knows("r.example"));
}

#[test]
fn the_registry_itself_has_capabilities_too() {
    let text = |all: &str| format!("capabilities = [{all}]\n[host.\"https://m.example\"]\n");
    let node = Node::with("r.example", &text("\"push\""));
    assert_eq!(node.urls("r.example/a"), ["https://m.example/v2/"]);
    node.write("r.example", FILE, &text("\"pull\""));
    let endpoints = node.endpoints("r.example/a").unwrap();
    assert!(endpoints[1].is_registry && !endpoints[1].resolves);
}

#[test]
fn directories_are_named_as_for_containerd() {
    let node = Node::with("r.example_5000_", "server = \"http://s\"");
    node.write(DEFAULT, FILE, "[host.\"http://all\"]");
    assert!(node.hosts().knows("r.example:5000"));
    assert_eq!(node.urls("r.example:5000/a"), ["http://s/v2/"]);
    // Mirrors of all registries do not make a registry of a host.
    assert!(!node.hosts().knows("other.example"));
    let urls = node.urls("other.example/a");
    assert_eq!(urls, ["http://all/v2/", "https://other.example/v2/"]);
}

#[test]
fn certificates_alone_are_for_the_registry() {
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(["r.example".to_owned()]).unwrap();
    let cert = cert.self_signed(&key).unwrap();
    let node = Node::new();
    node.write("r.example", "ca.crt", &cert.pem());
    node.write("r.example", "own.cert", &cert.pem());
    node.write("r.example", "own.key", &key.serialize_pem());
    let place = Place::parse("r.example/a", &Version::Tag("1".into())).unwrap();
    let plain = Hosts::new(
        node.dir.path().to_owned(),
        Live::with_protocol(Protocol::Http),
    );
    let endpoints = plain.endpoints(&place, Client::builder).unwrap();
    assert!(endpoints[0].client.is_some());
    assert_eq!(endpoints[0].base.as_str(), "https://r.example/v2/");
    for (text, own) in [
        ("ca = \"ca.crt\"", true),
        ("client = [[\"own.cert\", \"own.key\"]]", true),
        ("skip_verify = true", true),
        ("server = \"https://x\"", false),
    ] {
        node.write("r.example", FILE, text);
        let endpoints = node.endpoints("r.example/a").unwrap();
        assert_eq!(endpoints[0].client.is_some(), own, "{text}");
    }
}

#[rstest]
#[case::key("servers = 1", "unknown field")]
#[case::nested("[host.\"https://m\"]\ncapability = []", "unknown field")]
#[case::capability("[host.\"https://m\"]\ncapabilities = [\"all\"]", "all")]
#[case::scheme("server = \"ftp://m\"", "neither http nor https")]
#[case::credentials("server = \"https://me:hush@m\"", "table header")]
#[case::query("server = \"https://m/?a=hush\"", "query")]
#[case::file("ca = \"missing.crt\"", "missing.crt")]
#[case::header("[header]\n\"a b\" = \"c\"", "header")]
#[case::toml("server", "hosts.toml")]
fn what_is_not_understood_is_refused(#[case] text: &str, #[case] words: &str) {
    let reason = Node::with("r.example", text).reason();
    assert!(reason.contains(words), "{reason}");
    assert!(!reason.contains("hush"), "{reason}");
}

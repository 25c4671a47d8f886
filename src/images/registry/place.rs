//! Where an image is in a registry.
//!
//! Invariant: a [`Place`] has a host and a repository in the grammar of the OCI distribution
//! specification, so that both may stand in a URL.
//! Failure: a sentence about the name.

use std::fmt;

pub(in crate::images) use registry_auth::DOCKER_HUB;
use registry_auth::{api_host, canonical_host};

use super::super::reference::{Name, Reference, Version};

/// Scheme of translations, and of the annotation `vmlet.dev/image-url`, that mean a registry.
pub(in crate::images) const SCHEME: &str = "oci://";

/// An image in a registry.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::images) struct Place {
    host: String,
    repository: String,
    version: Version,
}

impl Place {
    /// Reads `host[:port]/repository[:tag][@sha256:hex]`. Without tag and digest it has those of
    /// `version`; a digest there wins over a tag here.
    pub(in crate::images) fn parse(text: &str, version: &Version) -> Result<Self, &'static str> {
        let Ok(Reference::Named(name)) = Reference::parse(text) else {
            return Err("makes no name of an image in a registry");
        };
        let own = text.rsplit('/').next().unwrap_or_default();
        let chosen = match (name.version(), version) {
            // Which `new` refuses: what a rule names was not compared with it.
            (_, Version::Sha512(_)) => version,
            (Version::Tag(_), Version::Digest(_)) => version,
            (own_version, _) if own.contains([':', '@']) => own_version,
            _ => version,
        };
        Self::new(name.repository(), chosen)
    }

    /// The image of a name that contains its host.
    pub(in crate::images) fn from_name(name: &Name) -> Result<Self, &'static str> {
        Self::new(name.bare(), name.version())
    }

    /// The image of a name without a host, as everywhere.
    pub(in crate::images) fn on_docker_hub(name: &Name) -> Result<Self, &'static str> {
        Self::new(&format!("{DOCKER_HUB}/{}", name.bare()), name.version())
    }

    fn new(name: &str, version: &Version) -> Result<Self, &'static str> {
        if matches!(version, Version::Sha512(_)) {
            return Err("is in a registry, and has a digest that is not sha256");
        }
        let Some((host, repository)) = name.split_once('/') else {
            return Err("has no registry host and no translation rule matches it");
        };
        if name.contains("://") || !(host == "localhost" || host.contains(['.', ':'])) {
            return Err("has no registry host and no translation rule matches it");
        }
        if !repository.split('/').all(is_component) {
            return Err("has characters that a repository of a registry cannot have");
        }
        let host = canonical_host(host);
        let repository = match (host, repository.contains('/')) {
            (DOCKER_HUB, false) => format!("library/{repository}"),
            _ => repository.to_owned(),
        };
        Ok(Self {
            host: host.to_owned(),
            repository,
            version: version.clone(),
        })
    }

    /// The registry's host, with its port, as image names have it.
    pub(in crate::images) fn host(&self) -> &str {
        &self.host
    }

    /// The host that serves the registry's API where nothing else is configured.
    pub(super) fn api_host(&self) -> &str {
        api_host(&self.host)
    }

    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    pub(super) const fn version(&self) -> &Version {
        &self.version
    }

    /// The end of the manifest's URL: tag or digest.
    pub(super) fn label(&self) -> String {
        match &self.version {
            Version::Tag(tag) => tag.clone(),
            Version::Digest(digest) => digest.to_string(),
            Version::Sha512(digest) => digest.to_string(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.version {
            Version::Tag(_) => ':',
            Version::Digest(_) | Version::Sha512(_) => '@',
        };
        let host = &self.host;
        let repository = &self.repository;
        let label = self.label();
        write!(f, "{host}/{repository}{separator}{label}")
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(text: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = text.starts_with(word) && text.ends_with(word);
    let mut separators = text.split(word).filter(|between| !between.is_empty());
    let allowed =
        |between: &str| matches!(between, "." | "_" | "__") || between.bytes().all(|b| b == b'-');
    ends && separators.all(allowed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn place(text: &str, tag: &str) -> Result<String, &'static str> {
        Place::parse(text, &Version::Tag(tag.to_owned())).map(|place| place.to_string())
    }

    #[rstest]
    #[case(
        "quay.io/containerdisks/fedora",
        "40",
        "quay.io/containerdisks/fedora:40"
    )]
    #[case(
        "quay.io/containerdisks/fedora:41",
        "40",
        "quay.io/containerdisks/fedora:41"
    )]
    #[case("localhost:5000/a_b/c--d.e__f", "1", "localhost:5000/a_b/c--d.e__f:1")]
    #[case("docker.io/debian", "12", "docker.io/library/debian:12")]
    #[case("index.docker.io/me/debian", "12", "docker.io/me/debian:12")]
    fn a_place_is_host_repository_and_version(
        #[case] text: &str,
        #[case] tag: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(place(text, tag).as_deref(), Ok(expected));
    }

    #[test]
    fn a_digest_of_the_name_wins_over_the_tag_of_a_rule() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let version = Version::Digest(digest.parse().unwrap());
        let place = Place::parse("r.example/a:1", &version).unwrap();
        assert_eq!(place.to_string(), format!("r.example/a@{digest}"));
        let own = Place::parse(&format!("r.example/a@{digest}"), &Version::Tag("2".into()));
        assert_eq!(own.unwrap().label(), digest);
    }

    #[rstest]
    #[case::no_host("debian")]
    #[case::no_registry("folder/debian")]
    #[case::upper_case("r.example/Debian")]
    #[case::separator("r.example/a..b")]
    #[case::edge("r.example/-a")]
    #[case::plus("r.example/a+b")]
    #[case::url("https://r.example/a")]
    #[case::credentials("me:hush@r.example/a")]
    fn what_no_registry_has_is_refused(#[case] text: &str) {
        assert!(place(text, "1").is_err());
    }
}

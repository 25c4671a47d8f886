//! The name of an image, and its URL if the name does not contain it.
//!
//! A name `vmlet.dev/url/<hash>` represents a URL, which comes beside it: kubelet accepts no URL as
//! an image's name.
//!
//! Invariant: a URL is fetched only under the name that is made of it, over http or https, and
//! without credentials, which all who may read the pod could read. Nothing here shows its query.
//! Failure: [`Error::InvalidName`] states what does not go together.

use std::collections::BTreeMap;
use std::fmt;

use podspec::{Annotations, LONGEST_IMAGE_URL, is_url_image_name, url_image_name};
use reqwest::Url;

use super::error::{Error, Result};
use super::reference::{Name, Reference, presentable};
use super::registry::SCHEME;
use super::transport::ServerTls;

/// How an image is located.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// As the node's rules say of the name.
    Default,
    /// At the URL that the name represents.
    Url(Url),
    /// In a registry, unless a rule says otherwise.
    Registry,
}

impl Origin {
    /// The URL of a file that a part of it may open: signed URLs have a query.
    pub(super) fn signed(&self) -> Option<&Url> {
        match self {
            Self::Url(url) if url.query().is_some() => Some(url),
            _ => None,
        }
    }
}

/// An image's name, and the URL that it represents where it is made of one. The URL `oci://NAME`
/// says that the name is one of a registry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Locator<'a> {
    name: &'a str,
    url: Option<&'a str>,
    tls: Option<&'a ServerTls>,
    checksums: Option<&'a str>,
}

/// A file of checksums: its URL, and the name that is made of it.
pub(super) struct Listed {
    pub(super) name: Name,
    pub(super) url: Url,
}

impl<'a> Locator<'a> {
    /// A name, and the URL that came with it.
    pub const fn new(name: &'a str, url: Option<&'a str>) -> Self {
        Self {
            name,
            url,
            tls: None,
            checksums: None,
        }
    }

    /// With the URL of a file of checksums, which has the digest of the file.
    pub const fn with_checksums(self, checksums: Option<&'a str>) -> Self {
        Self { checksums, ..self }
    }

    /// With certificates for the server.
    pub const fn with_tls(self, tls: Option<&'a ServerTls>) -> Self {
        Self { tls, ..self }
    }

    pub(super) const fn tls(self) -> Option<&'a ServerTls> {
        self.tls
    }

    /// A name in a pod with these annotations. A URL of another kind than the name is left alone.
    pub fn of_pod(name: &'a str, annotations: &'a BTreeMap<String, String>) -> Result<Self> {
        let url = Annotations::new(annotations).image_url();
        let url = match Reference::parse(name) {
            Ok(Reference::Named(named)) if is_url_image_name(named.repository()) => {
                url.map_err(|_| refuse(name, TOO_LONG))?
            }
            Ok(Reference::Named(_)) => {
                let url = url.unwrap_or_default();
                url.filter(|url| url.starts_with(SCHEME))
            }
            _ => None,
        };
        Ok(Self::new(name, url))
    }

    /// The URL, or else the name, as people may see it: without what may be a secret.
    pub(super) fn presentable(self) -> String {
        let url = self.url.filter(|url| !url.starts_with(SCHEME));
        let text = presentable(url.unwrap_or(self.name));
        text.chars().filter(char::is_ascii_graphic).collect()
    }

    /// Whether name and URLs go together.
    pub fn check(self) -> Result<()> {
        let (_, origin) = self.parse()?;
        match (self.listed()?, origin) {
            (Some(_), Origin::Default | Origin::Registry) => Err(refuse(self.name, NOT_LISTED)),
            _ => Ok(()),
        }
    }

    /// The file of checksums.
    pub(super) fn listed(self) -> Result<Option<Listed>> {
        let Some(text) = self.checksums else {
            return Ok(None);
        };
        let name = url_image_name(text);
        match Locator::new(&name, Some(text)).parse()? {
            (name, Origin::Url(url)) => Ok(Some(Listed { name, url })),
            _ => Err(refuse(self.name, NOT_LISTED)),
        }
    }

    /// The name, and the URL that it represents.
    pub(super) fn parse(self) -> Result<(Name, Origin)> {
        let Reference::Named(name) = Reference::parse(self.name)? else {
            return Err(refuse(self.name, "is an id; only names can be pulled"));
        };
        let refuse = |reason| refuse(self.name, reason);
        let registry = self.url.and_then(|url| url.strip_prefix(SCHEME));
        let origin = match (is_url_image_name(name.repository()), self.url) {
            (false, None) => Origin::Default,
            (false, Some(_)) if registry.is_some_and(|text| is_same(&name, text)) => {
                Origin::Registry
            }
            (false, Some(_)) if registry.is_some() => return Err(refuse(OTHER_NAME)),
            (false, Some(_)) => return Err(refuse("stands for no URL, and one is given with it")),
            (true, None) => return Err(refuse(NO_URL)),
            (true, Some(url)) => Origin::Url(parse(name.repository(), url).map_err(refuse)?),
        };
        Ok((name, origin))
    }
}

impl<'a> From<&'a str> for Locator<'a> {
    fn from(name: &'a str) -> Self {
        Self::new(name, None)
    }
}

impl<'a> From<&'a String> for Locator<'a> {
    fn from(name: &'a String) -> Self {
        Self::new(name, None)
    }
}

/// Without what may be a secret.
impl fmt::Debug for Locator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locator")
            .field("name", &presentable(self.name))
            .field("url", &self.url.map(presentable))
            .finish()
    }
}

const NO_URL: &str =
    "stands for a URL, which the annotation vmlet.dev/image-url of the pod does not give";
const OTHER_NAME: &str = "is not the one in the annotation vmlet.dev/image-url, which is oci:// and the name of the image";
const NOT_LISTED: &str = "has a file of checksums, and stands for no URL";
const TOO_LONG: &str = "stands for a URL of more than 2048 bytes";

/// Whether a text in a URL of a registry is this name, routed here or not.
fn is_same(name: &Name, text: &str) -> bool {
    match Reference::parse(text) {
        Ok(Reference::Named(other)) => {
            other.bare() == name.bare() && other.version() == name.version()
        }
        _ => false,
    }
}

/// The URL that belongs to the name of a URL.
fn parse(name: &str, text: &str) -> Result<Url, &'static str> {
    if text.len() > LONGEST_IMAGE_URL {
        return Err(TOO_LONG);
    }
    if url_image_name(text) != name {
        return Err("does not belong to the URL in the annotation vmlet.dev/image-url");
    }
    let url = Url::parse(text).map_err(|_| "stands for a URL that is not valid")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("stands for a URL that is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "stands for a URL with a user name or a password, which all who may read the pod could read; \
             use a translation rule",
        );
    }
    Ok(url)
}

fn refuse(name: &str, reason: &'static str) -> Error {
    Error::InvalidName {
        name: presentable(name),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn reason(name: &str, url: Option<&str>) -> String {
        let error = Locator::new(name, url).check().unwrap_err().to_string();
        assert!(!error.contains("hush"), "{error}");
        error
    }

    #[rstest]
    #[case::query("https://Host.example:8443/Debian.QCOW2?version=12#part")]
    #[case::no_path("http://h")]
    #[case::v6("http://[::1]:80/a%20b")]
    fn a_url_goes_with_the_name_that_is_made_of_it(#[case] url: &str) {
        let name = url_image_name(url);
        let digest = "0".repeat(64);
        for name in [
            name.clone(),
            format!("{name}:latest"),
            format!("{name}@sha256:{digest}"),
        ] {
            let (_, parsed) = Locator::new(&name, Some(url)).parse().unwrap();
            assert_eq!(parsed, Origin::Url(Url::parse(url).unwrap()));
        }
    }

    #[rstest]
    #[case::credentials("https://me:hush@h/a", "user name or a password")]
    #[case::user("https://hush@h/a", "user name or a password")]
    #[case::scheme("ftp://h/a?hush", "neither http nor https")]
    #[case::file("file:///etc/passwd", "neither http nor https")]
    #[case::no_url("h/a?hush", "not valid")]
    #[case::no_host("http://", "not valid")]
    #[case::long(&format!("http://h/{}", "a".repeat(2048)), "more than 2048 bytes")]
    fn a_url_that_is_not_fetched_is_said_so(#[case] url: &str, #[case] words: &str) {
        let refused = reason(&url_image_name(url), Some(url));
        assert!(refused.contains(words), "{refused}");
    }

    #[test]
    fn a_url_of_a_registry_goes_with_the_name_in_it() {
        let digest = format!("r.org/a@sha256:{}", "0".repeat(64));
        for (name, text) in [
            ("r.org/a:1", "r.org/a:1"),
            ("vmlet.dev/r.org/a", "r.org/a:latest"),
            (digest.as_str(), digest.as_str()),
        ] {
            let url = format!("oci://{text}");
            let (_, origin) = Locator::new(name, Some(&url)).parse().unwrap();
            assert_eq!(origin, Origin::Registry, "{name}");
        }
        for other in ["oci://r.org/a:2", "oci://r.org/b:1", "oci://"] {
            let refused = reason("r.org/a:1", Some(other));
            assert!(refused.contains("is not the one in"), "{refused}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let name = url_image_name("https://h/a");
        let other = reason(&name, Some("https://h/b?hush"));
        assert!(other.contains("does not belong to the URL"), "{other}");
        assert!(reason(&name, None).contains("vmlet.dev/image-url"));
        let plain = reason("h.org/a", Some("https://h/a?hush"));
        assert!(plain.contains("stands for no URL"), "{plain}");
        let id = reason(&"0".repeat(64), Some("https://h/a?hush"));
        assert!(id.contains("is an id"), "{id}");
    }

    #[test]
    fn the_annotation_is_for_names_of_urls_only() {
        let url = "https://h/a?hush";
        let pod = |url: String| BTreeMap::from([("vmlet.dev/image-url".to_owned(), url)]);
        let name = url_image_name(url);
        let given = pod(url.to_owned());
        let long = pod("h".repeat(2049));
        let locator = Locator::of_pod(&name, &given).unwrap();
        assert_eq!(locator, Locator::new(&name, Some(url)));
        assert!(!format!("{locator:?}").contains("hush"));
        assert!(Locator::of_pod(&name, &long).is_err());
        let other = Locator::of_pod("h.org/a", &long).unwrap();
        assert_eq!(other, Locator::new("h.org/a", None));
    }
}

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

/// An image's name, and the URL that it represents where it is made of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Locator<'a> {
    name: &'a str,
    url: Option<&'a str>,
}

impl<'a> Locator<'a> {
    /// A name, and the URL that came with it.
    pub const fn new(name: &'a str, url: Option<&'a str>) -> Self {
        Self { name, url }
    }

    /// A name in a pod with these annotations. They are about names of URLs and leave others alone.
    pub fn of_pod(name: &'a str, annotations: &'a BTreeMap<String, String>) -> Result<Self> {
        let url = match Reference::parse(name) {
            Ok(Reference::Named(named)) if is_url_image_name(named.repository()) => {
                let url = Annotations::new(annotations).image_url();
                url.map_err(|_| refuse(name, TOO_LONG))?
            }
            _ => None,
        };
        Ok(Self { name, url })
    }

    /// Whether name and URL go together.
    pub fn check(self) -> Result<()> {
        self.parse().map(drop)
    }

    /// The name, and the URL that it represents.
    pub(super) fn parse(self) -> Result<(Name, Option<Url>)> {
        let Reference::Named(name) = Reference::parse(self.name)? else {
            return Err(refuse(self.name, "is an id; only names can be pulled"));
        };
        let refuse = |reason| refuse(self.name, reason);
        let url = match (is_url_image_name(name.repository()), self.url) {
            (false, None) => None,
            (false, Some(_)) => return Err(refuse("stands for no URL, and one is given with it")),
            (true, None) => return Err(refuse(NO_URL)),
            (true, Some(url)) => Some(parse(name.repository(), url).map_err(refuse)?),
        };
        Ok((name, url))
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
const TOO_LONG: &str = "stands for a URL of more than 2048 bytes";

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
        reason,
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
            assert_eq!(parsed, Url::parse(url).ok());
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
        let (given, long) = (pod(url.to_owned()), pod("h".repeat(2049)));
        let locator = Locator::of_pod(&name, &given).unwrap();
        assert_eq!(locator, Locator::new(&name, Some(url)));
        assert!(!format!("{locator:?}").contains("hush"));
        assert!(Locator::of_pod(&name, &long).is_err());
        let other = Locator::of_pod("h.org/a", &long).unwrap();
        assert_eq!(other, Locator::new("h.org/a", None));
    }
}

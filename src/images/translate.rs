//! Translates names to URLs or places in registries, and URLs to others.
//!
//! Invariant: an exact rule beats every prefix, a longer prefix a shorter one; the result is http
//! or https with a host, or a registry's host with a repository. The `vmlet.dev/` or `virtlet.cloud/` in front of a name never reaches the
//! URL. Rules know a URL by its host and path; one that no rule is for is fetched as it is.
//! Failure: [`Error::Translation`] for a rule that cannot work, at start-up; [`Error::InvalidName`]
//! for a name that no rule matches and that is no location itself.

use std::fmt;

use reqwest::Url;
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::error::{Error, Result};
use super::locator::Origin;
use super::reference::{Name, Reference, Version, without_routing};
use super::registry::{self, SCHEME};
use super::settings::{Pattern, Protocol, Translation};

/// A URL that may hold secrets: shown as host and path only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Source(Url);

impl Source {
    /// A URL that is fetched as it is.
    pub(super) const fn of(url: Url) -> Self {
        Self(url)
    }

    pub(super) const fn url(&self) -> &Url {
        &self.0
    }

    /// Host, port and path, for messages.
    pub(super) fn location(&self) -> String {
        location(&self.0)
    }

    /// Stands for the URL in file names and the database, which must not hold its secrets.
    pub(super) fn key(&self) -> String {
        Digest::from_bytes(Sha256::digest(self.0.as_str()).into()).hex()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

/// Host, port and path of a URL.
pub(super) fn location(url: &Url) -> String {
    let port = url
        .port()
        .map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}{}", url.host_str().unwrap_or_default(), url.path())
}

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A file on a web server.
    File(Source),
    /// An image in a registry.
    Registry(registry::Place),
}

/// How good a match a prefix is.
type Rank = (usize, u8);

/// The node's rules, checked.
#[derive(Debug)]
pub(super) struct Translator {
    protocol: Protocol,
    rules: Vec<Translation>,
}

impl Translator {
    pub(super) fn new(protocol: Protocol, rules: Vec<Translation>) -> Result<Self> {
        let translator = Self { protocol, rules };
        for rule in &translator.rules {
            let (Pattern::Exact(pattern) | Pattern::Prefix(pattern)) = &rule.pattern;
            let refuse = |reason: &str| Error::Translation {
                pattern: pattern.clone(),
                reason: reason.to_owned(),
            };
            if pattern.is_empty() {
                return Err(refuse("the name is empty"));
            }
            let prefix = matches!(rule.pattern, Pattern::Prefix(_));
            // What is appended does not matter, but a registry alone is no image.
            let whole = match prefix {
                true => format!("{}/a", rule.url.trim_end_matches('/')),
                false => rule.url.clone(),
            };
            let any = Version::Tag("latest".to_owned());
            if rule.url.starts_with(SCHEME) {
                translator.place(&whole, &any).map_err(refuse)?;
            } else if translator
                .source(&rule.url)
                .map_err(refuse)?
                .0
                .query()
                .is_some()
                && prefix
            {
                return Err(refuse("names cannot be appended to a URL with a query"));
            }
        }
        Ok(translator)
    }

    /// Where to fetch the image that `name` means, or refers to. `is_registry` says whether a host
    /// without a rule is that of a registry.
    pub(super) fn translate(
        &self,
        name: &Name,
        origin: Origin,
        is_registry: impl Fn(&str) -> bool,
    ) -> Result<Place> {
        let refuse = |reason| Error::InvalidName {
            name: name.repository().to_owned(),
            reason,
        };
        let mut url = match origin {
            Origin::Url(url) => url,
            Origin::Registry => return self.of_name(name, |_| true),
            Origin::Default => return self.of_name(name, is_registry),
        };
        match self.rule_for(&location(&url)) {
            Some(other) => self.place(&other, name.version()).map_err(refuse),
            None => {
                url.set_fragment(None);
                Ok(Place::File(Source(url)))
            }
        }
    }

    /// Where the rule for a URL with this host and path leads to.
    fn rule_for(&self, place: &str) -> Option<String> {
        // What would count as a tag or a digest in a name belongs to the path here.
        let is_name = match Reference::parse(place) {
            Ok(Reference::Named(name)) => name.repository() == place,
            _ => false,
        };
        if !is_name {
            return None;
        }
        self.exact(|rule| rule == place)
            .or_else(|| self.exact(|rule| without_routing(rule) == place))
            .or_else(|| {
                // It contains its location, so that a rule for all other names does not apply.
                self.by_prefix(|prefix| below(prefix, place, place).filter(|_| !is_for_all(prefix)))
            })
    }

    fn of_name(&self, name: &Name, is_registry: impl Fn(&str) -> bool) -> Result<Place> {
        let given = name.repository();
        let bare = name.bare();
        // A pod that is routed by its RuntimeClass or annotation may leave the prefix out, whatever
        // the rule specifies.
        let url = self
            .exact(|rule| rule == given)
            .or_else(|| self.exact(|rule| rule == bare))
            .or_else(|| self.exact(|rule| without_routing(rule) == bare))
            .or_else(|| self.by_prefix(|prefix| below(prefix, given, bare)));
        let refuse = |reason| Error::InvalidName {
            name: given.to_owned(),
            reason,
        };
        let host = bare.split('/').next().unwrap_or_default();
        match url {
            Some(url) => self.place(&url, name.version()).map_err(refuse),
            None if !is_location(bare) => Err(refuse(
                "is no host and path, and no translation rule matches it",
            )),
            None if !bare.contains("://") && is_registry(host) => {
                let place = registry::Place::of(name).map_err(refuse)?;
                Ok(Place::Registry(place))
            }
            None => self.source(bare).map(Place::File).map_err(refuse),
        }
    }

    fn exact(&self, matches: impl Fn(&str) -> bool) -> Option<String> {
        self.rules
            .iter()
            .find(|rule| matches!(&rule.pattern, Pattern::Exact(exact) if matches(exact)))
            .map(|rule| rule.url.clone())
    }

    fn by_prefix<'a>(&self, below: impl Fn(&str) -> Option<(Rank, &'a str)>) -> Option<String> {
        let matching = |rule: &Translation| match &rule.pattern {
            Pattern::Exact(_) => None,
            Pattern::Prefix(prefix) => {
                let (rank, rest) = below(prefix)?;
                let url = format!("{}/{rest}", rule.url.trim_end_matches('/'));
                Some((rank, url))
            }
        };
        let longest = self.rules.iter().filter_map(matching).max_by_key(|m| m.0);
        longest.map(|(_, url)| url)
    }

    /// Where a rule leads to, for a name with this version.
    fn place(&self, text: &str, version: &Version) -> Result<Place, &'static str> {
        match text.strip_prefix(SCHEME) {
            Some(rest) => registry::Place::parse(rest, version).map(Place::Registry),
            None => self.source(text).map(Place::File),
        }
    }

    fn source(&self, text: &str) -> Result<Source, &'static str> {
        let url = if text.contains("://") {
            Url::parse(text)
        } else {
            Url::parse(&format!("{}://{text}", self.protocol.as_str()))
        };
        let mut url = url.map_err(|_| "does not make a valid URL")?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("makes a URL that is neither http nor https");
        }
        url.set_fragment(None);
        Ok(Source(url))
    }
}

/// What follows the prefix in a name, and how good a match it is: a longer prefix is better, of
/// equal ones the one that is spelled as in the name.
fn below<'a>(prefix: &str, given: &'a str, bare: &'a str) -> Option<(Rank, &'a str)> {
    let folder = folder(prefix);
    let short = without_routing(&folder);
    let rank = |rank| move |rest| ((short.len(), rank), rest);
    let as_spelled = given.strip_prefix(&folder).map(rank(2));
    as_spelled
        .or_else(|| bare.strip_prefix(&folder).map(rank(1)))
        .or_else(|| match short {
            // A rule for all names below `vmlet.dev/` leaves names alone that say where they are.
            "" => Some(bare).filter(|bare| !is_location(bare)).map(rank(0)),
            short => bare.strip_prefix(short).map(rank(0)),
        })
}

/// Whether a prefix is that of all names, less what only routes them here.
fn is_for_all(prefix: &str) -> bool {
    without_routing(&folder(prefix)).is_empty()
}

fn folder(prefix: &str) -> String {
    format!("{}/", prefix.trim_end_matches('/'))
}

/// Whether a name contains its location: a host with a dot or a port, and a path.
fn is_location(name: &str) -> bool {
    if name.contains("://") {
        return true;
    }
    let host = name.split_once('/').map(|(host, _)| host);
    host.is_some_and(|host| host == "localhost" || host.contains(['.', ':']))
}

#[cfg(test)]
mod tests;

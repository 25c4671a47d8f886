//! Parses image names.
//!
//! Invariant: a [`Name`] has no credentials, query, fragment or dot segments, so it may be logged,
//! stored and made into a URL; [`Reference::parse`] is the only way in.
//! Failure: [`Error::InvalidName`], with the sensitive parts of the offending text left out.

use std::fmt;

use super::checksum::{Checksum, SHA512, Sha512};
use super::digest::Digest;
use super::error::{Error, Result};

/// Longest name, with its tag, in bytes.
const LONGEST: usize = 1024;
const LONGEST_TAG: usize = 128;
const LONGEST_SEGMENT: usize = 255;
/// Shortest prefix of an id that may replace the id.
const SHORTEST_ID: usize = 12;
/// Prefixes that route a pod to this runtime and say nothing about the image.
const ROUTING_PREFIXES: [&str; 2] = ["vmlet.dev/", "virtlet.cloud/"];
const DEFAULT_TAG: &str = "latest";

/// What a client may say to mean an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `sha256:<hex>` or the 64 digits alone.
    Id(Digest),
    /// A name with its tag or digest.
    Named(Name),
}

/// A pullable name, without tag and digest, and which version of it is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    repository: String,
    version: Version,
}

/// Which of the images that had a name is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// What the server offers under this label; never part of the URL.
    Tag(String),
    /// Exactly this content.
    Digest(Digest),
    /// Exactly the file of a web server with this content.
    Sha512(Sha512),
}

impl Reference {
    /// Reads `host[:port]/path[:tag][@sha256:hex]`, or `@sha512:hex`, a short name, an `http(s)://` URL, or an id.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |reason: &'static str| Error::InvalidName {
            name: presentable(text),
            reason: reason.into(),
        };
        let id = text.strip_prefix("sha256:").unwrap_or(text);
        if let Ok(digest) = Digest::from_hex(id) {
            return Ok(Self::Id(digest));
        }
        Name::parse(text).map(Self::Named).map_err(refuse)
    }

    /// The digits of a shortened id, if `text` can be one: 12 or more lower-case hexadecimal
    /// digits.
    pub fn id_prefix(text: &str) -> Option<&str> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        ((SHORTEST_ID..=64).contains(&digits.len()) && digits.bytes().all(hex)).then_some(digits)
    }
}

impl Name {
    /// The name without tag and digest, as the client wrote it.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The name without tag, digest and routing prefix: the location of the image.
    pub fn bare(&self) -> &str {
        without_routing(&self.repository)
    }

    /// The tag or digest; a name with both means the digest, one with neither the tag `latest`.
    pub const fn version(&self) -> &Version {
        &self.version
    }

    /// The digest that the content must have, if the name gives one.
    pub const fn digest(&self) -> Option<Digest> {
        match self.version {
            Version::Digest(digest) => Some(digest),
            Version::Tag(_) | Version::Sha512(_) => None,
        }
    }

    /// What the content must hash to, if the name says so.
    pub(super) const fn checksum(&self) -> Option<Checksum> {
        match self.version {
            Version::Digest(digest) => Some(Checksum::Sha256(digest)),
            Version::Sha512(digest) => Some(Checksum::Sha512(digest)),
            Version::Tag(_) => None,
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("is empty");
        }
        if text.len() > LONGEST {
            return Err("is longer than 1024 bytes");
        }
        let (scheme, rest) = split_scheme(text)?;
        if rest.contains(['?', '#']) {
            return Err("has a query or fragment; those may carry secrets, use a translation rule");
        }
        let (rest, digest) = match rest.split_once('@') {
            None => (rest, None),
            Some((rest, digest)) if digest.starts_with("sha256:") => {
                let digest = digest.parse().map_err(|_| "has a malformed digest")?;
                (rest, Some(Version::Digest(digest)))
            }
            Some((rest, digest)) if digest.starts_with(SHA512) => {
                let digest = digest.parse().map_err(|_| "has a malformed digest")?;
                (rest, Some(Version::Sha512(digest)))
            }
            Some((_, after)) if after.contains('/') => {
                return Err("has credentials in it; use a translation rule");
            }
            Some(_) => return Err("has a digest that is not sha256 or sha512"),
        };
        let (path, tag) = split_tag(rest)?;
        check_path(without_routing(path), !scheme.is_empty())?;
        let of_tag = || Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned());
        let version = digest.unwrap_or_else(of_tag);
        let name = Self {
            repository: format!("{scheme}{path}"),
            version,
        };
        // What is listed must be a name, too, and it has a tag.
        if name.to_string().len() > LONGEST {
            return Err("is longer than 1024 bytes");
        }
        Ok(name)
    }
}

/// `name:tag` or `name@digest`, as listed to clients.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Version::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            Version::Digest(digest) => write!(f, "{}@{digest}", self.repository),
            Version::Sha512(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

/// The name without the prefix that only selects the runtime.
pub(super) fn without_routing(name: &str) -> &str {
    let bare = ROUTING_PREFIXES.iter().find_map(|p| name.strip_prefix(p));
    bare.unwrap_or(name)
}

fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    match text.split_once("://") {
        None => Ok(("", text)),
        Some(("http", rest)) => Ok(("http://", rest)),
        Some(("https", rest)) => Ok(("https://", rest)),
        Some(_) => Err("has a scheme other than http and https"),
    }
}

/// A colon in the last segment starts a tag; elsewhere it belongs to a port.
fn split_tag(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let last = text.rfind('/').map_or(0, |slash| slash + 1);
    let Some(colon) = text[last..].find(':') else {
        return Ok((text, None));
    };
    let path = &text[..last + colon];
    let tag = &text[last + colon + 1..];
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let well_formed = tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
        && tag.len() <= LONGEST_TAG;
    if well_formed {
        Ok((path, Some(tag)))
    } else {
        Err("has a malformed tag")
    }
}

fn check_path(path: &str, is_url: bool) -> Result<(), &'static str> {
    let mut segments = path.split('/');
    let first = segments.next().unwrap_or_default();
    let mut more = segments.peekable();
    if is_url && more.peek().is_none() {
        return Err("has no path after the host");
    }
    if is_url || (more.peek().is_some() && first.contains(':')) {
        check_host(first)?;
    } else {
        check_segment(first)?;
    }
    more.try_for_each(check_segment)
}

fn check_host(authority: &str) -> Result<(), &'static str> {
    let (host, port) = match authority.strip_prefix('[').map(|v6| v6.split_once(']')) {
        Some(None) => return Err("has a malformed host"),
        Some(Some((v6, after))) => {
            v6.parse::<std::net::Ipv6Addr>()
                .map_err(|_| "has a malformed IPv6 address")?;
            ("v6", after)
        }
        None => match authority.find(':') {
            Some(colon) => authority.split_at(colon),
            None => (authority, ""),
        },
    };
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    if host.is_empty() || host.len() > LONGEST_SEGMENT || !host.bytes().all(letter) {
        return Err("has a malformed host");
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(()),
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => match digits.parse::<u16>() {
            Ok(1..) => Ok(()),
            _ => Err("has a port outside 1 to 65535"),
        },
        _ => Err("has a malformed port"),
    }
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b"._-+~".contains(&b);
    match segment {
        "" => Err("has an empty path segment"),
        "." | ".." => Err("has a dot as a path segment"),
        _ if segment.len() > LONGEST_SEGMENT => Err("has a path segment of more than 255 bytes"),
        _ if !segment.bytes().all(letter) => Err("has characters other than A-Z a-z 0-9 . _ - + ~"),
        _ => Ok(()),
    }
}

/// `text` shortened and without what may be a secret, for messages.
pub(super) fn presentable(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let secret =
        |(_, after): &(&str, &str)| !after.starts_with("sha256:") && !after.starts_with(SHA512);
    let text = text
        .rsplit_once('@')
        .filter(secret)
        .map_or(text, |(_, after)| after);
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_TAG)
        .collect()
}

#[cfg(test)]
mod tests;

//! A bucket as a target of backups: `BUCKET/PREFIX?credentials=FILE&region=…`.
//!
//! Invariant: what was parsed makes a URL without a character that a server and a signature could write in two ways; it has no
//! credentials but the name of their file.
//! Failure: a sentence that states what is allowed.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;

use reqwest::Url;

use crate::config::value::AbsolutePath;

/// The region of servers that have none.
const REGION: &str = "us-east-1";

/// The longest prefix in bytes: a key has 1024 at most.
const PREFIX: usize = 512;

/// The lengths of names of buckets in bytes.
const NAME: std::ops::RangeInclusive<usize> = 3..=63;

/// A bucket of a server that speaks S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupBucket {
    name: String,
    prefix: String,
    credentials: AbsolutePath,
    region: String,
    endpoint: Option<Url>,
    style: BucketStyle,
    ca: Option<AbsolutePath>,
}

/// Where the name of a bucket is in URLs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BucketStyle {
    /// In the path.
    #[default]
    Path,
    /// In the name of the host.
    Host,
}

impl BackupBucket {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What names in it begin with: empty, or without a slash at the end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The file of the credentials.
    pub const fn credentials(&self) -> &AbsolutePath {
        &self.credentials
    }

    /// Its region.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The server.
    pub fn endpoint(&self) -> Result<Url, String> {
        match &self.endpoint {
            Some(endpoint) => Ok(endpoint.clone()),
            None => parse_endpoint(&format!("https://s3.{}.amazonaws.com", self.region)),
        }
    }

    /// Where its name is in URLs.
    pub const fn style(&self) -> BucketStyle {
        self.style
    }

    /// The file of the authorities that are trusted.
    pub const fn ca(&self) -> Option<&AbsolutePath> {
        self.ca.as_ref()
    }

    fn check(&self) -> Result<(), String> {
        if !NAME.contains(&self.name.len()) || !self.name.bytes().all(is_of_bucket) {
            return Err(
                "a bucket has 3 to 63 lower-case letters, digits, dots and hyphens".to_owned(),
            );
        }
        let is_odd = |part: &str| matches!(part, "" | "." | "..") || !part.bytes().all(is_of_key);
        let prefix = Some(&*self.prefix).filter(|prefix| !prefix.is_empty());
        if self.prefix.len() > PREFIX || prefix.is_some_and(|prefix| prefix.split('/').any(is_odd))
        {
            return Err(format!(
                "a prefix has letters, digits, dots, hyphens, underscores and single slashes, at most {PREFIX} bytes"
            ));
        }
        if self.region.is_empty() || !self.region.bytes().all(is_of_bucket) {
            return Err("a region has lower-case letters, digits, dots and hyphens".to_owned());
        }
        let endpoint = self.endpoint()?;
        if self.style == BucketStyle::Host && endpoint.domain().is_none() {
            return Err("style=host needs an endpoint whose host has a name".to_owned());
        }
        Ok(())
    }
}

impl FromStr for BackupBucket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let missing = "the credentials are missing: s3://BUCKET/PREFIX?credentials=FILE is allowed";
        let (place, rest) = text.split_once('?').ok_or(missing)?;
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        let mut values = BTreeMap::new();
        for pair in rest.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if values.insert(key, value).is_some() {
                return Err(format!("{key} stands there twice"));
            }
        }
        let path = |value: &str| value.parse::<AbsolutePath>();
        let bucket = Self {
            name: name.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            credentials: path(values.remove("credentials").ok_or(missing)?)?,
            region: values.remove("region").unwrap_or(REGION).to_owned(),
            endpoint: values.remove("endpoint").map(parse_endpoint).transpose()?,
            style: match values.remove("style") {
                None | Some("path") => BucketStyle::Path,
                Some("host") => BucketStyle::Host,
                Some(_) => return Err("style is path or host".to_owned()),
            },
            ca: values.remove("ca").map(path).transpose()?,
        };
        if let Some(odd) = values.keys().next() {
            return Err(format!(
                "{odd} is unknown: credentials, region, endpoint, style and ca are allowed"
            ));
        }
        bucket.check()?;
        Ok(bucket)
    }
}

impl Display for BackupBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        write!(f, "?credentials={}", self.credentials)?;
        if self.region != REGION {
            write!(f, "&region={}", self.region)?;
        }
        if let Some(endpoint) = &self.endpoint {
            write!(f, "&endpoint={}", endpoint.as_str().trim_end_matches('/'))?;
        }
        if self.style == BucketStyle::Host {
            write!(f, "&style=host")?;
        }
        match &self.ca {
            Some(ca) => write!(f, "&ca={ca}"),
            None => Ok(()),
        }
    }
}

fn parse_endpoint(text: &str) -> Result<Url, String> {
    let refused = || {
        "an endpoint is http:// or https://, a host, and a port where it is another one than usual"
            .to_owned()
    };
    let url: Url = text.parse().map_err(|_| refused())?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path() == "/"
        && url.has_host();
    let is_web = ["http", "https"].contains(&url.scheme());
    if is_plain && is_web {
        Ok(url)
    } else {
        Err(refused())
    }
}

const fn is_of_bucket(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
}

const fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_has_defaults() {
        let bucket: BackupBucket = "backups?credentials=/etc/vmlet/s3".parse().unwrap();
        assert_eq!(
            (bucket.name(), bucket.prefix(), bucket.region()),
            ("backups", "", REGION)
        );
        assert_eq!((bucket.style(), bucket.ca()), (BucketStyle::Path, None));
        let endpoint = bucket.endpoint().unwrap();
        assert_eq!(endpoint.as_str(), "https://s3.us-east-1.amazonaws.com/");
    }

    #[test]
    fn each_value_is_written_as_it_was_read() {
        for text in [
            "backups/of/cluster-1?credentials=/etc/vmlet/s3",
            "backups?credentials=/c&region=eu-1&endpoint=https://s3.example.com:9000&style=host&ca=/ca.pem",
            "backups?credentials=/c&endpoint=http://[::1]:9000",
        ] {
            let bucket: BackupBucket = text.parse().unwrap();
            assert_eq!(bucket.to_string(), text);
        }
    }

    #[test]
    fn what_a_server_could_read_otherwise_is_refused() {
        for (text, words) in [
            ("backups", "credentials are missing"),
            ("backups?region=eu", "credentials are missing"),
            ("backups?credentials=s3", "absolute path"),
            ("backups?credentials=/c&credentials=/d", "twice"),
            ("backups?credentials=/c&token=x", "token is unknown"),
            ("ab?credentials=/c", "3 to 63"),
            ("Backups?credentials=/c", "3 to 63"),
            ("backups/a//b?credentials=/c", "single slashes"),
            ("backups/../b?credentials=/c", "single slashes"),
            ("backups/ü?credentials=/c", "single slashes"),
            ("backups?credentials=/c&region=", "a region"),
            ("backups?credentials=/c&style=odd", "style is"),
            (
                "backups?credentials=/c&endpoint=s3.example.com",
                "an endpoint is",
            ),
            (
                "backups?credentials=/c&endpoint=ftp://s3.example.com",
                "an endpoint is",
            ),
            (
                "backups?credentials=/c&endpoint=https://u:p@s3.example.com",
                "an endpoint is",
            ),
            (
                "backups?credentials=/c&endpoint=https://s3.example.com/x",
                "an endpoint is",
            ),
            (
                "backups?credentials=/c&endpoint=http://127.0.0.1:1&style=host",
                "has a name",
            ),
        ] {
            let refused = text.parse::<BackupBucket>().unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}

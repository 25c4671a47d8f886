//! Translations of image names to URLs, in the configuration file.
//!
//! Invariant: a translation has exactly one of name, prefix and regexp, and a URL; its credentials and
//! query appear in no output.
//! Failure: a sentence at the line of the file.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A rule that turns names into a URL.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
#[schemars(with = "Written")]
pub struct Translation {
    /// Names that it is for.
    pub pattern: Pattern,
    /// Where they are. May hold credentials and a query.
    pub url: String,
}

/// Names that a translation is for, written without tag and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This one name.
    Name(String),
    /// All names below this one.
    Prefix(String),
    /// All names in which this expression matches.
    Regexp(String),
}

/// A translation in a file. Its serialized form contains no credentials.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Written {
    /// The image name that is translated, without tag and digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// All image names below this one are translated; the rest of the name is appended to the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// All image names in which this regular expression matches, without tag, digest and the prefix
    /// `vmlet.dev/`, are translated. It matches anywhere in the name unless it has anchors.
    #[serde(skip_serializing_if = "Option::is_none")]
    regexp: Option<String>,
    /// URL of the image, or of all images below the prefix. Beside `regexp`, `$1` or `${name}` is
    /// what the group of the expression matches, and `$$` is a `$`. `config show` omits credentials and the
    /// query.
    url: String,
}

impl From<Translation> for Written {
    fn from(translation: Translation) -> Self {
        let url = translation.shown_url();
        let mut written = Self {
            name: None,
            prefix: None,
            regexp: None,
            url,
        };
        match translation.pattern {
            Pattern::Name(name) => written.name = Some(name),
            Pattern::Prefix(prefix) => written.prefix = Some(prefix),
            Pattern::Regexp(text) => written.regexp = Some(text),
        }
        written
    }
}

impl Translation {
    /// The URL without credentials and query.
    pub fn shown_url(&self) -> String {
        let (rest, query) = match self.url.split_once('?') {
            Some((rest, _)) => (rest, "?…"),
            None => (self.url.as_str(), ""),
        };
        let (scheme, rest) = match rest.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), rest),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = match host.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => host.to_owned(),
        };
        format!("{scheme}{host}{path}{query}")
    }
}

impl TryFrom<Written> for Translation {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let pattern = match (written.name, written.prefix, written.regexp) {
            (Some(name), None, None) if !name.is_empty() => Pattern::Name(name),
            (None, Some(prefix), None) if !prefix.is_empty() => Pattern::Prefix(prefix),
            (None, None, Some(text)) if !text.is_empty() => Pattern::Regexp(text),
            _ => return Err("a translation needs either a name, a prefix or a regexp"),
        };
        if written.url.is_empty() {
            return Err("the url of a translation is empty");
        }
        let url = written.url;
        Ok(Self { pattern, url })
    }
}

impl fmt::Debug for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translation")
            .field("pattern", &self.pattern)
            .field("url", &self.shown_url())
            .finish()
    }
}

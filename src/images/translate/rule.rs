//! One rule of a translation, checked before it is used.
//!
//! Invariant: a rule makes a usable URL of every name that it is for, as far as the names are not
//! part of its host.
//! Failure: a sentence about the rule, without its URL.

use std::fmt;
use std::sync::Arc;

use super::super::error::{Error, Result};
use super::super::reference::{Version, presentable};
use super::super::registry::SCHEME;
use super::super::settings::{Pattern, Protocol, Translation};
use super::super::transport::Transport;
use super::{Expression, Place, place};

/// A rule that turns names into a URL.
#[derive(Clone)]
pub(in crate::images) struct Rule {
    pub(super) matches: Matches,
    pub(super) url: String,
    pub(super) transport: Option<Arc<Transport>>,
}

/// Names that a rule is for.
#[derive(Debug, Clone)]
pub(in crate::images) enum Matches {
    /// This one name.
    Exact(String),
    /// All names below this one.
    Prefix(String),
    /// Names in which an expression matches.
    Expression {
        /// A folder with its `/`, below which the expression is for what follows.
        below: Option<String>,
        /// The expression.
        expression: Arc<Expression>,
    },
}

impl Rule {
    /// Checks that the rule can work.
    pub(in crate::images) fn new(
        protocol: Protocol,
        matches: Matches,
        url: String,
        transport: Option<Arc<Transport>>,
    ) -> Result<Self, String> {
        if let Matches::Expression { expression, .. } = &matches {
            expression.check(&url)?;
        }
        // What is appended does not matter, but a registry alone is no image.
        let whole = match &matches {
            Matches::Exact(_) => url.clone(),
            Matches::Prefix(_) => format!("{}/a", url.trim_end_matches('/')),
            Matches::Expression { .. } => Expression::sample(&url, "1"),
        };
        let any = Version::Tag("latest".to_owned());
        place(protocol, &whole, &any)?;
        if matches!(matches, Matches::Prefix(_)) && !url.starts_with(SCHEME) {
            match place(protocol, &url, &any)? {
                Place::File(folder) if folder.url().query().is_some() => {
                    return Err("names cannot be appended to a URL with a query".to_owned());
                }
                _ => {}
            }
        }
        Ok(Self {
            matches,
            url,
            transport,
        })
    }

    /// A rule of the settings.
    pub(super) fn of_settings(protocol: Protocol, given: &Translation) -> Result<Self> {
        let (Pattern::Exact(text) | Pattern::Prefix(text) | Pattern::Expression(text)) =
            &given.pattern;
        let refuse = |reason: String| Error::Translation {
            pattern: text.clone(),
            reason,
        };
        if text.is_empty() {
            return Err(refuse("the name is empty".to_owned()));
        }
        let matches = match &given.pattern {
            Pattern::Exact(name) => Matches::Exact(name.clone()),
            Pattern::Prefix(prefix) => Matches::Prefix(prefix.clone()),
            Pattern::Expression(text) => Matches::Expression {
                below: None,
                expression: Arc::new(Expression::new(text).map_err(refuse)?),
            },
        };
        Self::new(protocol, matches, given.url.clone(), None).map_err(refuse)
    }
}

/// Without the secrets of the URL.
impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("matches", &self.matches)
            .field("url", &presentable(&self.url))
            .finish_non_exhaustive()
    }
}

//! Translates names to URLs or places in registries, and URLs to others.
//!
//! Invariant: an exact rule beats every prefix, a longer prefix a shorter one, and a prefix every
//! expression; among equals the first in order wins, the rules of the settings before those of
//! files. The result is http or https with a host, or a registry's host with a repository. The
//! `vmlet.dev/` or `virtlet.cloud/` in front of a name never reaches the URL. Rules know a URL by
//! its host and path; one that no rule is for is fetched as it is. Expressions are for names alone.
//! A name without a host that no rule is for is Docker Hub's, unless it has that prefix: then it is one
//! of this node's rules, or a mistake.
//! Failure: [`Error::Translation`] for a rule that cannot work, at start-up; [`Error::InvalidName`]
//! for a name that no rule matches and that is no location itself, with the rules that there are.

use std::sync::Arc;

use reqwest::Url;

use super::error::{Error, Result};
use super::locator::Origin;
use super::reference::{Name, Reference, Version, without_routing};
use super::registry::{self, DOCKER_HUB, SCHEME};
use super::settings::{Protocol, Translation};
use prefix::{Rank, below, folder, is_for_all, is_location};

mod advice;
mod expression;
mod prefix;
mod rule;
mod source;

pub(super) use expression::Expression;
pub(super) use rule::{Matches, Rule};
pub(super) use source::{Source, location};

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A file on a web server.
    File(Source),
    /// An image in a registry.
    Registry(registry::Place),
}

/// The node's rules, checked.
#[derive(Debug, Clone)]
pub(super) struct Translator {
    protocol: Protocol,
    /// In the order of their sources.
    rules: Vec<Arc<[Rule]>>,
    /// Whether a source has rules that are not in use.
    is_incomplete: bool,
}

impl Translator {
    /// With the rules of the settings.
    pub(super) fn new(protocol: Protocol, rules: &[Translation]) -> Result<Self> {
        let rules: Result<Vec<_>> = rules
            .iter()
            .map(|rule| Rule::of_settings(protocol, rule))
            .collect();
        Ok(Self {
            protocol,
            rules: vec![rules?.into()],
            is_incomplete: false,
        })
    }

    /// With more rules after those that are here.
    pub(super) fn with(
        &self,
        more: impl IntoIterator<Item = Arc<[Rule]>>,
        is_incomplete: bool,
    ) -> Self {
        Self {
            protocol: self.protocol,
            rules: self.rules.iter().cloned().chain(more).collect(),
            is_incomplete,
        }
    }

    /// The same rules with this protocol, if it is another.
    pub(super) fn with_protocol(&self, protocol: Protocol) -> Option<Self> {
        (self.protocol != protocol).then(|| Self {
            protocol,
            ..self.clone()
        })
    }

    /// Where to fetch the image that `name` means, or refers to. `is_registry` says whether a host
    /// without a rule is that of a registry.
    pub(super) fn translate(
        &self,
        name: &Name,
        origin: Origin,
        is_registry: impl Fn(&str) -> bool,
    ) -> Result<Place> {
        let refuse = |reason: &'static str| Error::InvalidName {
            name: name.repository().to_owned(),
            reason: reason.into(),
        };
        let mut url = match origin {
            Origin::Url(url) => url,
            Origin::Registry => return self.of_name(name, true, |_| true),
            Origin::Default => {
                // A rule that is not in use could be for it.
                let is_hub = name.repository() == name.bare() && !self.is_incomplete;
                return self.of_name(name, is_hub && is_registry(DOCKER_HUB), is_registry);
            }
        };
        match self.rule_for(&location(&url)) {
            Some(found) => found.place(self.protocol, name.version()).map_err(refuse),
            None => {
                url.set_fragment(None);
                Ok(Place::File(Source::from_url(url)))
            }
        }
    }

    /// Where the rule for a URL with this host and path leads to.
    fn rule_for(&self, place: &str) -> Option<Found<'_>> {
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

    /// `is_hub` says whether a name without a host may be Docker Hub's.
    fn of_name(
        &self,
        name: &Name,
        is_hub: bool,
        is_registry: impl Fn(&str) -> bool,
    ) -> Result<Place> {
        let given = name.repository();
        let bare = name.bare();
        // A pod that is routed by its RuntimeClass or annotation may leave the prefix out, whatever
        // the rule specifies.
        let found = self
            .exact(|rule| rule == given)
            .or_else(|| self.exact(|rule| rule == bare))
            .or_else(|| self.exact(|rule| without_routing(rule) == bare))
            .or_else(|| self.by_prefix(|prefix| below(prefix, given, bare)))
            .or_else(|| self.by_expression(bare));
        let refuse = |reason: &'static str| Error::InvalidName {
            name: given.to_owned(),
            reason: reason.into(),
        };
        let host = bare.split('/').next().unwrap_or_default();
        match found {
            Some(found) => found.place(self.protocol, name.version()).map_err(refuse),
            None if !is_location(bare) && is_hub => {
                let place = registry::Place::on_docker_hub(name).map_err(refuse)?;
                Ok(Place::Registry(place))
            }
            None if !is_location(bare) => Err(Error::InvalidName {
                name: given.to_owned(),
                reason: self.advice(bare).into(),
            }),
            None if !bare.contains("://") && is_registry(host) => {
                let place = registry::Place::from_name(name).map_err(refuse)?;
                Ok(Place::Registry(place))
            }
            None => source(self.protocol, bare)
                .map(|url| Place::File(Source::from_url(url)))
                .map_err(refuse),
        }
    }

    /// What to write in the place of a name without a host that no rule is for.
    fn advice(&self, bare: &str) -> String {
        let known = self.rules().filter_map(|rule| match &rule.matches {
            Matches::Exact(name) => Some(without_routing(name).to_owned()),
            Matches::Prefix(prefix) if is_for_all(prefix) => None,
            Matches::Prefix(prefix) => Some(format!("{}…", without_routing(&folder(prefix)))),
            Matches::Expression { .. } => None,
        });
        let refused = if self.is_incomplete {
            "; the daemon refuses a file of images.translations_dir, and its log says why"
        } else {
            ""
        };
        let advice = self
            .only_below(bare)
            .unwrap_or_else(|| advice::suggest(bare, known));
        format!("names no server, and no translation rule matches it; {advice}{refused}")
    }

    /// A rule has the name as its prefix, which is for the names below it.
    fn only_below(&self, bare: &str) -> Option<String> {
        let own = format!("{bare}/");
        let prefixes = self.rules().filter_map(|rule| match &rule.matches {
            Matches::Prefix(prefix) => Some(prefix),
            Matches::Exact(_) | Matches::Expression { .. } => None,
        });
        let prefix = prefixes
            .map(|prefix| prefix.trim_end_matches('/'))
            .find(|prefix| without_routing(&folder(prefix)) == own)?;
        Some(format!(
            "the rule with prefix = {prefix:?} is for names below it, such as {prefix}/NAME: write name = {prefix:?} in \
             a rule for this name"
        ))
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().flat_map(|rules| rules.iter())
    }

    fn exact(&self, matches: impl Fn(&str) -> bool) -> Option<Found<'_>> {
        self.rules()
            .find(|rule| matches!(&rule.matches, Matches::Exact(exact) if matches(exact)))
            .map(|rule| Found {
                rule,
                url: rule.url.clone(),
            })
    }

    fn by_prefix<'a>(&self, below: impl Fn(&str) -> Option<(Rank, &'a str)>) -> Option<Found<'_>> {
        let mut longest: Option<(Rank, Found<'_>)> = None;
        for rule in self.rules() {
            let Matches::Prefix(prefix) = &rule.matches else {
                continue;
            };
            let Some((rank, rest)) = below(prefix) else {
                continue;
            };
            if longest.as_ref().is_none_or(|(best, _)| rank > *best) {
                let url = format!("{}/{rest}", rule.url.trim_end_matches('/'));
                longest = Some((rank, Found { rule, url }));
            }
        }
        longest.map(|(_, found)| found)
    }

    fn by_expression(&self, bare: &str) -> Option<Found<'_>> {
        if bare.contains("://") {
            return None;
        }
        self.rules().find_map(|rule| {
            let Matches::Expression { below, expression } = &rule.matches else {
                return None;
            };
            let rest = match below {
                Some(folder) => bare.strip_prefix(without_routing(folder))?,
                None => bare,
            };
            let url = expression.expand(rest, &rule.url)?;
            Some(Found { rule, url })
        })
    }
}

/// A rule that matches, and what it makes of the name.
struct Found<'a> {
    rule: &'a Rule,
    url: String,
}

impl Found<'_> {
    fn place(self, protocol: Protocol, version: &Version) -> Result<Place, &'static str> {
        let transport = self.rule.transport.clone();
        match place(protocol, &self.url, version)? {
            Place::File(found) => Ok(Place::File(found.over(transport))),
            other => Ok(other),
        }
    }
}

/// Where the URL of a rule leads to, for a name with this version.
fn place(protocol: Protocol, text: &str, version: &Version) -> Result<Place, &'static str> {
    match text.strip_prefix(SCHEME) {
        Some(rest) => registry::Place::parse(rest, version).map(Place::Registry),
        None => Ok(Place::File(Source::from_url(source(protocol, text)?))),
    }
}

fn source(protocol: Protocol, text: &str) -> Result<Url, &'static str> {
    let url = if text.contains("://") {
        Url::parse(text)
    } else {
        Url::parse(&format!("{}://{text}", protocol.as_str()))
    };
    let mut url = url.map_err(|_| "does not make a valid URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("makes a URL that is neither http nor https");
    }
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests;

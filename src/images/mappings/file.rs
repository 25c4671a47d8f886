//! A file of translations, in Virtlet's format.
//!
//! Invariant: a file is used whole or not at all; what it does not explain is refused. No text here
//! repeats a value of the file, which may be a secret.
//! Failure: [`Problem`], with line and column.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::super::reference::{Reference, without_routing};
use super::super::registry::SCHEME;
use super::super::settings::Protocol;
use super::super::translate::{Expression, Matches, Rule};
use super::super::transport::{Profile, Transport, Written as WrittenTransport, given};

/// Longest file, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;
/// Most rules of a file.
const MOST_RULES: usize = 1024;
/// Most values that the aliases of a file may refer to, together.
const MAX_REPLAYED: usize = 10_000;
/// Longest reason of a refusal, in characters.
const LONGEST_REASON: usize = 400;
/// Name of the profile for rules that name none.
const DEFAULT: &str = "";

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::images) struct Problem {
    place: Option<(u64, u64)>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    prefix: Option<Spanned<String>>,
    #[serde(default)]
    translations: Option<Vec<Spanned<WrittenRule>>>,
    #[serde(default)]
    transports: Option<BTreeMap<String, Spanned<WrittenTransport>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    #[serde(default)]
    name: Option<Spanned<String>>,
    #[serde(default)]
    regexp: Option<Spanned<String>>,
    url: Spanned<String>,
    #[serde(default)]
    transport: Option<Spanned<String>>,
}

/// The rules of a file. `ready` makes what a profile needs.
pub(in crate::images) fn parse(
    text: &str,
    protocol: Protocol,
    ready: impl Fn(&Profile) -> Result<Option<Transport>, String>,
) -> Result<Arc<[Rule]>, Problem> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
        },
    };
    let written = serde_saphyr::from_str_with_options::<Option<Written>>(text, options);
    let written = written.map_err(|error| {
        let place = error.location().and_then(place);
        Problem::new(place, &without_values(&error.to_string()))
    })?;
    let Some(written) = written else {
        return Ok(Arc::from([]));
    };
    let mut transports = BTreeMap::new();
    for (name, written) in written.transports.iter().flatten() {
        let transport = written.value.profile().and_then(|profile| ready(&profile));
        let transport = transport
            .map_err(|reason| Problem::at(written, format!("transport {name:?}: {reason}")))?;
        transports.insert(name.as_str(), transport.map(Arc::new));
    }
    let reader = Reader {
        protocol,
        below: below(written.prefix.as_ref())?,
        transports,
    };
    let rules = written.translations.unwrap_or_default();
    if let Some(beyond) = rules.get(MOST_RULES) {
        let reason = format!("a file has at most {MOST_RULES} translations");
        return Err(Problem::at(beyond, reason));
    }
    let mut names = BTreeSet::new();
    rules
        .iter()
        .map(|rule| reader.rule(rule, &mut names))
        .collect()
}

/// The folder of a prefix, with its `/`.
fn below(prefix: Option<&Spanned<String>>) -> Result<Option<String>, Problem> {
    let Some(prefix) = prefix.filter(|prefix| !prefix.value.is_empty()) else {
        return Ok(None);
    };
    let name = prefix.value.trim_end_matches('/');
    if is_name(name) {
        Ok(Some(format!("{name}/")))
    } else {
        Err(Problem::at(prefix, "prefix is not the beginning of a name"))
    }
}

struct Reader<'a> {
    protocol: Protocol,
    below: Option<String>,
    transports: BTreeMap<&'a str, Option<Arc<Transport>>>,
}

impl Reader<'_> {
    fn rule(
        &self,
        written: &Spanned<WrittenRule>,
        names: &mut BTreeSet<String>,
    ) -> Result<Rule, Problem> {
        let rule = &written.value;
        let filled = |field: &Option<Spanned<String>>| {
            field.as_ref().is_some_and(|text| !text.value.is_empty())
        };
        let matches = match (&rule.name, &rule.regexp) {
            (Some(name), regexp) if filled(&rule.name) && !filled(regexp) => {
                self.exact(name, names)?
            }
            (name, Some(regexp)) if filled(&rule.regexp) && !filled(name) => {
                let expression = Expression::new(&regexp.value);
                Matches::Expression {
                    below: self.below.clone(),
                    expression: Arc::new(expression.map_err(|e| Problem::at(regexp, e))?),
                }
            }
            _ => {
                let reason = "a translation needs either a name or a regexp";
                return Err(Problem::at(written, reason));
            }
        };
        if rule.url.value.is_empty() {
            return Err(Problem::at(&rule.url, "the url of a translation is empty"));
        }
        let transport = self.transport(rule)?;
        Rule::new(self.protocol, matches, rule.url.value.clone(), transport)
            .map_err(|reason| Problem::at(&rule.url, reason))
    }

    fn exact(
        &self,
        name: &Spanned<String>,
        names: &mut BTreeSet<String>,
    ) -> Result<Matches, Problem> {
        let below = self.below.as_deref().unwrap_or_default();
        let whole = format!("{below}{}", name.value);
        if !is_name(&whole) {
            let reason = "name is not that of an image without tag and digest";
            return Err(Problem::at(name, reason));
        }
        if names.insert(whole.clone()) {
            Ok(Matches::Exact(whole))
        } else {
            Err(Problem::at(
                name,
                "name is that of another translation above",
            ))
        }
    }

    fn transport(&self, rule: &WrittenRule) -> Result<Option<Arc<Transport>>, Problem> {
        let is_file = !rule.url.value.starts_with(SCHEME);
        let named = rule.transport.as_ref();
        match named.filter(|name| given(Some(&name.value)).is_some()) {
            Some(name) if !is_file => Err(Problem::at(
                name,
                "a transport is for web servers; images.registries_dir configures registries",
            )),
            Some(name) => match self.transports.get(name.value.as_str()) {
                Some(transport) => Ok(transport.clone()),
                None => Err(Problem::at(name, "the file has no such transport")),
            },
            None if !is_file => Ok(None),
            None => Ok(self.transports.get(DEFAULT).cloned().flatten()),
        }
    }
}

/// Whether a text is what a name has before its tag.
fn is_name(text: &str) -> bool {
    match Reference::parse(text) {
        Ok(Reference::Named(name)) => {
            name.repository() == text && !without_routing(text).contains("://")
        }
        _ => false,
    }
}

/// A message of the parser, less the text that it quotes.
fn without_values(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    match (first.find('"'), first.rfind('"')) {
        (Some(start), Some(end)) if start < end => {
            format!("{}…{}", &first[..start], &first[end + 1..])
        }
        _ => first.to_owned(),
    }
}

fn place(location: Location) -> Option<(u64, u64)> {
    (location.line() > 0).then(|| (location.line(), location.column()))
}

impl Problem {
    /// A problem in one line of limited length: names of fields and transports may be long.
    fn new(place: Option<(u64, u64)>, reason: &str) -> Self {
        let plain = reason.chars().filter(|c| !c.is_control());
        Self {
            place,
            reason: plain.take(LONGEST_REASON).collect(),
        }
    }

    fn at<T>(value: &Spanned<T>, reason: impl AsRef<str>) -> Self {
        Self::new(place(value.defined), reason.as_ref())
    }

    /// Without its place, for a text that no one has written as it is.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// One of the whole file.
    pub(super) fn of_file(reason: impl AsRef<str>) -> Self {
        Self::new(None, reason.as_ref())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.reason)
    }
}

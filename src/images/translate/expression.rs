//! Regular expressions for names, whose groups become parts of a URL.
//!
//! Invariant: matching takes time in proportion to the name; names are ASCII, so an expression
//! knows no other classes; a URL refers only to groups that exist.
//! Failure: a sentence about the expression or the URL, without the URL.

use regex::bytes::{Regex, RegexBuilder};

/// Longest expression, in bytes.
const LONGEST: usize = 1024;
/// Most memory that a compiled expression takes, in bytes.
const COMPILED: usize = 256 << 10;
/// Most parentheses inside each other.
const DEEPEST: u32 = 50;

/// A compiled expression. It matches anywhere in a name unless it has anchors.
#[derive(Debug)]
pub(in crate::images) struct Expression(Regex);

impl Expression {
    pub(in crate::images) fn new(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("the expression is longer than {LONGEST} bytes"));
        }
        let compiled = RegexBuilder::new(text)
            .unicode(false)
            .size_limit(COMPILED)
            .dfa_size_limit(COMPILED)
            .nest_limit(DEEPEST)
            .build();
        compiled.map(Self).map_err(|error| reason(&error))
    }

    /// Whether each `$` in a URL refers to a group of this expression, or is written `$$`.
    pub(super) fn check(&self, url: &str) -> Result<(), String> {
        for piece in pieces(url) {
            match piece {
                Piece::Text(_) => {}
                Piece::Group(group) if self.has(group) => {}
                Piece::Group(group) => {
                    return Err(format!(
                        "the url refers to the group {group:?}, which the expression does not \
                         have; put a number that letters follow in braces, and write $$ for $"
                    ));
                }
                Piece::Bad => {
                    return Err(
                        "the url has a $ that refers to no group; write $$ for $".to_owned()
                    );
                }
            }
        }
        Ok(())
    }

    fn has(&self, group: &str) -> bool {
        match group.parse::<usize>() {
            Ok(index) => index < self.0.captures_len(),
            Err(_) => self.0.capture_names().flatten().any(|name| name == group),
        }
    }

    /// The URL for a name, or `None` where the expression does not match.
    pub(super) fn expand(&self, name: &str, url: &str) -> Option<String> {
        let captures = self.0.captures(name.as_bytes())?;
        let mut expanded = Vec::new();
        captures.expand(url.as_bytes(), &mut expanded);
        // A class without Unicode could cut a character, but names have none of several bytes.
        String::from_utf8(expanded).ok()
    }

    /// What a URL becomes where each group is `text`.
    pub(super) fn sample(url: &str, text: &str) -> String {
        let filled = pieces(url).map(|piece| match piece {
            Piece::Text(plain) => plain,
            Piece::Group(_) | Piece::Bad => text,
        });
        filled.collect()
    }
}

/// A part of a URL with references.
enum Piece<'a> {
    Text(&'a str),
    Group(&'a str),
    /// A `$` without a group.
    Bad,
}

fn pieces(url: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = url;
    std::iter::from_fn(move || {
        let Some(after) = rest.strip_prefix('$') else {
            let end = rest.find('$').unwrap_or(rest.len());
            let (text, more) = rest.split_at(end);
            rest = more;
            return (!text.is_empty()).then_some(Piece::Text(text));
        };
        if after.starts_with('$') {
            let (dollar, more) = after.split_at(1);
            rest = more;
            return Some(Piece::Text(dollar));
        }
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let braced = after.strip_prefix('{').and_then(|a| a.split_once('}'));
        let (group, more) = braced
            .unwrap_or_else(|| after.split_at(after.find(|c| !word(c)).unwrap_or(after.len())));
        rest = more;
        Some(if !group.is_empty() && group.chars().all(word) {
            Piece::Group(group)
        } else {
            Piece::Bad
        })
    })
}

/// Why an expression was not compiled, in one line.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("the compiled expression takes more than {limit} bytes")
        }
        // The text has a picture of the expression, and the reason in its last line.
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            let last = last.trim_start_matches("error: ");
            format!("the expression is not valid: {last}")
        }
    }
}

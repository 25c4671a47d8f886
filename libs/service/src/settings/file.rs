//! A configuration file.
//!
//! Invariant: the type decides which keys exist; a message is one line and shows no other part of
//! the file.
//! Failure: [`Error`] names the file; what is wrong in it also by line, column and key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("read configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// It is not valid: syntax, unknown key or bad value.
    #[error("configuration file {}{place}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// `, line 2, column 7`; empty where no place is to blame.
        place: String,
        /// What is wrong, with the key where there is one.
        reason: String,
    },
    /// A flag, a variable or a default has a value that cannot be used.
    #[error("{0}")]
    Value(String),
    /// The values are fine, each by itself.
    #[error(transparent)]
    Check(super::Problem),
    /// A variable belongs to no setting.
    #[error("environment {0}: no setting has this variable: correct or remove it")]
    Variable(String),
}

/// The values of the file, and the settings that they come to. A file that is not named need not
/// exist when it is the `usual` one.
pub(super) fn both<T: DeserializeOwned>(
    path: &Path,
    is_unnamed: bool,
    usual: Option<&str>,
) -> Result<(toml::Table, T), Error> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == ErrorKind::NotFound && is_unnamed && usual.is_some() => String::new(),
        read => read.map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?,
    };
    Ok((parse(path, &text)?, parse(path, &text)?))
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|mut e| {
        let place = e.span().and_then(|span| text.get(..span.start));
        // Without the text the message has the keys in place of a picture of the line.
        e.set_input(None);
        let (keys, reason) = reason(&e);
        Error::Content {
            path: path.into(),
            place: place.map_or_else(String::new, locate),
            reason: keys.map_or(reason.clone(), |keys| format!("{keys}: {reason}")),
        }
    })
}

/// The key that is wrong, if one is, and what is wrong with it, in one line.
pub(super) fn reason(error: &toml::de::Error) -> (Option<String>, String) {
    let text = error.to_string();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.trim_end().rsplit_once("\nin `") {
        Some((reason, keys)) => (
            Some(keys.trim_end_matches('`').to_owned()),
            one_line(reason),
        ),
        None => (None, one_line(&text)),
    }
}

/// Line and column of what follows `before`.
fn locate(before: &str) -> String {
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
    format!(", line {line}, column {column}")
}

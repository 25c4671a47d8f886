//! Why a registry has not taken an image.
//!
//! Invariant: a sentence says what to do where that is known; what a server says is bounded, and nothing that a terminal
//! would obey is in it. No credentials are in a sentence.
//! Failure: none here.

use reqwest::StatusCode;
use serde::Deserialize;

use super::{Registry, Reply};
use crate::table::printable;

/// Most of a server's words, in characters.
const WORDS: usize = 500;

/// An image that was not published.
#[derive(Debug, thiserror::Error)]
pub(in crate::commands) enum RegistryError {
    #[error("registry {host} cannot be reached")]
    Reach {
        host: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("failed to prepare connections to registries")]
    Client(#[source] reqwest::Error),
    #[error("{0} is no name of a registry")]
    Name(String),
    #[error("registry {host} demands credentials for {repository}: `docker login {host}`")]
    NoCredentials { host: String, repository: String },
    #[error(
        "registry {host} refuses the credentials for {repository}: `docker login {host}` with a user that may push there"
    )]
    Unauthorized { host: String, repository: String },
    #[error("not allowed: registry {host} does not let this user push to {repository}{words}")]
    Forbidden {
        host: String,
        repository: String,
        words: String,
    },
    #[error(
        "registry {host} has no repository {repository}, and makes none by a push{words}: create it there, or name another one"
    )]
    NotFound {
        host: String,
        repository: String,
        words: String,
    },
    #[error("registry {host} failed to {step}: {status}{words}")]
    Refused {
        host: String,
        step: &'static str,
        status: StatusCode,
        words: String,
    },
    #[error("registry {0} answers in a way that is none of the OCI distribution specification")]
    Protocol(String),
    #[error(
        "the authorization service of registry {0} has no encryption: choose --insecure if that is intended"
    )]
    Unencrypted(String),
    #[error("the registry has lost the upload of the disk")]
    Lost,
    #[error("the registry has lost the upload of the disk again and again")]
    LostAgain,
}

impl RegistryError {
    /// Whether another upload of the same disk may succeed.
    pub(in crate::commands) const fn is_passing(&self) -> bool {
        matches!(self, Self::Lost)
    }

    /// Whether no answer has come.
    pub(super) const fn is_of_network(&self) -> bool {
        matches!(self, Self::Reach { .. })
    }
}

/// What a registry says of errors.
#[derive(Deserialize)]
struct Errors {
    errors: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Registry {
    /// What an answer means that is none of success.
    pub(super) fn refused(&self, step: &'static str, reply: &Reply) -> RegistryError {
        let host = self.host.clone();
        let repository = self.repository.clone();
        let words = words(&reply.body);
        match reply.status {
            StatusCode::UNAUTHORIZED => self.unauthorized(),
            StatusCode::FORBIDDEN => RegistryError::Forbidden {
                host,
                repository,
                words,
            },
            StatusCode::NOT_FOUND => RegistryError::NotFound {
                host,
                repository,
                words,
            },
            status => RegistryError::Refused {
                host,
                step,
                status,
                words,
            },
        }
    }

    /// The registry does not accept what it was given.
    pub(super) fn unauthorized(&self) -> RegistryError {
        let host = self.host.clone();
        let repository = self.repository.clone();
        match self.credentials {
            Some(_) => RegistryError::Unauthorized { host, repository },
            None => RegistryError::NoCredentials { host, repository },
        }
    }
}

/// The registry's own words, in brackets; nothing where there are none.
fn words(body: &[u8]) -> String {
    let said = serde_json::from_slice::<Errors>(body).ok();
    let said = said.and_then(|said| said.errors.into_iter().next());
    let Some(One { code, message }) = said else {
        return String::new();
    };
    let text = format!("{code} {message}");
    let text: String = text.trim().chars().take(WORDS).collect();
    if text.is_empty() {
        return text;
    }
    format!(" ({})", printable(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_registry_are_bounded_and_printable() {
        let of = |code: &str, message: &str| {
            let body = serde_json::json!({"errors": [{"code": code, "message": message, "detail": {"a": 1}}]});
            words(body.to_string().as_bytes())
        };
        assert_eq!(of("DENIED", "no push"), " (DENIED no push)");
        assert!(!of("DENIED", "\u{1b}[2J").contains('\u{1b}'));
        assert!(of("", &"x".repeat(5000)).len() < WORDS + 10);
        for odd in ["", "<html>", "{\"errors\":[]}", "{\"errors\":[{}]}"] {
            assert_eq!(words(odd.as_bytes()), "", "{odd}");
        }
    }
}

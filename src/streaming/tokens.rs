//! Tokens of sessions that were requested and have not started.
//!
//! Invariant: a token is worth one session, for [`LIFETIME`]; at most [`MOST`] wait, of which one
//! namespace has at most [`PER_NAMESPACE`]. A token has
//! 144 random bits and is looked up by its digest, so that the time of a look-up reveals nothing
//! about other tokens.
//! Failure: [`TooMany`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fair::{Bounds, Owner, Place, Places};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// How long a token may wait.
const LIFETIME: Duration = Duration::from_secs(60);
/// Most tokens that wait.
const MOST: usize = 1000;
/// Most tokens that wait for clients of pods of one namespace.
const PER_NAMESPACE: usize = 250;

/// More sessions were requested than started.
#[derive(Debug, thiserror::Error)]
#[error(
    "too many streaming sessions were requested and wait for their clients: {PER_NAMESPACE} for pods of \
     this namespace, or {MOST} on the node: try again in a minute"
)]
pub struct TooMany;

/// Tokens, each for one `T`.
#[derive(Debug)]
pub(super) struct Tokens<T> {
    waiting: Mutex<HashMap<[u8; 32], Token<T>>>,
    places: Places,
}

#[derive(Debug)]
struct Token<T> {
    until: Instant,
    target: T,
    _place: Place,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            places: Places::new(Bounds {
                all: MOST,
                per_owner: PER_NAMESPACE,
            }),
        }
    }
}

impl<T> Tokens<T> {
    /// A new token for `target`, which is for a pod of this namespace.
    pub(super) fn issue(&self, namespace: &Owner, target: T) -> Result<String, TooMany> {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let place = self.places.try_take(namespace).or_else(|| {
            waiting.retain(|_, token| token.until > now);
            self.places.try_take(namespace)
        });
        let waits = Token {
            until: now + LIFETIME,
            target,
            _place: place.ok_or(TooMany)?,
        };
        let token = URL_SAFE_NO_PAD.encode(random());
        waiting.insert(digest(&token), waits);
        Ok(token)
    }

    /// What the token is for, once.
    pub(super) fn redeem(&self, token: &str) -> Option<T> {
        let waited = self.waiting().remove(&digest(token))?;
        (waited.until > Instant::now()).then_some(waited.target)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<[u8; 32], Token<T>>> {
        let waiting = self.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}

/// 18 random bytes.
fn random() -> [u8; 18] {
    let first = uuid::Uuid::new_v4();
    let second = uuid::Uuid::new_v4();
    let all = Sha256::digest([first.into_bytes(), second.into_bytes()].concat());
    let mut random = [0; 18];
    random.copy_from_slice(&all[..18]);
    random
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str) -> Owner {
        Owner::from(name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_worth_one_session_within_a_minute() {
        let tokens = Tokens::default();
        let token = tokens.issue(&namespace("n"), "a").unwrap();
        assert_eq!(token.len(), 24);
        assert_eq!(tokens.redeem("other"), None);
        assert_eq!(tokens.redeem(&token), Some("a"));
        assert_eq!(tokens.redeem(&token), None);
        let late = tokens.issue(&namespace("n"), "b").unwrap();
        tokio::time::advance(LIFETIME).await;
        assert_eq!(tokens.redeem(&late), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_tokens_are_bounded_and_old_ones_make_room() {
        let tokens = Tokens::default();
        for number in 0..MOST {
            let pods = namespace(["a", "b", "c", "d"][number % 4]);
            tokens.issue(&pods, ()).unwrap();
        }
        assert!(tokens.issue(&namespace("e"), ()).is_err());
        tokio::time::advance(LIFETIME).await;
        tokens.issue(&namespace("e"), ()).unwrap();
        assert_eq!(tokens.waiting().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_for_the_pods_of_one_namespace_leave_tokens_to_others() {
        let tokens = Tokens::default();
        let mut last = String::new();
        for _ in 0..PER_NAMESPACE {
            last = tokens.issue(&namespace("a"), ()).unwrap();
        }
        assert!(tokens.issue(&namespace("a"), ()).is_err());
        tokens.issue(&namespace("b"), ()).unwrap();
        // A session that starts waits no more.
        tokens.redeem(&last).unwrap();
        tokens.issue(&namespace("a"), ()).unwrap();
    }
}

//! Tokens of sessions that were requested and have not started.
//!
//! Invariant: a token is worth one session, for [`LIFETIME`]; at most [`MOST`] wait. A token has
//! 144 random bits and is looked up by its digest, so that the time of a look-up reveals nothing
//! about other tokens.
//! Failure: [`TooMany`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// How long a token may wait.
const LIFETIME: Duration = Duration::from_secs(60);
/// Most tokens that wait.
const MOST: usize = 1000;

/// More sessions were requested than started.
#[derive(Debug, thiserror::Error)]
#[error("{MOST} streaming sessions wait for their clients: try again in a minute")]
pub struct TooMany;

/// Tokens, each for one `T`.
#[derive(Debug)]
pub(super) struct Tokens<T>(Mutex<HashMap<[u8; 32], (Instant, T)>>);

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<T> Tokens<T> {
    /// A new token for `target`.
    pub(super) fn issue(&self, target: T) -> Result<String, TooMany> {
        let now = Instant::now();
        let mut waiting = self.waiting();
        if waiting.len() >= MOST {
            waiting.retain(|_, (until, _)| *until > now);
        }
        if waiting.len() >= MOST {
            return Err(TooMany);
        }
        let token = URL_SAFE_NO_PAD.encode(random());
        waiting.insert(digest(&token), (now + LIFETIME, target));
        Ok(token)
    }

    /// What the token is for, once.
    pub(super) fn redeem(&self, token: &str) -> Option<T> {
        let (until, target) = self.waiting().remove(&digest(token))?;
        (until > Instant::now()).then_some(target)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<[u8; 32], (Instant, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 18 random bytes.
fn random() -> [u8; 18] {
    let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
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

    #[tokio::test(start_paused = true)]
    async fn a_token_is_worth_one_session_within_a_minute() {
        let tokens = Tokens::default();
        let token = tokens.issue("a").unwrap();
        assert_eq!(token.len(), 24);
        assert_eq!(tokens.redeem("other"), None);
        assert_eq!(tokens.redeem(&token), Some("a"));
        assert_eq!(tokens.redeem(&token), None);
        let late = tokens.issue("b").unwrap();
        tokio::time::advance(LIFETIME).await;
        assert_eq!(tokens.redeem(&late), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_tokens_are_bounded_and_old_ones_make_room() {
        let tokens = Tokens::default();
        for _ in 0..MOST {
            tokens.issue(()).unwrap();
        }
        assert!(tokens.issue(()).is_err());
        tokio::time::advance(LIFETIME).await;
        tokens.issue(()).unwrap();
    }
}

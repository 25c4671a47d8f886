//! Warnings about peers that are refused.
//!
//! Invariant: a warning a minute for each user, for [`MOST`] users at most: what a peer does in a loop
//! fills no log. All are counted.
//! Failure: none.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two warnings about the same user.
const PAUSE: Duration = Duration::from_secs(60);
/// Users with a warning within that time.
const MOST: usize = 64;

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<u32, Noted>>);

#[derive(Debug)]
struct Noted {
    at: Instant,
    /// Refused since the warning.
    since: u64,
}

impl Refusals {
    /// Notes a refusal; with a warning due, how many of this user had none before it.
    pub(super) fn note(&self, uid: u32) -> Option<u64> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(one) = noted.get_mut(&uid) {
            if now - one.at < PAUSE {
                one.since += 1;
                return None;
            }
            let since = std::mem::take(&mut one.since);
            one.at = now;
            return Some(since);
        }
        noted.retain(|_, one| now - one.at < PAUSE);
        if noted.len() >= MOST {
            return None;
        }
        noted.insert(uid, Noted { at: now, since: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_user_is_a_warning_a_minute_and_hides_no_other_one() {
        let refusals = Refusals::default();
        assert_eq!(refusals.note(1), Some(0));
        let warned = (0..1000).filter_map(|_| refusals.note(1)).count();
        assert_eq!(warned, 0);
        assert_eq!(refusals.note(2), Some(0));
        tokio::time::advance(PAUSE).await;
        assert_eq!(refusals.note(1), Some(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn many_users_are_few_warnings() {
        let refusals = Refusals::default();
        let warned = (0..1000).filter_map(|uid| refusals.note(uid)).count();
        assert_eq!(warned, MOST);
        tokio::time::advance(PAUSE).await;
        assert_eq!(refusals.note(2000), Some(0));
    }
}

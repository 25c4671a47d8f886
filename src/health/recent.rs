//! The last response of a helper.
//!
//! Invariant: only an answer that came makes a new one; an error that came ends the old one.
//! Failure: a helper that is late, and of which no fresh answer is known, is an error that names
//! it.

use std::error::Error;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{DEADLINE, FIRST, FRESH};

/// What a helper last answered, and when.
#[derive(Debug)]
pub(super) struct Recent<T> {
    helper: &'static str,
    answer: Mutex<Option<(Instant, T)>>,
}

impl<T: Clone> Recent<T> {
    /// Nothing is known of `helper` yet.
    pub(super) const fn new(helper: &'static str) -> Self {
        Self {
            helper,
            answer: Mutex::new(None),
        }
    }

    /// The answer to `question`, or the last one when it is late and that one is fresh.
    pub(super) async fn query<E: Error>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        let timeout = match self.fresh() {
            Some(_) => DEADLINE,
            None => FIRST,
        };
        match tokio::time::timeout(timeout, question).await {
            Ok(Ok(answer)) => {
                *self.lock() = Some((Instant::now(), answer.clone()));
                Ok(answer)
            }
            Ok(Err(error)) => {
                *self.lock() = None;
                Err(crate::one_line(&error))
            }
            Err(_) => self.fresh().ok_or_else(|| {
                let waited = timeout.as_secs();
                format!("{} did not answer within {waited} s", self.helper)
            }),
        }
    }

    fn fresh(&self) -> Option<T> {
        let answer = self.lock();
        let (at, answer) = answer.as_ref()?;
        (at.elapsed() < FRESH).then(|| answer.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, T)>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io;

    use super::*;

    async fn late(helper: &Recent<u8>) -> Result<u8, String> {
        helper.query(pending::<io::Result<u8>>()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_helper_that_is_late_counts_as_it_last_answered_for_a_while() {
        let helper = Recent::new("libvirt");
        let first = Instant::now();
        let nothing_known = late(&helper).await.unwrap_err();
        assert_eq!(nothing_known, "libvirt did not answer within 5 s");
        assert_eq!(first.elapsed(), FIRST);

        assert_eq!(helper.query(ready(Ok::<_, io::Error>(7))).await, Ok(7));
        let begun = Instant::now();
        assert_eq!(late(&helper).await, Ok(7));
        assert_eq!(begun.elapsed(), DEADLINE);
        tokio::time::advance(FRESH).await;
        late(&helper).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_came_counts_at_once_and_ends_the_old_answer() {
        let helper = Recent::new("libvirt");
        let reported = helper.query(ready(Ok::<_, io::Error>(7))).await;
        assert_eq!(reported, Ok(7));
        let gone = io::Error::other("no socket");
        let reported = helper.query(ready(Err(gone))).await;
        assert_eq!(reported, Err("no socket".to_owned()));
        late(&helper).await.unwrap_err();
    }
}

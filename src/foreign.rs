//! Work on what is not ours: volumes of pods and devices, whose servers may never answer.
//!
//! Invariant: for one owner one thread works at a time, and it keeps the turn until the kernel
//! returns, also when its caller has left. So what hangs takes one thread, and delays requests for
//! its owner only, each until its deadline.
//! Failure: [`Error::Hung`]; what the thread does when the server answers at last has no effect but
//! its own.

use std::time::Duration;

use crate::locks::Locks;
use crate::tasks::Aborted;

/// Time for a look at a file or a device, with the wait for the turn: well below the two minutes
/// that kubelet gives a request.
const DEADLINE: Duration = Duration::from_secs(20);

/// Work that has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not return.
    #[error(
        "{0} did not answer within {seconds} s: check the server of the volume, or the device",
        seconds = DEADLINE.as_secs()
    )]
    Hung(String),
    /// The daemon stops.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

/// Threads that work for others; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Foreign(Locks);

impl Foreign {
    /// Does what should take a moment, within the deadline.
    pub async fn look<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let looked = tokio::time::timeout(DEADLINE, self.run(owner, work));
        let hung = || Error::Hung(owner.to_owned());
        looked.await.unwrap_or_else(|_| Err(hung()))
    }

    /// Does what may take its time, such as to write a large file to its server. The caller may
    /// leave at any time.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.0.lock(owner).await;
        let worked = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        Ok(worked.await.map_err(Aborted::from)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_hangs_takes_one_thread_and_delays_its_own_requests_until_their_deadline() {
        let foreign = Foreign::default();
        let threads = Arc::<AtomicUsize>::default();
        let (release, held) = mpsc::channel::<()>();
        let count = Arc::clone(&threads);
        let hang = move || {
            count.fetch_add(1, Ordering::SeqCst);
            // An error is what it waits for: the other end no longer exists.
            held.recv().unwrap_err();
        };
        let first = tokio::spawn({
            let foreign = foreign.clone();
            async move { foreign.look("/hung", hang).await }
        });
        while threads.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(foreign.look("/other", || 7).await.unwrap(), 7);

        let count = Arc::clone(&threads);
        let again = tokio::spawn({
            let foreign = foreign.clone();
            async move {
                let work = move || count.fetch_add(1, Ordering::SeqCst);
                foreign.look("/hung", work).await
            }
        });
        tokio::task::yield_now().await;
        tokio::time::advance(DEADLINE).await;
        for refused in [first.await.unwrap().err(), again.await.unwrap().err()] {
            let text = refused.unwrap().to_string();
            assert!(
                text.starts_with("/hung did not answer within 20 s"),
                "{text}"
            );
        }
        assert_eq!(threads.load(Ordering::SeqCst), 1);

        drop(release);
        assert_eq!(foreign.run("/hung", || 8).await.unwrap(), 8);
        assert_eq!(
            threads.load(Ordering::SeqCst),
            1,
            "a caller that left gets no turn"
        );
    }
}

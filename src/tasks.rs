//! Work that continues when its client disconnects.
//!
//! Invariant: every task runs under one tracker, so that shutdown can wait for all of them.
//! Failure: [`Aborted`] when the task panicked or the runtime is going down; what it had recorded
//! is finished or undone at the next start.

use std::future::Future;

use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// The task ended without a result.
#[derive(Debug, thiserror::Error)]
#[error("the work was aborted: {0}")]
pub struct Aborted(#[from] tokio::task::JoinError);

/// Starts tasks and knows how many still run.
#[derive(Debug, Clone, Default)]
pub struct Tasks(TaskTracker);

impl Tasks {
    /// Runs `work` to its end even if the caller is dropped, and returns its result.
    pub async fn finish<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Aborted> + Send + 'static,
    {
        self.0
            .spawn(work.in_current_span())
            .await
            .map_err(Aborted::from)?
    }

    /// Runs `work` in the background.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(work);
    }

    /// Waits until no task runs. New tasks may still be started, and are waited for.
    pub async fn wait(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

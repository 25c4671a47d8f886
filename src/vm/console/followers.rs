//! The followers of all consoles, one per machine that may run.
//!
//! Invariant: a container has one follower at most; a slow disk under one console delays no other.
//! Failure: the follower's own; a container whose follower could not be started has none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use podspec::ContainerId;

use super::{Client, Follower, Paths, Result};

/// A task that works on a container's follower holds its slot.
type Slot = Arc<tokio::sync::Mutex<Option<Follower>>>;

/// The followers by container.
#[derive(Debug, Default)]
pub(in crate::vm) struct Consoles(Mutex<HashMap<ContainerId, Slot>>);

impl Consoles {
    /// Follows a console, unless that is done already.
    pub(in crate::vm) async fn follow(&self, id: &ContainerId, paths: Paths) -> Result<()> {
        let slot = Arc::clone(self.slots().entry(id.clone()).or_default());
        let mut follower = slot.lock().await;
        // One whose task was lost copies nothing any more.
        if follower.as_ref().is_none_or(Follower::is_ended) {
            // Its socket is the next one's.
            *follower = None;
            *follower = Some(Follower::start(paths).await?);
        }
        if let Some(follower) = &mut *follower {
            follower.serve().await;
        }
        Ok(())
    }

    /// A client of a console; `None` when it is not followed, or its emulator reads no FIFO.
    pub(in crate::vm) async fn attach(&self, id: &ContainerId) -> Result<Option<Client>> {
        let slot = self.slots().get(id).cloned();
        match slot {
            Some(slot) => match &*slot.lock().await {
                Some(follower) => follower.attach().await,
                None => Ok(None),
            },
            None => Ok(None),
        }
    }

    /// Whether a console has a socket for clients on the node, and an emulator that reads its FIFO.
    pub(in crate::vm) async fn is_served(&self, id: &ContainerId) -> Result<bool> {
        let slot = self.slots().get(id).cloned();
        match slot {
            Some(slot) => match &*slot.lock().await {
                Some(follower) => Ok(follower.is_served() && follower.attach().await?.is_some()),
                None => Ok(false),
            },
            None => Ok(false),
        }
    }

    /// Has a new log file opened, if the console is followed.
    pub(in crate::vm) async fn reopen(&self, id: &ContainerId) -> Result<()> {
        let slot = self.slots().get(id).cloned();
        match slot {
            Some(slot) => match &*slot.lock().await {
                Some(follower) => follower.reopen().await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Has the rest of a console copied and lets it go; for machines that have ended.
    pub(in crate::vm) async fn finish(&self, id: &ContainerId) -> Result<()> {
        let slot = self.slots().remove(id);
        match slot {
            Some(slot) => match slot.lock().await.take() {
                Some(follower) => follower.finish().await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Lets every console go as it is; the machines run on.
    pub(in crate::vm) async fn release(&self) {
        let slots = std::mem::take(&mut *self.slots());
        let stopped = slots.into_values().map(|slot| async move {
            if let Some(follower) = slot.lock().await.take() {
                follower.stop().await;
            }
        });
        join_all(stopped).await;
    }

    /// Ends the task of a follower behind its back.
    #[cfg(test)]
    pub(in crate::vm) async fn lose(&self, id: &ContainerId) {
        let slot = self.slots().get(id).cloned();
        if let Some(follower) = &*slot.expect("a slot").lock().await {
            follower.lose().await;
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ContainerId, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_console_whose_follower_was_lost_is_followed_again() {
        let scratch = tempfile::tempdir().unwrap();
        let paths = Paths {
            raw: scratch.path().join("raw"),
            log: scratch.path().join("log"),
        };
        let consoles = Consoles::default();
        let id = ContainerId::generate();
        consoles.follow(&id, paths.clone()).await.unwrap();
        std::fs::write(&paths.raw, "first\n").unwrap();
        consoles.lose(&id).await;
        consoles.follow(&id, paths.clone()).await.unwrap();
        consoles.finish(&id).await.unwrap();
        let log = std::fs::read_to_string(&paths.log).unwrap();
        assert!(log.contains("first"), "{log:?}");
    }
}

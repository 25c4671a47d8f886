//! One lock per image content.
//!
//! Invariant: whoever places, unlinks, names or pins a file holds the lock of its digest.
//! Failure: none; a lock whose holder went away is free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::digest::Digest;

/// Locks by digest; those that nobody holds or waits for take no memory for long.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

impl Locks {
    /// Waits until nobody else works on `digest`.
    pub(super) async fn lock(&self, digest: Digest) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(digest).or_default())
        };
        lock.lock_owned().await
    }
}

//! Calls that tests hold until they let them go on.
//!
//! Invariant: what is held goes on when the guard is dropped.
//! Failure: none here.

use std::sync::Arc;

use tokio::sync::{OwnedMutexGuard, OwnedRwLockWriteGuard};

use super::FakeHypervisor;

impl FakeHypervisor {
    /// Starts wait for their turn until what this returns is dropped, also those that are refused.
    pub async fn hold_starts(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.starts).write_owned().await
    }

    /// Restores wait for their turn until what this returns is dropped.
    pub async fn hold_restore_turns(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.restore_turns).write_owned().await
    }

    /// Restores come to no end until what this returns is dropped, or the domain is destroyed; it is
    /// there meanwhile.
    pub async fn hold_restores(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.restores).write_owned().await
    }

    /// Switches of disks come to no end until what this returns is dropped, and do not take place when they are given
    /// up.
    pub async fn hold_switches(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.switches).write_owned().await
    }

    /// Looks at a domain wait until what this returns is dropped. As in the real one they wait for
    /// each other, too.
    pub async fn hold_looks(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.looks).lock_owned().await
    }
}

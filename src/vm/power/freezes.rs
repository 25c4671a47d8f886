//! Guests that tasks have requested to freeze, and the resets that end that.
//!
//! Invariant: an entry exists only while a task freezes the guest of a machine, thaws it or waits for either.
//! Failure: none; a reset that libvirt does not report is not seen, and the guest counts as frozen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podspec::VmUid;
use tokio::time::Instant;

/// Whether the guest was reset, by the machine.
type Entries = Arc<Mutex<HashMap<VmUid, bool>>>;

/// The freezes of this process.
#[derive(Debug, Default)]
pub(in crate::vm) struct Freezes(Entries);

/// A freeze, for as long as it lives.
#[derive(Debug)]
pub(super) struct Freeze {
    entries: Entries,
    vm: VmUid,
    /// Until when the guest may stay frozen.
    pub(super) deadline: Instant,
}

impl Freezes {
    /// A task freezes the guest of a machine until the result is dropped; there is one at a time for each.
    pub(super) fn begin(&self, vm: VmUid, deadline: Instant) -> Freeze {
        lock(&self.0).insert(vm, false);
        Freeze {
            entries: Arc::clone(&self.0),
            vm,
            deadline,
        }
    }

    /// Records a reset of the guest of a machine for the task that freezes it, if there is one.
    pub(super) fn note_reset(&self, vm: VmUid) {
        if let Some(is_reset) = lock(&self.0).get_mut(&vm) {
            *is_reset = true;
        }
    }

    /// Whether a task freezes the guest of a machine.
    pub(super) fn has(&self, vm: VmUid) -> bool {
        lock(&self.0).contains_key(&vm)
    }
}

impl Freeze {
    /// The guest has frozen its file systems: resets of before do not count.
    pub(super) fn answered(&self) {
        lock(&self.entries).insert(self.vm, false);
    }

    /// Whether the guest was reset since the request, or since it had frozen its file systems.
    pub(super) fn is_reset(&self) -> bool {
        lock(&self.entries).get(&self.vm).copied().unwrap_or(false)
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        lock(&self.entries).remove(&self.vm);
    }
}

fn lock(entries: &Entries) -> MutexGuard<'_, HashMap<VmUid, bool>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

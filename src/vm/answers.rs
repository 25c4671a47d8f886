//! Creations whose answer this daemon has sent, in memory.
//!
//! Invariant: after a restart no creation counts as answered, so that a client that repeats its
//! request gets the container that an earlier daemon made.
//! Failure: none.

use std::sync::PoisonError;

use podspec::ContainerId;

use super::service::Containers;
use crate::platform::Platform;

impl<P: Platform> Containers<P> {
    pub(super) fn remember_answer(&self, id: &ContainerId) {
        self.answered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id.clone());
    }

    pub(super) fn was_answered(&self, id: &ContainerId) -> bool {
        self.answered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(id)
    }

    pub(super) fn forget_answer(&self, id: &ContainerId) {
        self.answered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }
}

//! The settings of containers that change while the daemon runs.
//!
//! Invariant: a container keeps what applied at its creation.
//! Failure: none.

use std::sync::PoisonError;

use podspec::Defaults;

use super::Containers;
use crate::platform::Platform;
use crate::vm::settings::Adjustable;

impl<P: Platform> Containers<P> {
    /// What applies when a pod specifies nothing about its machine.
    pub(in crate::vm) fn defaults(&self) -> Defaults {
        self.adjustable().defaults
    }

    /// The settings that can change, as they are now.
    pub(in crate::vm) fn adjustable(&self) -> Adjustable {
        *self
            .adjustable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses these defaults for containers that are created from now on.
    pub fn set_defaults(&self, defaults: Defaults) {
        self.change(|adjustable| adjustable.defaults = defaults);
    }

    pub(in crate::vm) fn change(&self, change: impl FnOnce(&mut Adjustable)) {
        let adjustable = self.adjustable.lock();
        change(&mut adjustable.unwrap_or_else(PoisonError::into_inner));
    }
}

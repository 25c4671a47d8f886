//! Settings of the image store that can change while it works.
//!
//! Invariant: a reader gets values that were set together.
//! Failure: none.

use std::sync::{PoisonError, RwLock};

use super::settings::{Protocol, Settings};

/// Settings that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adjustable {
    /// As [`Settings::protocol`].
    pub protocol: Protocol,
    /// As [`Settings::max_download_bytes`].
    pub max_download_bytes: u64,
    /// As [`Settings::max_virtual_bytes`].
    pub max_virtual_bytes: u64,
}

/// The values in force.
#[derive(Debug)]
pub(super) struct Live(RwLock<Adjustable>);

impl Live {
    pub(super) const fn new(values: Adjustable) -> Self {
        Self(RwLock::new(values))
    }

    /// With limits that nothing exceeds.
    #[cfg(test)]
    pub(super) fn with_protocol(protocol: Protocol) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self::new(Adjustable {
            protocol,
            max_download_bytes: u64::MAX,
            max_virtual_bytes: u64::MAX,
        }))
    }

    pub(super) fn get(&self) -> Adjustable {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, values: Adjustable) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = values;
    }
}

impl From<&Settings> for Adjustable {
    fn from(settings: &Settings) -> Self {
        Self {
            protocol: settings.protocol,
            max_download_bytes: settings.max_download_bytes,
            max_virtual_bytes: settings.max_virtual_bytes,
        }
    }
}

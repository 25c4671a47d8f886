//! Remembers the layers that were found to hold no disk, so that a repeated pull of a container image
//! downloads none of them again.
//!
//! Invariant: a layer is known by its digest, which was checked before; bounded, the oldest go first.
//! Failure: none; a forgotten layer, or any after a restart, is downloaded once more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::digest::Digest;
use super::super::registry::Blob;
use super::super::unpack::Shape;

/// Layers that are remembered: those of 256 large images.
const MOST: usize = 4096;

/// Layers without a disk.
#[derive(Debug, Default)]
pub(in crate::images) struct Diskless(Mutex<VecDeque<Digest>>);

impl Diskless {
    /// Whether a blob is a layer that is known to hold no disk.
    pub(super) fn has(&self, blob: &Blob) -> bool {
        blob.shape == Shape::Layer && self.layers().contains(&blob.digest)
    }

    /// Remembers a layer.
    pub(super) fn add(&self, blob: &Blob) {
        let mut layers = self.layers();
        if blob.shape != Shape::Layer || layers.contains(&blob.digest) {
            return;
        }
        if layers.len() >= MOST {
            layers.pop_front();
        }
        layers.push_back(blob.digest);
    }

    fn layers(&self) -> MutexGuard<'_, VecDeque<Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(number: usize, shape: Shape) -> Blob {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        Blob {
            digest: Digest::from_bytes(bytes),
            size: 1,
            shape,
        }
    }

    #[test]
    fn the_oldest_layers_are_forgotten_first() {
        let diskless = Diskless::default();
        for number in 0..=MOST {
            diskless.add(&blob(number, Shape::Layer));
            diskless.add(&blob(number, Shape::Layer));
        }
        assert!(!diskless.has(&blob(0, Shape::Layer)));
        assert!((1..=MOST).all(|number| diskless.has(&blob(number, Shape::Layer))));
    }

    #[test]
    fn a_file_that_is_to_be_a_disk_is_no_layer_without_one() {
        let diskless = Diskless::default();
        diskless.add(&blob(1, Shape::Disk));
        assert!(!diskless.has(&blob(1, Shape::Layer)));
        diskless.add(&blob(1, Shape::Layer));
        assert!(!diskless.has(&blob(1, Shape::Disk)));
    }
}

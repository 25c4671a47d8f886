//! The memory that the output of all commands in guests may take.
//!
//! Invariant: each stream may hold [`FREE`] bytes, so that a probe never fails because of other
//! commands; what it holds beyond that comes out of one budget for the daemon, and returns to it
//! when the output is dropped.
//! Failure: a stream that exceeds the budget gets [`Error::Budget`]; its command is killed.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Error;

/// Bytes of a stream outside of the budget.
const FREE: usize = 64 << 10;
/// Steps in which a stream takes from the budget.
const UNIT: usize = 64 << 10;
/// The budget in steps: four commands with as much output as is returned.
const UNITS: usize = (128 << 20) / UNIT;

/// The budget of all commands.
#[derive(Debug, Clone)]
pub(in crate::vm) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(UNITS)))
    }
}

/// The output of a stream.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    held: Option<OwnedSemaphorePermit>,
}

impl Stream {
    /// Appends what fits within `most` bytes; the rest is dropped.
    pub(super) fn push(&mut self, budget: &Budget, bytes: &[u8], most: usize) -> Result<(), Error> {
        let room = most.saturating_sub(self.bytes.len());
        let bytes = bytes.get(..room).unwrap_or(bytes);
        let length = self.bytes.len() + bytes.len();
        let held = self
            .held
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = length.saturating_sub(FREE).div_ceil(UNIT) - held;
        if missing > 0 {
            let units = u32::try_from(missing).unwrap_or(u32::MAX);
            let more = Arc::clone(&budget.0).try_acquire_many_owned(units);
            let more = more.map_err(|_| Error::Budget((UNITS * UNIT) >> 20))?;
            match &mut self.held {
                Some(held) => held.merge(more),
                none => *none = Some(more),
            }
            // A vector that grows by itself takes up to twice of what was counted.
            self.bytes
                .reserve_exact(FREE + (held + missing) * UNIT - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its bytes, which do not count any more.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl std::ops::Deref for Stream {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
impl From<Vec<u8>> for Stream {
    fn from(bytes: Vec<u8>) -> Self {
        let held = None;
        Self { bytes, held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 16 << 20;

    #[test]
    fn commands_share_a_budget_and_each_keeps_a_little() {
        let budget = Budget::default();
        let piece = vec![b'x'; 1 << 20];
        let mut streams = Vec::new();
        let refused = loop {
            let mut stream = Stream::default();
            let filled = (0..16).try_for_each(|_| stream.push(&budget, &piece, MOST));
            streams.push(stream);
            if let Err(e) = filled {
                break e;
            }
        };
        assert!(matches!(refused, Error::Budget(128)), "{refused}");
        let held: usize = streams.iter().map(|s| s.bytes.capacity()).sum();
        assert!(held <= UNITS * UNIT + streams.len() * FREE, "{held}");

        // Less than one of the pieces is left.
        let mut rest = Stream::default();
        while rest.push(&budget, &piece[..UNIT], MOST).is_ok() {}
        streams.push(rest);
        let mut probe = Stream::default();
        probe.push(&budget, &piece[..FREE], MOST).unwrap();
        assert!(probe.push(&budget, b"y", MOST).is_err());
        assert_eq!(probe.len(), FREE);

        streams.pop();
        streams.pop();
        probe.push(&budget, b"y", MOST).unwrap();
        drop((streams, probe));
        assert_eq!(budget.0.available_permits(), UNITS);
    }

    #[test]
    fn what_is_too_long_is_cut_and_costs_nothing() {
        let budget = Budget::default();
        let mut stream = Stream::default();
        stream.push(&budget, &vec![b'x'; FREE], FREE).unwrap();
        stream.push(&budget, &vec![b'x'; FREE], FREE).unwrap();
        assert_eq!((stream.len(), stream.held.is_some()), (FREE, false));
    }
}

//! The bytes of a stream that the host has not acknowledged.
//!
//! Invariant: never more than [`WINDOW`] bytes. Each byte is taken once and in order; after
//! [`Tail::resume`] once more, from the given offset.
//! Failure: none; a full tail has no room, and the host cannot acknowledge what was not taken.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use guestapi::{CHUNK, WINDOW};

/// The end of one stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Bytes before these, since the start.
    before: u64,
    bytes: VecDeque<u8>,
    /// How many of the bytes were taken.
    taken: usize,
    end: End,
}

/// How far the end of a stream is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    /// More may come.
    #[default]
    Open,
    /// All bytes have come.
    Reached,
    /// The host was sent the end, too.
    Sent,
}

/// What is to be sent next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    End,
}

impl Tail {
    /// Bytes that may be pushed.
    pub(crate) fn room(&self) -> usize {
        match self.end {
            End::Open => WINDOW - self.bytes.len(),
            End::Reached | End::Sent => 0,
        }
    }

    /// Appends bytes, for which there is room.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let fitting = bytes.len().min(self.room());
        self.bytes.extend(&bytes[..fitting]);
    }

    /// No more bytes come.
    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Reached;
        }
    }

    /// Takes what is to be sent next.
    pub(crate) fn take(&mut self) -> Option<Piece> {
        let length = CHUNK.min(self.bytes.len() - self.taken);
        if length == 0 {
            return (self.end == End::Reached).then_some(Piece::End);
        }
        let piece = self.bytes.range(self.taken..self.taken + length);
        let piece = piece.copied().collect();
        self.taken += length;
        Some(Piece::Bytes(piece))
    }

    /// The end was sent.
    pub(crate) fn set_sent(&mut self) {
        self.end = End::Sent;
    }

    /// Whether everything was sent, with the end.
    pub(crate) fn is_sent(&self) -> bool {
        self.end == End::Sent
    }

    /// The host has consumed so many bytes.
    pub(crate) fn acknowledge(&mut self, bytes: usize) {
        let bytes = bytes.min(self.taken);
        self.forget(bytes);
        self.taken -= bytes;
    }

    /// The offsets from which the stream can be sent.
    pub(crate) fn offsets(&self) -> RangeInclusive<u64> {
        self.before..=self.before.saturating_add(self.bytes.len() as u64)
    }

    /// Everything from this offset on is to be taken, again. An offset that is not among
    /// [`Tail::offsets`] means the next one that is.
    pub(crate) fn resume(&mut self, offset: u64) {
        let received = offset.saturating_sub(self.before);
        self.forget(usize::try_from(received).unwrap_or(usize::MAX));
        self.taken = 0;
        if self.end == End::Sent {
            self.end = End::Reached;
        }
    }

    fn forget(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes.len());
        self.bytes.drain(..bytes);
        self.before = self.before.saturating_add(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<Piece> {
        Some(Piece::Bytes(text.as_bytes().to_vec()))
    }

    #[test]
    fn bytes_are_taken_in_order_and_the_end_after_them() {
        let mut tail = Tail::default();
        assert_eq!(tail.take(), None);
        tail.push(b"one");
        assert_eq!(tail.take(), bytes("one"));
        assert_eq!(tail.take(), None);
        tail.push(b"two");
        tail.finish();
        assert_eq!((tail.take(), tail.take()), (bytes("two"), Some(Piece::End)));
        assert!(!tail.is_sent(), "until the sender says so");
        tail.set_sent();
        assert_eq!((tail.take(), tail.room()), (None, 0));
        tail.push(&[0; 2 * CHUNK]);
        assert_eq!(tail.take(), None, "nothing comes after the end");
    }

    #[test]
    fn the_window_counts_what_was_not_acknowledged() {
        let mut tail = Tail::default();
        tail.push(&vec![7; WINDOW - 10]);
        tail.push(&[8; 100]);
        assert_eq!(tail.room(), 0);
        tail.acknowledge(usize::MAX);
        assert_eq!(tail.room(), 0, "nothing was taken");
        assert_eq!(tail.take(), Some(Piece::Bytes(vec![7; CHUNK])));
        tail.acknowledge(7);
        assert_eq!(tail.room(), 7);
        tail.acknowledge(usize::MAX);
        assert_eq!(tail.room(), CHUNK);
        let rest = std::iter::from_fn(|| tail.take());
        let rest = rest.map(|piece| match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::End => panic!("the end"),
        });
        assert_eq!(rest.sum::<usize>(), WINDOW - CHUNK);
    }

    #[test]
    fn a_stream_resumes_at_any_offset_that_it_still_has() {
        let mut tail = Tail::default();
        tail.push(b"0123456789");
        while tail.take().is_some() {}
        tail.acknowledge(4);
        tail.push(b"ab");
        assert_eq!(tail.offsets(), 4..=12);
        tail.resume(6);
        assert_eq!(tail.offsets(), 6..=12);
        assert_eq!((tail.take(), tail.take()), (bytes("6789ab"), None));
        assert_eq!(tail.room(), WINDOW - 6, "what is sent again counts");
        tail.finish();
        assert_eq!(tail.take(), Some(Piece::End));
        tail.set_sent();
        tail.resume(12);
        assert_eq!(
            (tail.take(), tail.take()),
            (Some(Piece::End), Some(Piece::End))
        );
        tail.resume(u64::MAX);
        assert_eq!(tail.offsets(), 12..=12);
    }
}

//! Frames: a message and its checksum, encoded so that the byte 0 only ends a frame.
//!
//! Invariant: a reader that begins anywhere is in step after the next frame end; a decoder holds at
//! most the longest frame that it accepts.
//! Failure: a frame that is too long, damaged or no message is dropped.

use std::marker::PhantomData;

use bytes::Bytes;
use prost::Message;

/// Ends each frame; COBS keeps it out of the rest.
const END: u8 = 0;

/// Length of the checksum behind a message, in bytes.
const CHECKSUM: usize = 4;

/// A message as a frame. An empty frame goes before it: what a predecessor left unfinished ends
/// there.
pub fn encode(message: &impl Message) -> Bytes {
    let mut plain = message.encode_to_vec();
    let checksum = crc32fast::hash(&plain);
    plain.extend_from_slice(&checksum.to_le_bytes());
    cobs::encode_vec_including_sentinels(&plain).into()
}

/// Reads frames from a stream of bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Most bytes of a frame, encoded.
    limit: usize,
    /// The frame that arrives is longer than the limit.
    is_overlong: bool,
    dropped: u64,
}

impl Decoder {
    /// A decoder of frames whose messages have at most `longest` bytes.
    pub const fn new(longest: usize) -> Self {
        Self {
            buffer: Vec::new(),
            limit: cobs::max_encoding_length(longest + CHECKSUM),
            is_overlong: false,
            dropped: 0,
        }
    }

    /// Further bytes; the messages that they complete.
    pub fn feed<'a, M>(&'a mut self, bytes: &'a [u8]) -> Frames<'a, M> {
        Frames {
            decoder: self,
            rest: bytes,
            message: PhantomData,
        }
    }

    /// Frames that were no message of the protocol.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Forgets a frame that was not completed.
    pub fn reset(&mut self) {
        self.buffer = Vec::new();
        self.is_overlong = false;
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.is_overlong || self.buffer.len() + bytes.len() > self.limit {
            self.is_overlong = true;
            self.buffer = Vec::new();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The message of the frame that has just ended; empty frames are none.
    fn take<M: Message + Default>(&mut self) -> Option<M> {
        let overlong = std::mem::take(&mut self.is_overlong);
        if self.buffer.is_empty() && !overlong {
            return None;
        }
        let frame = std::mem::take(&mut self.buffer);
        let message = (!overlong).then(|| decode(frame)).flatten();
        if message.is_none() {
            self.dropped = self.dropped.saturating_add(1);
        }
        message
    }
}

/// The messages of some bytes.
#[derive(Debug)]
pub struct Frames<'a, M> {
    decoder: &'a mut Decoder,
    rest: &'a [u8],
    message: PhantomData<M>,
}

impl<M: Message + Default> Iterator for Frames<'_, M> {
    type Item = M;

    fn next(&mut self) -> Option<M> {
        while let Some(end) = self.rest.iter().position(|byte| *byte == END) {
            let (frame, rest) = self.rest.split_at(end);
            self.rest = &rest[1..];
            self.decoder.add(frame);
            if let Some(message) = self.decoder.take() {
                return Some(message);
            }
        }
        self.decoder.add(std::mem::take(&mut self.rest));
        None
    }
}

fn decode<M: Message + Default>(mut frame: Vec<u8>) -> Option<M> {
    let length = cobs::decode_in_place(&mut frame).ok()?;
    frame.truncate(length);
    let (message, checksum) = frame.split_last_chunk::<CHECKSUM>()?;
    if crc32fast::hash(message) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let length = message.len();
    let mut frame = Bytes::from(frame);
    frame.truncate(length);
    M::decode(frame).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Data, FromGuest, MAX_FRAME_OF_GUEST, Stream, from_guest};

    fn output(session: u64, data: Vec<u8>) -> FromGuest {
        let data = Data {
            session,
            stream: Stream::Stderr.into(),
            data: data.into(),
            end: false,
        };
        FromGuest::from(data)
    }

    fn read(decoder: &mut Decoder, bytes: &[u8]) -> Vec<FromGuest> {
        decoder.feed(bytes).collect()
    }

    #[test]
    fn a_reader_that_begins_in_the_middle_is_in_step_with_the_next_frame() {
        let first = encode(&output(1, vec![0; 300]));
        let second = output(2, (0..=255).collect());
        for cut in 0..first.len() {
            let bytes = [&first[cut..], &encode(&second)].concat();
            let mut decoder = Decoder::new(MAX_FRAME_OF_GUEST);
            let read = read(&mut decoder, &bytes);
            assert_eq!(read.last(), Some(&second), "cut at {cut}");
            assert_eq!(read.len(), 1 + usize::from(cut <= 1));
        }
    }

    #[test]
    fn a_frame_that_is_too_long_costs_no_memory_and_not_the_next_one() {
        let mut decoder = Decoder::new(1000);
        for _ in 0..1000 {
            assert!(read(&mut decoder, &[7; 1000]).is_empty());
            assert!(decoder.buffer.capacity() <= 2 * decoder.limit);
        }
        let message = output(3, vec![1; 10]);
        assert_eq!(read(&mut decoder, &encode(&message)), [message]);
        assert_eq!(decoder.dropped(), 1);
        let longest = output(3, vec![1; 990]);
        assert_eq!(read(&mut decoder, &encode(&longest)), [longest]);
        assert!(read(&mut decoder, &encode(&output(3, vec![1; 1100]))).is_empty());
    }

    #[test]
    fn a_message_of_a_later_version_is_read_without_what_is_not_known() {
        #[derive(Clone, PartialEq, prost::Message)]
        struct Later {
            #[prost(string, tag = "900")]
            news: String,
        }
        let later = Later {
            news: "x".to_owned(),
        };
        let mut decoder = Decoder::new(1000);
        let read = read(&mut decoder, &encode(&later));
        assert_eq!(read, [FromGuest { kind: None }]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn messages_pass_in_any_pieces(
            messages in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..700)), 0..8),
            piece in 1_usize..600,
        ) {
            let messages: Vec<_> = messages.into_iter().map(|(s, data)| output(s, data)).collect();
            let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
            let mut decoder = Decoder::new(MAX_FRAME_OF_GUEST);
            let pieces = bytes.chunks(piece);
            let read: Vec<_> = pieces.flat_map(|piece| read(&mut decoder, piece)).collect();
            prop_assert_eq!(read, messages);
            prop_assert_eq!(decoder.dropped(), 0);
        }

        #[test]
        fn any_bytes_are_read_and_the_message_after_them(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            piece in 1_usize..600,
        ) {
            let message = output(9, vec![0, 1, 2]);
            let mut decoder = Decoder::new(1000);
            for piece in bytes.chunks(piece) {
                read(&mut decoder, piece);
            }
            let read = read(&mut decoder, &encode(&message));
            prop_assert_eq!(read.last(), Some(&message));
        }

        #[test]
        fn a_damaged_frame_is_no_message(
            at in 0_usize..300, bit in 0_u8..8, data in prop::collection::vec(any::<u8>(), 280..300),
        ) {
            let message = output(9, data);
            let mut bytes = encode(&message).to_vec();
            let last = bytes.len() - 1;
            // The ends of frames are left alone: two frames may come of one.
            let at = at % (last - 1) + 1;
            bytes[at] ^= 1 << bit;
            prop_assume!(bytes[at] != END);
            let mut decoder = Decoder::new(1000);
            prop_assert!(read(&mut decoder, &bytes).is_empty());
            prop_assert_eq!(decoder.dropped(), 1);
        }
    }

    #[test]
    fn kinds_have_a_short_way_to_a_message() {
        let message = output(1, vec![]);
        assert!(matches!(message.kind, Some(from_guest::Kind::Data(_))));
    }
}

//! Messages between the daemon and `vmlet-guest`, in both directions.
//!
//! Invariant: a message that is read can be written, and is read as the same then; what is no
//! message leaves the next one readable.
//! Failure: a panic.

use std::fmt::Debug;

use guestapi::{Decoder, FromGuest, MAX_FRAME, MAX_FRAME_OF_GUEST, ToGuest, encode};
use prost::Message;

/// Reads messages of both directions from raw bytes, and from one frame with the right checksum.
pub fn guest(input: &[u8]) {
    each::<FromGuest>(input, MAX_FRAME_OF_GUEST);
    each::<ToGuest>(input, MAX_FRAME);
}

#[allow(clippy::expect_used, reason = "the panic is the finding")]
fn each<M: Message + Debug + Default + PartialEq>(input: &[u8], longest: usize) {
    let mut decoder = Decoder::new(longest);
    let mut messages: Vec<M> = Vec::new();
    for piece in crate::pieces(input) {
        messages.extend(decoder.feed(piece));
    }
    // The fuzzer finds no checksums.
    let mut frame = vec![0];
    frame.extend(framed(input));
    messages.extend(decoder.feed(&frame));
    for message in messages {
        // A negative number takes ten bytes, and may have come in five.
        let mut decoder = Decoder::new(2 * longest);
        let again = decoder.feed::<M>(&encode(&message)).next();
        assert_eq!(again.expect("a message"), message);
        assert_eq!(decoder.dropped(), 0);
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let checksum = crc32fast::hash(message).to_le_bytes();
    cobs::encode_vec_including_sentinels(&[message, &checksum].concat())
}

//! Frames of SPDY.
//!
//! Invariant: what is read can be written, and is read as the same then.
//! Failure: a panic.

use bytes::BytesMut;
use spdy::{Decoder, Encoder, Frame, MAX_PIECE};
use tokio_util::codec::{Decoder as _, Encoder as _};

/// Reads frames from pieces; writes and reads them again.
///
/// # Panics
///
/// When a frame changes.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn spdy_frames(input: &[u8]) {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    'pieces: for piece in crate::pieces(input) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => break 'pieces,
            }
        }
    }
    let mut encoder = Encoder::new().expect("an encoder");
    let mut again = Decoder::default();
    let mut bytes = BytesMut::new();
    for frame in frames {
        if let Frame::Data { content, .. } = &frame {
            assert!(content.len() <= MAX_PIECE);
        }
        encoder
            .encode(frame.clone(), &mut bytes)
            .expect("bytes of a frame");
        let read = again.decode(&mut bytes).expect("a frame");
        assert_eq!(read.as_ref(), Some(&frame));
        assert!(bytes.is_empty());
    }
}

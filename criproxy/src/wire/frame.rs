//! The first message of a call: five bytes of prefix, then the message.
//!
//! Invariant: the bytes read are kept as they came, so that the call can still be passed on unread.
//! Failure: [`Unreadable`], with everything that was read when the call may still be passed on.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use cri_proto::MAX_MESSAGE;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

/// Bytes before each message: compressed flag, length.
pub const PREFIX: usize = 5;

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The body ended before the message did.
    #[error("the request ends in the middle of a message")]
    Truncated,
    /// Longer than 16 MiB.
    #[error("the message has {0} bytes, more than is allowed")]
    TooLong(u32),
    /// Compressed, or a flag that gRPC does not know.
    #[error("compressed messages are not supported")]
    Compressed,
    /// It did not come in time.
    #[error("no message came in time")]
    Late,
    /// More than one message where one is allowed.
    #[error("more than one message")]
    Surplus,
    /// The connection or the stream broke.
    #[error("the request broke off")]
    Broken,
}

/// What was read from the beginning of a request.
#[derive(Debug)]
pub(crate) struct Opening {
    /// All that was read, as it came.
    pub(crate) chunks: VecDeque<Bytes>,
    /// What was not.
    pub(crate) rest: Incoming,
    /// The first message without its prefix.
    pub(crate) message: Result<Bytes, Unreadable>,
}

/// Reads `body` until its first message is complete, at most for `timeout`.
pub(crate) async fn read_opening(mut body: Incoming, timeout: Duration) -> Opening {
    let mut chunks = VecDeque::new();
    let message = match tokio::time::timeout(timeout, first(&mut body, &mut chunks)).await {
        Ok(message) => message,
        Err(_) => Err(Unreadable::Late),
    };
    Opening {
        chunks,
        rest: body,
        message,
    }
}

impl Opening {
    /// The only message of a call; waits for the end of the request.
    pub(crate) async fn only(mut self, timeout: Duration) -> Result<Bytes, Unreadable> {
        let message = self.message?;
        let read: usize = self.chunks.iter().map(Bytes::len).sum();
        if read != PREFIX + message.len() {
            return Err(Unreadable::Surplus);
        }
        let end = async {
            while !self.rest.is_end_stream() {
                match self.rest.frame().await {
                    None => break,
                    Some(Err(_)) => return Err(Unreadable::Broken),
                    Some(Ok(frame)) if frame.data_ref().is_some_and(|data| !data.is_empty()) => {
                        return Err(Unreadable::Surplus);
                    }
                    Some(Ok(_)) => {}
                }
            }
            Ok(message)
        };
        let ended = tokio::time::timeout(timeout, end).await;
        ended.unwrap_or(Err(Unreadable::Late))
    }
}

async fn first(body: &mut Incoming, chunks: &mut VecDeque<Bytes>) -> Result<Bytes, Unreadable> {
    let mut read = 0;
    let mut wanted = PREFIX;
    loop {
        if read >= PREFIX {
            wanted = PREFIX + length(&head(chunks))?;
        }
        if read >= wanted {
            return Ok(gather(chunks, wanted));
        }
        match body.frame().await {
            None => return Err(Unreadable::Truncated),
            Some(Err(_)) => return Err(Unreadable::Broken),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    read += data.len();
                    chunks.push_back(data);
                }
            }
        }
    }
}

fn head(chunks: &VecDeque<Bytes>) -> [u8; PREFIX] {
    let mut head = [0; PREFIX];
    let bytes = chunks.iter().flat_map(|chunk| chunk.iter());
    for (to, from) in head.iter_mut().zip(bytes) {
        *to = *from;
    }
    head
}

/// The length in a prefix.
fn length(head: &[u8; PREFIX]) -> Result<usize, Unreadable> {
    let [flag, length @ ..] = *head;
    if flag != 0 {
        return Err(Unreadable::Compressed);
    }
    let length = u32::from_be_bytes(length);
    match usize::try_from(length) {
        Ok(bytes) if bytes <= MAX_MESSAGE => Ok(bytes),
        _ => Err(Unreadable::TooLong(length)),
    }
}

fn gather(chunks: &VecDeque<Bytes>, wanted: usize) -> Bytes {
    match chunks.front() {
        Some(chunk) if chunk.len() >= wanted => chunk.slice(PREFIX..wanted),
        _ => {
            let mut whole = BytesMut::with_capacity(wanted);
            for chunk in chunks {
                let left = wanted - whole.len();
                whole.extend_from_slice(&chunk[..left.min(chunk.len())]);
            }
            whole.freeze().slice(PREFIX..)
        }
    }
}

/// The messages of an answer, one after the other.
#[derive(Debug)]
pub(crate) struct Messages {
    body: Incoming,
    buffer: BytesMut,
    trailers: HeaderMap,
}

impl Messages {
    pub(crate) fn new(body: Incoming) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            trailers: HeaderMap::new(),
        }
    }

    /// The next message without its prefix; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Unreadable> {
        loop {
            if let Some(head) = self.buffer.first_chunk() {
                let end = PREFIX + length(head)?;
                if self.buffer.len() >= end {
                    let message = self.buffer.split_to(end).freeze();
                    return Ok(Some(message.slice(PREFIX..)));
                }
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Unreadable::Truncated),
                Some(Err(_)) => return Err(Unreadable::Broken),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().unwrap_or_default(),
                },
            }
        }
    }

    /// What came behind the last message.
    pub(crate) fn trailers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.trailers)
    }
}

/// The message in a body that holds exactly one; an empty body is the empty message.
///
/// # Errors
///
/// [`Unreadable`] for anything but one whole uncompressed message.
pub fn payload(body: &Bytes) -> Result<Bytes, Unreadable> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    let head: &[u8; PREFIX] = body.first_chunk().ok_or(Unreadable::Truncated)?;
    let end = PREFIX + length(head)?;
    match body.len() {
        len if len < end => Err(Unreadable::Truncated),
        len if len > end => Err(Unreadable::Surplus),
        _ => Ok(body.slice(PREFIX..)),
    }
}

/// The prefix of a message of this length.
pub(crate) fn frame_head(length: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(PREFIX);
    head.put_u8(0);
    // More than 4 GiB never comes together: every part is bounded by MAX_MESSAGE.
    head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    head.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_one_message_is_taken_apart_without_copying() {
        let body = Bytes::from_static(b"\0\0\0\0\x03abc");
        assert_eq!(payload(&body).unwrap(), &b"abc"[..]);
    }

    #[test]
    fn a_huge_length_is_refused_before_anything_is_kept() {
        let body = Bytes::from_static(b"\0\xff\xff\xff\xff");
        assert_eq!(payload(&body), Err(Unreadable::TooLong(u32::MAX)));
    }

    #[test]
    fn half_a_prefix_and_half_a_message_are_truncated() {
        for body in [&b"\0\0\0"[..], b"\0\0\0\0\x03ab"] {
            let body = Bytes::from_static(body);
            assert_eq!(payload(&body), Err(Unreadable::Truncated));
        }
    }

    #[test]
    fn a_message_in_single_bytes_is_gathered() {
        let chunks: VecDeque<Bytes> = b"\0\0\0\0\x03abcrest"
            .chunks(1)
            .map(Bytes::from_static)
            .collect();
        assert_eq!(length(&head(&chunks)), Ok(3));
        assert_eq!(gather(&chunks, 8), &b"abc"[..]);
    }
}

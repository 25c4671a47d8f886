//! Frames to bytes and back, for one direction each.
//!
//! Invariant: memory is bounded by [`MAX_CONTROL`] whatever lengths a peer claims: data frames are
//! handed out in pieces as they arrive. Frames come out in the order of their bytes.
//! Failure: [`Error`]; nothing after it can be read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder as Decode, Encoder as Encode};

use crate::Error;
use crate::frame::{Frame, GoAwayStatus, Headers, ResetStatus};
use crate::headers::{Compressor, Decompressor};

/// The version in control frames: SPDY/3.1 has the frames of version 3.
const VERSION: u16 = 3;
/// Largest control frame, in bytes without its first 8.
pub const MAX_CONTROL: usize = 64 * 1024;
/// Largest piece of a data frame, in bytes.
pub const MAX_PIECE: usize = 64 * 1024;
/// Stream ids have 31 bits.
const ID: u32 = 0x7fff_ffff;
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Reads frames.
#[derive(Debug)]
pub struct Decoder {
    headers: Decompressor,
    data: Option<Rest>,
}

/// What is left of a data frame.
#[derive(Debug, Clone, Copy)]
struct Rest {
    stream: u32,
    fin: bool,
    length: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            headers: Decompressor::new(),
            data: None,
        }
    }
}

impl Decode for Decoder {
    type Item = Frame;
    type Error = Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, Error> {
        if let Some(rest) = self.data {
            return Ok(self.piece(rest, bytes));
        }
        let Some(head) = bytes.first_chunk::<8>() else {
            return Ok(None);
        };
        let [a, b, c, d, flags, length @ ..] = *head;
        let first = u32::from_be_bytes([a, b, c, d]);
        let [x, y, z] = length.map(usize::from);
        let length = x << 16 | y << 8 | z;
        if first & !ID == 0 {
            bytes.advance(8);
            let rest = Rest {
                stream: first,
                fin: flags & FIN != 0,
                length,
            };
            return Ok(self.piece(rest, bytes));
        }
        if u16::from_be_bytes([a, b]) & 0x7fff != VERSION {
            return Err(Error::Malformed("version"));
        }
        if length > MAX_CONTROL {
            return Err(Error::TooLarge("control frame"));
        }
        if bytes.len() < 8 + length {
            bytes.reserve(8 + length - bytes.len());
            return Ok(None);
        }
        bytes.advance(8);
        let body = bytes.split_to(length).freeze();
        self.control(u16::from_be_bytes([c, d]), flags, body)
            .map(Some)
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, Error> {
        match self.decode(bytes)? {
            Some(frame) => Ok(Some(frame)),
            None if bytes.is_empty() && self.data.is_none() => Ok(None),
            None => Err(Error::Cut),
        }
    }
}

impl Decoder {
    /// The next piece of a data frame, if any of it has arrived.
    fn piece(&mut self, rest: Rest, bytes: &mut BytesMut) -> Option<Frame> {
        let length = rest.length.min(bytes.len()).min(MAX_PIECE);
        if length == 0 && rest.length > 0 {
            self.data = Some(rest);
            return None;
        }
        let left = rest.length - length;
        self.data = (left > 0).then_some(Rest {
            length: left,
            ..rest
        });
        Some(Frame::Data {
            stream: rest.stream,
            fin: rest.fin && left == 0,
            content: bytes.split_to(length).freeze(),
        })
    }

    fn control(&mut self, kind: u16, flags: u8, mut body: Bytes) -> Result<Frame, Error> {
        let fin = flags & FIN != 0;
        Ok(match kind {
            SYN_STREAM => {
                let stream = number(&mut body)? & ID;
                number(&mut body)?;
                body.try_get_u16().map_err(|_| Error::Malformed("frame"))?;
                let headers = self.headers.headers(&body)?;
                Frame::SynStream {
                    stream,
                    fin,
                    headers,
                }
            }
            SYN_REPLY | HEADERS => {
                let stream = number(&mut body)? & ID;
                let headers = self.headers.headers(&body)?;
                match kind {
                    SYN_REPLY => Frame::SynReply {
                        stream,
                        fin,
                        headers,
                    },
                    _ => Frame::Headers {
                        stream,
                        fin,
                        headers,
                    },
                }
            }
            RST_STREAM => Frame::Reset {
                stream: number(&mut body)? & ID,
                status: ResetStatus(number(&mut body)?),
            },
            PING => Frame::Ping(number(&mut body)?),
            GOAWAY => Frame::GoAway {
                last: number(&mut body)? & ID,
                status: GoAwayStatus(number(&mut body)?),
            },
            other => Frame::Ignored(other),
        })
    }
}

fn number(body: &mut Bytes) -> Result<u32, Error> {
    body.try_get_u32().map_err(|_| Error::Malformed("frame"))
}

/// Writes frames.
#[derive(Debug)]
pub struct Encoder(Compressor);

impl Encoder {
    /// A new direction.
    ///
    /// # Errors
    ///
    /// [`Error::Compression`] when zlib refuses the dictionary.
    pub fn new() -> Result<Self, Error> {
        Ok(Self(Compressor::new()?))
    }

    /// Appends a control frame with headers; `before` is what its kind has in front of the header block.
    fn with_headers(
        &mut self,
        kind: u16,
        fin: bool,
        before: &[u8],
        headers: &Headers,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let mut body = before.to_vec();
        self.0.block(headers, &mut body)?;
        control(kind, fin, &body, out)
    }
}

impl Encode<Frame> for Encoder {
    type Error = Error;

    fn encode(&mut self, frame: Frame, out: &mut BytesMut) -> Result<(), Error> {
        match frame {
            Frame::SynStream {
                stream,
                fin,
                headers,
            } => {
                let mut before = (stream & ID).to_be_bytes().to_vec();
                before.extend_from_slice(&[0; 6]);
                self.with_headers(SYN_STREAM, fin, &before, &headers, out)
            }
            Frame::SynReply {
                stream,
                fin,
                headers,
            } => self.with_headers(SYN_REPLY, fin, &(stream & ID).to_be_bytes(), &headers, out),
            Frame::Headers {
                stream,
                fin,
                headers,
            } => self.with_headers(HEADERS, fin, &(stream & ID).to_be_bytes(), &headers, out),
            Frame::Reset { stream, status } => {
                control(RST_STREAM, false, &two(stream & ID, status.0), out)
            }
            Frame::Ping(id) => control(PING, false, &id.to_be_bytes(), out),
            Frame::GoAway { last, status } => {
                control(GOAWAY, false, &two(last & ID, status.0), out)
            }
            Frame::Data {
                stream,
                fin,
                content,
            } => {
                let length = length(content.len())?;
                out.reserve(8 + content.len());
                out.put_u32(stream & ID);
                out.put_u8(if fin { FIN } else { 0 });
                out.put_slice(&length);
                out.put_slice(&content);
                Ok(())
            }
            Frame::Ignored(kind) => control(kind, false, &[], out),
        }
    }
}

fn two(first: u32, second: u32) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

fn control(kind: u16, fin: bool, body: &[u8], out: &mut BytesMut) -> Result<(), Error> {
    let length = length(body.len())?;
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u8(if fin { FIN } else { 0 });
    out.put_slice(&length);
    out.put_slice(body);
    Ok(())
}

/// A length in 24 bits.
fn length(length: usize) -> Result<[u8; 3], Error> {
    let length = u32::try_from(length).map_err(|_| Error::TooLarge("frame"))?;
    match length.to_be_bytes() {
        [0, rest @ ..] => Ok(rest),
        _ => Err(Error::TooLarge("frame")),
    }
}

#[cfg(test)]
mod tests;

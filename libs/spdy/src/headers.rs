//! Header blocks: length-prefixed names and values, compressed by zlib with the dictionary of
//! SPDY/3. Each direction of a session has one compression context.
//!
//! Invariant: every block that arrives is decompressed, also that of a refused stream, since the
//! next block refers to it. A block has at most [`MAX_BLOCK`] bytes and [`MAX_HEADERS`] headers
//! after decompression, whatever it claims.
//! Failure: [`Error`]; the context is lost then, and so is the session.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::Error;
use crate::frame::Headers;

/// The dictionary of SPDY/3.
const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");
/// Largest decompressed block, in bytes.
pub(crate) const MAX_BLOCK: usize = 64 * 1024;
/// Most headers of a block.
pub(crate) const MAX_HEADERS: usize = 256;

/// Compresses the blocks of one direction.
#[derive(Debug)]
pub(crate) struct Compressor(Compress);

impl Compressor {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut context = Compress::new(Compression::default(), true);
        context
            .set_dictionary(DICTIONARY)
            .map_err(|_| Error::Compression)?;
        Ok(Self(context))
    }

    /// Appends the block of `headers` to `out`.
    pub(crate) fn block(&mut self, headers: &Headers, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut plain = Vec::new();
        put(&mut plain, headers.len())?;
        for (name, value) in headers {
            for text in [name, value] {
                put(&mut plain, text.len())?;
                plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut rest = plain.as_slice();
        loop {
            // A full buffer would be taken for an unfinished flush.
            out.reserve(rest.len() + 64);
            let before = self.0.total_in();
            self.0
                .compress_vec(rest, out, FlushCompress::Sync)
                .map_err(|_| Error::Compression)?;
            let taken = usize::try_from(self.0.total_in() - before).unwrap_or(usize::MAX);
            rest = rest.get(taken..).unwrap_or_default();
            if rest.is_empty() && out.len() < out.capacity() {
                return Ok(());
            }
        }
    }
}

fn put(out: &mut Vec<u8>, length: usize) -> Result<(), Error> {
    let length = u32::try_from(length).map_err(|_| Error::TooLarge("header block"))?;
    out.extend_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Decompresses the blocks of one direction.
#[derive(Debug)]
pub(crate) struct Decompressor(Decompress);

impl Decompressor {
    pub(crate) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// The headers of a block.
    pub(crate) fn headers(&mut self, block: &[u8]) -> Result<Headers, Error> {
        parse(&self.plain(block)?)
    }

    fn plain(&mut self, block: &[u8]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            let taken = self.0.total_in();
            let made = plain.len();
            let status = self
                .0
                .decompress_vec(rest, &mut plain, FlushDecompress::Sync);
            let taken = usize::try_from(self.0.total_in() - taken).unwrap_or(usize::MAX);
            rest = rest.get(taken..).unwrap_or_default();
            match status {
                Ok(Status::Ok | Status::BufError) => {}
                Ok(Status::StreamEnd) => return Err(Error::Compression),
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(DICTIONARY)
                        .map_err(|_| Error::Compression)?;
                    continue;
                }
                Err(_) => return Err(Error::Compression),
            }
            if plain.len() > MAX_BLOCK {
                return Err(Error::TooLarge("header block"));
            }
            let is_stuck = taken == 0 && plain.len() == made;
            if rest.is_empty() && plain.len() < plain.capacity() {
                return Ok(plain);
            }
            if is_stuck && plain.len() < plain.capacity() {
                return Err(Error::Compression);
            }
            plain.reserve(4096);
        }
    }
}

/// Reads a decompressed block.
fn parse(mut plain: &[u8]) -> Result<Headers, Error> {
    let count = take_length(&mut plain)?;
    if count > MAX_HEADERS {
        return Err(Error::TooLarge("number of headers"));
    }
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = take_text(&mut plain)?;
        let value = take_text(&mut plain)?;
        if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(Error::Malformed("header name"));
        }
        headers.push((name, value));
    }
    if plain.is_empty() {
        Ok(headers)
    } else {
        Err(Error::Malformed("header block"))
    }
}

fn take_length(plain: &mut &[u8]) -> Result<usize, Error> {
    let (length, rest) = plain
        .split_first_chunk::<4>()
        .ok_or(Error::Malformed("header block"))?;
    *plain = rest;
    usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Error::TooLarge("header"))
}

fn take_text(plain: &mut &[u8]) -> Result<String, Error> {
    let length = take_length(plain)?;
    let (text, rest) = plain
        .split_at_checked(length)
        .ok_or(Error::Malformed("header block"))?;
    *plain = rest;
    String::from_utf8(text.to_vec()).map_err(|_| Error::Malformed("header text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn blocks_of_one_direction_share_their_context() {
        let mut out = Compressor::new().unwrap();
        let mut back = Decompressor::new();
        let mut lengths = Vec::new();
        for _ in 0..3 {
            let sent = headers(&[("streamtype", "stdout"), ("requestid", "17")]);
            let mut block = Vec::new();
            out.block(&sent, &mut block).unwrap();
            assert_eq!(back.headers(&block).unwrap(), sent);
            lengths.push(block.len());
        }
        assert!(lengths[1] < lengths[0], "{lengths:?}");
    }

    #[test]
    fn a_small_block_cannot_grow_beyond_the_bound() {
        let bomb = headers(&[("a", &"0".repeat(MAX_BLOCK + 1))]);
        let mut block = Vec::new();
        Compressor::new().unwrap().block(&bomb, &mut block).unwrap();
        assert!(block.len() < 1024);
        let refused = Decompressor::new().headers(&block);
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    }

    #[test]
    fn a_block_that_lies_about_its_lengths_is_refused() {
        for plain in [
            &[0, 0, 0, 1][..],
            &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, b'a'],
            &[0, 0, 1, 1],
            &[0, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 1, b'A', 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0, 0],
        ] {
            assert!(parse(plain).is_err(), "{plain:?}");
        }
        assert!(Decompressor::new().headers(b"no zlib").is_err());
    }
}

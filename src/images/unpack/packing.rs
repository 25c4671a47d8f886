//! Compression of downloaded files: gzip, xz and zstd, found by content.
//!
//! Invariant: a reader takes bounded memory, whatever the file's headers ask for.
//! Failure: a file that is cut or broken ends with an I/O error of the kind `InvalidData` or
//! `UnexpectedEof`.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Dictionary and tables of xz, in KiB: `xz -9` needs 64 MiB.
const XZ_MEMORY: u32 = 100 << 10;
/// Window of zstd, in bytes: `zstd -19` needs 8 MiB, `--ultra -22` 128 MiB.
const ZSTD_WINDOW: u64 = 128 << 20;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::images) enum Packing {
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    /// The packing of a file that begins with these bytes.
    pub(in crate::images) fn detect(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // A frame that readers skip, as some tools write in front.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// A reader of what is in the file.
    pub(super) fn reader<'a>(self, packed: impl BufRead + 'a) -> Box<dyn Read + 'a> {
        match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Xz => Box::new(XzReader::new_mem_limit(packed, true, XZ_MEMORY)),
            Self::Zstd => Box::new(Frames::new(packed)),
        }
    }
}

/// All frames of a zstd file.
struct Frames<R> {
    packed: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(packed: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW);
        Self {
            packed,
            decoder,
            in_frame: false,
        }
    }

    /// Begins the next frame; returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.packed.fill_buf()?.is_empty() {
            use FrameDecoderError::ReadFrameHeaderError as Header;
            match self.decoder.reset(&mut self.packed) {
                Ok(()) => return Ok(true),
                Err(Header(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let mut skipped = (&mut self.packed).take(length.into());
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.begin()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.in_frame = false;
                continue;
            }
            let some = BlockDecodingStrategy::UptoBytes(buffer.len().max(1));
            self.decoder
                .decode_blocks(&mut self.packed, some)
                .map_err(invalid)?;
        }
    }
}

fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

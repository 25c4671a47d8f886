//! What the bytes of a file hash to by the publisher: SHA-256, by which the store knows files, or SHA-512,
//! which some publish alone.
//!
//! Invariant: the written form is the algorithm, `:` and lower-case hexadecimal digits, as names of container
//! images have it.
//! Failure: [`ParseChecksum`] for any other text.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;

use sha2::Digest as _;

use super::digest::{Digest, ParseDigest, bytes_of, hex};

/// In front of the digits of a SHA-512.
pub(super) const SHA512: &str = "sha512:";
/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;

/// SHA-512 of a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha512([u8; 64]);

/// What a file's bytes hash to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// As the store computes it of each file.
    Sha256(Digest),
    /// Computed where it is needed.
    Sha512(Sha512),
}

/// A text that is no checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a checksum is sha256: and 64, or sha512: and 128 lower-case hexadecimal digits")]
pub struct ParseChecksum;

impl Sha512 {
    /// Reads 128 lower-case hexadecimal digits.
    pub(super) fn from_hex(text: &str) -> Result<Self, ParseDigest> {
        bytes_of(text).map(Self)
    }

    /// That of a whole file. Blocks.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        let mut hasher = sha2::Sha512::new();
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        loop {
            match file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(Self(hasher.finalize().into())),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    at += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Display for Sha512 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SHA512}{}", hex(&self.0))
    }
}

impl fmt::Debug for Sha512 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha512 {
    type Err = ParseDigest;

    fn from_str(text: &str) -> Result<Self, ParseDigest> {
        Self::from_hex(text.strip_prefix(SHA512).ok_or(ParseDigest)?)
    }
}

impl From<Digest> for Checksum {
    fn from(digest: Digest) -> Self {
        Self::Sha256(digest)
    }
}

impl From<Sha512> for Checksum {
    fn from(digest: Sha512) -> Self {
        Self::Sha512(digest)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(digest) => digest.fmt(f),
            Self::Sha512(digest) => digest.fmt(f),
        }
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Checksum {
    type Err = ParseChecksum;

    fn from_str(text: &str) -> Result<Self, ParseChecksum> {
        let short = text.parse().map(Self::Sha256);
        short
            .or_else(|_| text.parse().map(Self::Sha512))
            .map_err(|_| ParseChecksum)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// As `printf abc | sha512sum` has it.
    const ABC: &str = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                       2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";

    #[test]
    fn a_checksum_survives_being_written_and_read() {
        for text in [
            format!("sha256:{}", "0a".repeat(32)),
            format!("sha512:{ABC}"),
        ] {
            let checksum: Checksum = text.parse().unwrap();
            assert_eq!(checksum.to_string(), text);
        }
        for text in [
            String::new(),
            format!("sha512:{}", "0a".repeat(32)),
            format!("sha256:{ABC}"),
            format!("sha512:{}", ABC.to_uppercase()),
            format!("sha512:{ABC}0"),
            format!("sha384:{}", "0a".repeat(48)),
        ] {
            assert_eq!(text.parse::<Checksum>(), Err(ParseChecksum), "{text}");
        }
    }

    #[test]
    fn a_file_is_hashed_from_its_beginning_wherever_it_was_written_last() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let hashed = Sha512::of_file(&file).unwrap();
        assert_eq!(hashed.to_string(), format!("sha512:{ABC}"));
        let long = vec![7; PIECE + 1];
        file.write_all(&long).unwrap();
        let expected = sha2::Sha512::digest([b"abc".as_slice(), &long].concat());
        assert_eq!(Sha512::of_file(&file).unwrap(), Sha512(expected.into()));
    }
}

//! The SHA-256 of an image file: the image's identity beside its names.
//!
//! Invariant: the written form is `sha256:` and 64 lower-case hexadecimal digits, nothing else.
//! Failure: [`ParseDigest`] for any other text.

use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "sha256:";
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// SHA-256 of an image file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is sha256: and 64 lower-case hexadecimal digits")]
pub struct ParseDigest;

impl Digest {
    /// The digest that these 32 bytes are.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads 64 lower-case hexadecimal digits without the `sha256:` in front.
    pub fn from_hex(text: &str) -> Result<Self, ParseDigest> {
        bytes_of(text).map(Self)
    }

    /// The 64 lower-case hexadecimal digits: also the file's name in the store.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

/// The bytes that so many lower-case hexadecimal digits are.
pub(super) fn bytes_of<const N: usize>(text: &str) -> Result<[u8; N], ParseDigest> {
    let text = text.as_bytes();
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return Err(ParseDigest);
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Ok(bytes)
}

/// The lower-case hexadecimal digits of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(HEX_DIGITS[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)])
        .collect()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ParseDigest;

    fn from_str(text: &str) -> Result<Self, ParseDigest> {
        Self::from_hex(text.strip_prefix(PREFIX).ok_or(ParseDigest)?)
    }
}

const fn nibble(digit: u8) -> Result<u8, ParseDigest> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(ParseDigest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_being_written_and_read() {
        let digest = Digest::from_bytes(std::array::from_fn(|i| (i * 9).to_le_bytes()[0]));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!(digest.to_string().starts_with("sha256:0009121b"));
    }

    #[test]
    fn other_spellings_are_refused() {
        let hex = "ab".repeat(32);
        for text in [
            hex.clone(),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{hex}0"),
            format!("sha256:{}é", &hex[2..]),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(ParseDigest), "{text}");
        }
    }
}

//! What is in a file, and who may do what with it.
//!
//! Invariant: a file that is replaced keeps mode and owner; one without an owner here belongs to the
//! user of this program.
//! Failure: none.

use sha2::{Digest as _, Sha256};

/// Bytes, mode and owner of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
    /// User and group.
    pub(crate) owner: Option<(u32, u32)>,
}

impl Content {
    /// A file of our own.
    pub(crate) fn new(bytes: impl Into<Vec<u8>>, mode: u32) -> Self {
        Self {
            bytes: bytes.into(),
            mode,
            owner: None,
        }
    }

    /// The same file with another text.
    pub(crate) fn with_text(&self, text: String) -> Self {
        Self {
            bytes: text.into_bytes(),
            ..self.clone()
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    pub(crate) fn digest(&self) -> String {
        digest(&self.bytes)
    }

    /// Whether both have the same bytes and mode.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.mode == other.mode
    }
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! The key that leaves a console.
//!
//! Invariant: one byte, which no guest receives; or none, so that the guest receives all keys.
//! Failure: [`EscapeError`] with the forms that exist.

use std::fmt;
use std::str::FromStr;

/// The key that leaves; Ctrl-], as in telnet and virsh, unless the user names another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Escape(Option<u8>);

/// A text that names no key.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no key: use ^ and a letter (^] is Ctrl-]), one ASCII character, or none")]
pub(crate) struct EscapeError(String);

impl Escape {
    /// All keys are for the guest.
    pub(super) const NONE: Self = Self(None);

    /// Where the key is among these bytes.
    pub(super) fn position(self, bytes: &[u8]) -> Option<usize> {
        let key = self.0?;
        bytes.iter().position(|&byte| byte == key)
    }

    /// How the user leaves, behind a text.
    pub(crate) fn hint(self) -> String {
        match self.0 {
            Some(_) => format!("; {self} leaves"),
            None => String::new(),
        }
    }
}

impl Default for Escape {
    fn default() -> Self {
        Self(Some(b']' & 0x1f))
    }
}

impl FromStr for Escape {
    type Err = EscapeError;

    fn from_str(text: &str) -> Result<Self, EscapeError> {
        let key = match text.as_bytes() {
            b"none" => None,
            [b'^', letter @ (b'@'..=b'_' | b'a'..=b'z')] => Some(letter & 0x1f),
            [key] if key.is_ascii() => Some(*key),
            _ => return Err(EscapeError(text.to_owned())),
        };
        Ok(Self(key))
    }
}

impl fmt::Display for Escape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key @ 0..0x20) => write!(f, "Ctrl-{}", char::from(key | 0x40)),
            Some(key) => write!(f, "{}", char::from(key)),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_letter_with_ctrl_or_a_character() {
        let shown = |text: &str| {
            text.parse()
                .map(|key: Escape| (key.to_string(), key.0))
                .ok()
        };
        assert_eq!(shown("^]"), Some(("Ctrl-]".to_owned(), Some(0x1d))));
        assert_eq!(shown("^a"), Some(("Ctrl-A".to_owned(), Some(1))));
        assert_eq!(shown("~"), Some(("~".to_owned(), Some(b'~'))));
        assert_eq!(shown("none"), Some(("none".to_owned(), None)));
        for text in ["", "^^^", "^1", "ab", "\u{e4}"] {
            assert_eq!(shown(text), None, "{text:?}");
        }
        assert_eq!(Escape::default(), "^]".parse().unwrap());
        assert_eq!(Escape::NONE.position(b"\x1d"), None);
    }
}

//! Ethernet addresses.
//!
//! Invariant: a [`Mac`] is six bytes and prints as lower-case hexadecimal with colons.
//! Failure: text that is not six hexadecimal bytes does not parse.

use std::fmt;
use std::io::Read;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac([u8; 6]);

/// Text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an Ethernet address")]
pub struct ParseMacError(String);

impl Mac {
    /// The address with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The bytes in transmission order.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// Whether it is of one station; the address of six zeros is of none.
    #[must_use]
    pub(crate) fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// The IPv6 address that a station makes of it (RFC 4291, appendix A).
    #[must_use]
    pub(crate) const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_octets([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ])
    }

    /// A random unicast address of the locally administered range.
    ///
    /// # Errors
    /// When `/dev/urandom` cannot be read.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 6];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        bytes[0] = (bytes[0] & 0b1111_1100) | 0b0000_0010;
        Ok(Self(bytes))
    }
}

impl From<[u8; 6]> for Mac {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseMacError(text.chars().take(32).collect());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(wrong)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Mac {
    type Error = ParseMacError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_does_not_matter_when_reading_and_is_lower_when_printing() {
        let mac: Mac = "AA:bB:00:01:02:fF".parse().unwrap();
        assert_eq!(mac.to_string(), "aa:bb:00:01:02:ff");
        assert_eq!(mac, Mac::new([0xaa, 0xbb, 0, 1, 2, 0xff]));
    }

    #[test]
    fn anything_but_six_bytes_is_refused() {
        for text in [
            "",
            "aa",
            "aa:bb:cc:dd:ee",
            "aa:bb:cc:dd:ee:ff:00",
            "+a:bb:cc:dd:ee:ff",
            "é:bb:cc:dd:ee:ff",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn random_addresses_are_local_unicast_and_differ() {
        let a = Mac::random().unwrap();
        let b = Mac::random().unwrap();
        assert_ne!(a, b);
        assert_eq!(a.bytes()[0] & 3, 2);
    }
}

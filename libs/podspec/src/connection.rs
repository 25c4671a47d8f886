//! The network settings of a pod for its guest.
//!
//! Invariant: a pod that says nothing is connected to all that its network plugins give it.
//! Failure: an [`AnnotationError`] that names the annotation and what is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::annotations::{AnnotationError, Annotations, Key};

/// The NICs that a guest is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// One for each link that plugins leave; the first has this hardware address, if one is
    /// requested.
    Pod(Option<StationMac>),
    /// None. The pod itself has its network all the same.
    None,
}

/// An Ethernet address that one station can have: not zero, no group. Shows in lower case with
/// colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StationMac([u8; 6]);

impl Connection {
    /// Reads the annotations.
    ///
    /// # Errors
    ///
    /// [`AnnotationError`] for a value that makes no sense, or an address without a NIC.
    pub fn from_pod(annotations: &BTreeMap<String, String>) -> Result<Self, AnnotationError> {
        let given = Annotations::new(annotations);
        let mac = given.get(Key::MacAddress)?;
        match given.get(Key::Network)? {
            None | Some(Wanted::Pod) => Ok(Self::Pod(mac)),
            Some(Wanted::None) if mac.is_none() => Ok(Self::None),
            Some(Wanted::None) => {
                let reason = format!("{} leaves no NIC to give it to", Key::Network.names().0);
                Err(given.refuse(Key::MacAddress, reason))
            }
        }
    }
}

impl Default for Connection {
    fn default() -> Self {
        Self::Pod(None)
    }
}

enum Wanted {
    Pod,
    None,
}

impl FromStr for Wanted {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "pod" => Ok(Self::Pod),
            "none" => Ok(Self::None),
            _ => Err("\"pod\" and \"none\" are allowed"),
        }
    }
}

impl FromStr for StationMac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let wrong =
            "six pairs of hexadecimal digits with colons are needed, as in 52:54:00:12:34:56";
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            // The number parser alone would take a sign.
            let part = parts
                .next()
                .filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(part.ok_or(wrong)?, 16).map_err(|_| wrong)?;
        }
        if parts.next().is_some() {
            return Err(wrong);
        }
        if bytes[0] & 1 == 1 {
            return Err("this is the address of a group, a NIC has one of its own");
        }
        if bytes == [0; 6] {
            return Err("no NIC has this address");
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for StationMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: &str = "vmlet.dev/network";
    const MAC: &str = "vmlet.dev/mac-address";

    fn read(pairs: &[(&str, &str)]) -> Result<Connection, AnnotationError> {
        let map = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Connection::from_pod(&map.collect())
    }

    #[test]
    fn a_guest_is_connected_unless_its_pod_disables_the_network() {
        assert_eq!(read(&[]), Ok(Connection::default()));
        assert_eq!(read(&[(NETWORK, "pod")]), Ok(Connection::Pod(None)));
        assert_eq!(read(&[(NETWORK, "none")]), Ok(Connection::None));
        for odd in ["", "false", "None"] {
            let error = read(&[(NETWORK, odd)]).unwrap_err();
            assert_eq!(error.name, NETWORK, "{odd}");
        }
    }

    #[test]
    fn an_address_is_that_of_one_station_in_full() {
        let Ok(Connection::Pod(Some(mac))) = read(&[(MAC, "52:54:00:aB:34:56")]) else {
            panic!("a good address is refused");
        };
        assert_eq!(mac.to_string(), "52:54:00:ab:34:56");
        for odd in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52-54-00-12-34-56",
            "+2:54:00:12:34:56",
            "52:54:00:12:34:56,x=y",
            "53:54:00:12:34:56",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
        ] {
            assert_eq!(read(&[(MAC, odd)]).unwrap_err().name, MAC, "{odd}");
        }
    }

    #[test]
    fn an_address_needs_a_nic() {
        let both = [(MAC, "52:54:00:12:34:56"), (NETWORK, "none")];
        assert_eq!(read(&both).unwrap_err().name, MAC);
    }
}

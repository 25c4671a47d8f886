//! Exchanges a hand-off token for the NICs of a sandbox.
//!
//! Invariant: whatever the other side says, a NIC that comes out of here has a unicast MAC address
//! and an MTU that cannot be read as anything else on QEMU's command line, and exactly one
//! descriptor.
//! Failure: an answer that is late, malformed, or does not match its descriptors is refused as a
//! whole. The types mirror the tap manager's; `tests/fixtures/handoff.json` holds both to the same
//! text.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use fdpass::Connection;
use serde::{Deserialize, Serialize};

/// Most NICs of one machine: the slots 0x10 to 0x17.
const MAX_NICS: usize = 8;

const PROTOCOL_VERSION: u32 = 1;

/// Largest message in bytes.
const MAX_MESSAGE: usize = 128 * 1024;

/// The range of MTUs of virtio-net: the minimum of IPv4 up to its 16-bit field.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the tap manager did not answer in time")]
    TimedOut,
    #[error("reach the tap manager")]
    Connect(#[source] fdpass::Error),
    #[error("send the request")]
    Send(#[source] fdpass::Error),
    #[error("receive the answer")]
    Receive(#[source] fdpass::Error),
    #[error("the tap manager closed the connection")]
    Closed,
    #[error("the message cannot be read")]
    Message(#[source] serde_json::Error),
    #[error("refused ({code}): {message}")]
    Refused { code: String, message: String },
    #[error("{nics} NICs came with {descriptors} descriptors")]
    Mismatch { nics: usize, descriptors: usize },
    #[error("{0} NICs are more than {MAX_NICS}")]
    TooMany(usize),
    #[error("{0:?} is not a unicast MAC address")]
    Mac(String),
    #[error("MTU {0} is out of range")]
    Mtu(u32),
}

/// A NIC of the guest.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) tap: OwnedFd,
    pub(crate) mac: Mac,
    /// Bytes, within [`MTU`].
    pub(crate) mtu: u32,
}

/// A unicast MAC address; shows as lower-case hex with colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mac([u8; 6]);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Request {
    version: u32,
    token: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok { nics: Vec<WireNic> },
    Error(WireError),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WireNic {
    mac: String,
    mtu: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WireError {
    code: String,
    message: String,
}

/// Requests the NICs of `token`; all of it within `deadline`.
pub(crate) fn fetch(socket: &Path, token: &str, deadline: Duration) -> Result<Vec<Nic>, Error> {
    let end = Instant::now() + deadline;
    let connection = Connection::connect_within(socket, deadline).map_err(Error::connect)?;
    let request = Request {
        version: PROTOCOL_VERSION,
        token: token.into(),
    };
    let bytes = serde_json::to_vec(&request).map_err(Error::Message)?;
    remaining(&connection, end)?;
    connection.send(&bytes, &[]).map_err(Error::send)?;
    remaining(&connection, end)?;
    let message = connection
        .recv(MAX_MESSAGE)
        .map_err(Error::receive)?
        .ok_or(Error::Closed)?;
    match serde_json::from_slice(&message.bytes).map_err(Error::Message)? {
        Reply::Ok { nics } => pair(&nics, message.fds),
        Reply::Error(WireError { code, message }) => Err(Error::Refused { code, message }),
    }
}

/// Gives the next call what is left of the deadline.
fn remaining(connection: &Connection, end: Instant) -> Result<(), Error> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::TimedOut);
    }
    connection.set_deadline(Some(left)).map_err(Error::Connect)
}

fn pair(nics: &[WireNic], descriptors: Vec<OwnedFd>) -> Result<Vec<Nic>, Error> {
    if nics.len() > MAX_NICS {
        return Err(Error::TooMany(nics.len()));
    }
    if nics.len() != descriptors.len() {
        return Err(Error::Mismatch {
            nics: nics.len(),
            descriptors: descriptors.len(),
        });
    }
    let one = |(nic, tap): (&WireNic, OwnedFd)| {
        let mtu = Some(nic.mtu)
            .filter(|mtu| MTU.contains(mtu))
            .ok_or(Error::Mtu(nic.mtu))?;
        Ok(Nic {
            tap,
            mac: nic.mac.parse()?,
            mtu,
        })
    };
    nics.iter().zip(descriptors).map(one).collect()
}

impl Error {
    fn connect(error: fdpass::Error) -> Self {
        Self::late(error).unwrap_or_else(Self::Connect)
    }

    fn send(error: fdpass::Error) -> Self {
        Self::late(error).unwrap_or_else(Self::Send)
    }

    fn receive(error: fdpass::Error) -> Self {
        Self::late(error).unwrap_or_else(Self::Receive)
    }

    fn late(error: fdpass::Error) -> Result<Self, fdpass::Error> {
        if matches!(error, fdpass::Error::TimedOut) {
            Ok(Self::TimedOut)
        } else {
            Err(error)
        }
    }
}

impl FromStr for Mac {
    type Err = Error;

    /// Takes `xx:xx:xx:xx:xx:xx` with hex digits of either case, and nothing else.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Mac(text.chars().take(40).collect());
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().unwrap_or_default();
            // `from_str_radix` alone would take a sign.
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        let multicast = octets[0] & 1 == 1;
        if parts.next().is_some() || multicast || octets == [0; 6] {
            return Err(wrong());
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use serde::Deserialize;

    use super::{Error, Mac, Reply, Request, WireError, WireNic, fetch, pair};

    #[derive(Deserialize)]
    struct Fixture {
        request: Request,
        reply_ok: Reply,
        reply_error: Reply,
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn the_messages_are_those_of_the_shared_fixture() {
        let text = include_str!("../../tests/fixtures/handoff.json");
        let fixture: Fixture = serde_json::from_str(text).unwrap();
        let raw: serde_json::Value = serde_json::from_str(text).unwrap();
        let nic = |mac: &str, mtu| WireNic {
            mac: mac.into(),
            mtu,
        };
        let nics = vec![
            nic("0a:58:0a:01:00:05", 1500),
            nic("0a:58:0a:02:00:07", 8950),
        ];
        assert_eq!(fixture.reply_ok, Reply::Ok { nics });
        let refusal = WireError {
            code: "not_found".into(),
            message: "no such token".into(),
        };
        assert_eq!(fixture.reply_error, Reply::Error(refusal));
        assert_eq!(fixture.request.token.len(), 64);
        assert_eq!(
            serde_json::to_value(&fixture.request).unwrap(),
            raw["request"]
        );
    }

    #[test]
    fn a_server_that_never_answers_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _silent = fdpass::Listener::bind(&path, 0o600).unwrap();
        let outcome = fetch(&path, "token", Duration::from_millis(50));
        assert!(matches!(outcome, Err(Error::TimedOut)), "{outcome:?}");
    }

    #[test]
    fn only_a_unicast_address_in_full_is_a_mac() {
        assert_eq!(
            "0A:58:0a:01:00:fF".parse::<Mac>().unwrap().to_string(),
            "0a:58:0a:01:00:ff"
        );
        for bad in [
            "",
            "0a:58:0a:01:00",
            "0a:58:0a:01:00:05:06",
            "0a:58:0a:01:00:5",
            "0a-58-0a-01-00-05",
            "+a:58:0a:01:00:05",
            "0a:58:0a:01:00:05,romfile=/etc/shadow",
            "0a:58:0a:01:00:05\n",
            "0g:58:0a:01:00:05",
            "01:58:0a:01:00:05",
            "00:00:00:00:00:00",
        ] {
            assert!(matches!(bad.parse::<Mac>(), Err(Error::Mac(_))), "{bad}");
        }
    }

    #[test]
    fn nics_and_descriptors_must_match_in_number_and_range() {
        let nic = |mtu| WireNic {
            mac: "0a:58:0a:01:00:05".into(),
            mtu,
        };
        assert!(pair(&[nic(68), nic(65_535)], vec![null(), null()]).is_ok());
        assert!(matches!(
            pair(&[nic(1500)], vec![]),
            Err(Error::Mismatch { .. })
        ));
        assert!(matches!(
            pair(&[], vec![null()]),
            Err(Error::Mismatch { .. })
        ));
        assert!(matches!(
            pair(&[nic(67)], vec![null()]),
            Err(Error::Mtu(67))
        ));
        assert!(matches!(
            pair(&[nic(65_536)], vec![null()]),
            Err(Error::Mtu(65_536))
        ));
        let nine: Vec<WireNic> = (0..9).map(|_| nic(1500)).collect();
        let descriptors = (0..9).map(|_| null()).collect();
        assert!(matches!(pair(&nine, descriptors), Err(Error::TooMany(9))));
    }
}

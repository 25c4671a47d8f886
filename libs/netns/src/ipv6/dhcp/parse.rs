//! Requests as bytes.
//!
//! Invariant: the library's parser gets fixed parts whole and only options that it can be trusted
//! with; some of its others panic on short values. Counts are bounded.
//! Failure: what is cut anywhere is no request.

use dhcproto::Decodable;
use dhcproto::v6::Message;

/// Associations of a request that are answered, and addresses of one that are checked.
const MAX_ASSOCIATIONS: usize = 8;

mod code {
    pub(super) const NON_TEMPORARY: u16 = 3;
    pub(super) const TEMPORARY: u16 = 4;
    pub(super) const ADDRESS: u16 = 5;
    pub(super) const PREFIXES: u16 = 25;
    pub(super) const RAPID_COMMIT: u16 = 14;
    /// Client, server, list of wanted options, rapid commit, name: read as they are.
    pub(super) const READ: [u16; 5] = [1, 2, 6, RAPID_COMMIT, 39];
}

/// Parses the payload of a datagram; `None` unless it is a client's message.
#[must_use]
pub fn decode(datagram: &[u8]) -> Option<Message> {
    let (fixed, mut left) = datagram.split_at_checked(4)?;
    let mut known = fixed.to_vec();
    let mut associations = 0;
    while !left.is_empty() {
        let (name, value, after) = option(left)?;
        left = after;
        let kept = match name {
            // The parser would take a value for further options, among them those that it must not
            // get.
            code::RAPID_COMMIT if !value.is_empty() => return None,
            name if code::READ.contains(&name) => value.to_vec(),
            code::NON_TEMPORARY => association(value, 12)?,
            code::TEMPORARY => value.get(..4)?.to_vec(),
            code::PREFIXES => value.get(..12)?.to_vec(),
            _ => continue,
        };
        if !code::READ.contains(&name) {
            associations += 1;
            if associations > MAX_ASSOCIATIONS {
                continue;
            }
        }
        put(&mut known, name, &kept);
    }
    Message::from_bytes(&known).ok()
}

/// An association's fixed part with the addresses in it, and nothing else.
fn association(value: &[u8], fixed: usize) -> Option<Vec<u8>> {
    let (fixed, mut left) = value.split_at_checked(fixed)?;
    let mut kept = fixed.to_vec();
    let mut addresses = 0;
    while !left.is_empty() {
        let (name, value, after) = option(left)?;
        left = after;
        if name == code::ADDRESS && addresses < MAX_ASSOCIATIONS {
            addresses += 1;
            put(&mut kept, name, value.get(..24)?);
        }
    }
    Some(kept)
}

fn option(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    let [a, b, c, d] = *head;
    let (value, after) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
    Some((u16::from_be_bytes([a, b]), value, after))
}

fn put(bytes: &mut Vec<u8>, name: u16, value: &[u8]) {
    // Cannot be longer than what came with a length of two bytes.
    let length = u16::try_from(value.len()).unwrap_or_default();
    bytes.extend(name.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(value);
}

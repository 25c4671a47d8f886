//! Converts requests to replies: no socket, no clock.
//!
//! Invariant: bytes of the guest reach the option parser only after [`decode`] has checked the
//! fixed fields and dropped every option that we do not read; what is copied into an answer is
//! bounded.
//! Failure: whatever is malformed or not for us gets no answer.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};

use super::SERVER_ADDRESS;
use super::lease::{LEASE_SECONDS, Lease, REBIND_SECONDS, RENEW_SECONDS};

const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// What every client must be able to receive, less IP and UDP headers.
const SMALLEST_LIMIT: usize = 576 - 28;
/// Kept free of identifiers: for the times of a lease and its mask, or for the reason of a refusal.
const ESSENTIAL: usize = 40;
/// BOOTP's length, below which some clients drop answers.
const SMALLEST_ANSWER: usize = 300;

mod code {
    pub(super) const PAD: u8 = 0;
    pub(super) const END: u8 = 255;
    /// Requested address, type, server, parameter list, size, client id, machine id.
    pub(super) const READ: [u8; 7] = [50, 53, 54, 55, 57, 61, 97];

    /// The length of a value, if there is only one: the parser reads that much of it, whatever
    /// length the option has.
    pub(super) const fn length(name: u8) -> Option<usize> {
        match name {
            53 => Some(1),
            57 => Some(2),
            50 | 54 => Some(4),
            _ => None,
        }
    }
}

/// Parses a datagram; `None` unless it is a DHCP request from an Ethernet client that is not
/// relayed.
#[must_use]
pub fn decode(datagram: &[u8]) -> Option<Message> {
    let (fixed, rest) = datagram.split_at_checked(FIXED)?;
    let options = rest.strip_prefix(&COOKIE)?;
    // Request, Ethernet, six bytes of address.
    if fixed.get(..3)? != [1, 1, 6] {
        return None;
    }
    let mut parts: Vec<(u8, &[u8])> = Vec::new();
    let mut left = options;
    loop {
        match *left {
            [] | [code::END, ..] => break,
            [code::PAD, ref rest @ ..] => left = rest,
            [name, length, ref rest @ ..] => {
                let (value, after) = rest.split_at_checked(usize::from(length))?;
                let only = code::length(name);
                if only.is_some_and(|only| only != value.len()) {
                    return None;
                }
                // None of them means anything without a value (RFC 2132).
                if code::READ.contains(&name) && !value.is_empty() {
                    // One that cannot have parts counts as it is written last.
                    parts.retain(|(other, _)| only.is_none() || *other != name);
                    parts.push((name, value));
                }
                left = after;
            }
            [_] => return None,
        }
    }
    // RFC 3396: options of one kind are parts of one value, wherever they are. The parser joins those
    // that follow each other.
    parts.sort_by_key(|(name, _)| *name);
    let mut known = [fixed, &COOKIE].concat();
    for (name, value) in parts {
        known.extend([name, u8::try_from(value.len()).ok()?]);
        known.extend(value);
    }
    known.push(code::END);
    let message = Message::from_bytes(&known).ok()?;
    message.giaddr().is_unspecified().then_some(message)
}

/// Bytes of an answer, padded to what old clients expect; `None` when it cannot be encoded.
#[must_use]
pub fn encode(message: &Message) -> Option<Vec<u8>> {
    let mut bytes = message.to_vec().ok()?;
    if bytes.len() < SMALLEST_ANSWER {
        bytes.resize(SMALLEST_ANSWER, code::PAD);
    }
    Some(bytes)
}

/// Whether a request comes from the NIC that the lease is for.
pub(super) fn is_of(lease: &Lease, request: &Message) -> bool {
    // `chaddr` slices by the length field, so that must be looked at first.
    request.opcode() == Opcode::BootRequest
        && request.hlen() == 6
        && request.chaddr() == lease.mac.bytes()
}

/// The answer to `request`, if it deserves one.
///
/// DISCOVER gets an OFFER, REQUEST an ACK, or a NAK when it is about another address than the
/// lease's, INFORM an ACK without times. RELEASE and DECLINE get none, nor does anything that is
/// for another client or another server.
#[must_use]
pub fn reply(lease: &Lease, request: &Message) -> Option<Message> {
    if !is_of(lease, request) {
        return None;
    }
    let server = match request.opts().get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
        _ => None,
    };
    if server.is_some_and(|server| server != SERVER_ADDRESS) {
        return None;
    }
    match request.opts().msg_type()? {
        MessageType::Discover => Some(answer(lease, request, MessageType::Offer)),
        MessageType::Request => {
            let kind = match claimed(request)? {
                address if address == lease.address.addr() => MessageType::Ack,
                _ => MessageType::Nak,
            };
            Some(answer(lease, request, kind))
        }
        MessageType::Inform => Some(inform(lease, request)),
        _ => None,
    }
}

/// The address that a REQUEST is about: the one wanted, or the one in use.
fn claimed(request: &Message) -> Option<Ipv4Addr> {
    match request.opts().get(OptionCode::RequestedIpAddress) {
        Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
        _ => Some(request.ciaddr()).filter(|address| !address.is_unspecified()),
    }
}

fn blank(request: &Message, kind: MessageType) -> Message {
    let unset = Ipv4Addr::UNSPECIFIED;
    let mut message =
        Message::new_with_id(request.xid(), unset, unset, unset, unset, request.chaddr());
    message
        .set_opcode(Opcode::BootReply)
        .set_htype(request.htype())
        .set_flags(request.flags());
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(SERVER_ADDRESS));
    // RFC 6842 and 4578: these go back as they came, if the client can receive that much. The
    // longest client identifier fits the smallest limit.
    let limit = limit(request) - ESSENTIAL;
    for echoed in [
        OptionCode::ClientIdentifier,
        OptionCode::ClientMachineIdentifier,
    ] {
        if let Some(option) = request.opts().get(echoed) {
            add(&mut message, option.clone(), limit);
        }
    }
    message
}

/// The largest message that the client can receive, in bytes.
fn limit(request: &Message) -> usize {
    let limit = match request.opts().get(OptionCode::MaxMessageSize) {
        Some(DhcpOption::MaxMessageSize(size)) => usize::from(*size).saturating_sub(28),
        _ => 0,
    };
    limit.max(SMALLEST_LIMIT)
}

/// Adds an option, unless the message would be longer than `limit`.
fn add(message: &mut Message, option: DhcpOption, limit: usize) {
    let code = OptionCode::from(&option);
    message.opts_mut().insert(option);
    if !message.to_vec().is_ok_and(|bytes| bytes.len() <= limit) {
        message.opts_mut().remove(code);
    }
}

fn answer(lease: &Lease, request: &Message, kind: MessageType) -> Message {
    let mut message = blank(request, kind);
    if kind == MessageType::Nak {
        let words = "the address belongs to another network".to_owned();
        message.opts_mut().insert(DhcpOption::Message(words));
        // The client may have no usable address to be reached at.
        message.set_flags(request.flags().set_broadcast());
        return message;
    }
    message
        .set_yiaddr(lease.address.addr())
        .set_siaddr(SERVER_ADDRESS);
    if kind == MessageType::Ack {
        message.set_ciaddr(request.ciaddr());
    }
    let options = message.opts_mut();
    options.insert(DhcpOption::AddressLeaseTime(LEASE_SECONDS));
    options.insert(DhcpOption::Renewal(RENEW_SECONDS));
    options.insert(DhcpOption::Rebinding(REBIND_SECONDS));
    describe(lease, request, &mut message);
    message
}

fn inform(lease: &Lease, request: &Message) -> Message {
    let mut message = blank(request, MessageType::Ack);
    message.set_ciaddr(request.ciaddr());
    describe(lease, request, &mut message);
    message
}

/// Adds what the lease specifies about the network as long as the client can receive it.
fn describe(lease: &Lease, request: &Message, message: &mut Message) {
    let limit = limit(request);
    let requested = match request.opts().get(OptionCode::ParameterRequestList) {
        Some(DhcpOption::ParameterRequestList(list)) => Some(list.as_slice()),
        _ => None,
    };
    for option in lease.options(requested) {
        add(message, option, limit);
    }
}

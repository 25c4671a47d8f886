//! Converts DHCPv6 requests to replies: no socket, no clock (RFC 8415).
//!
//! Invariant: bytes of the guest reach the option parser only after [`decode`] has dropped every
//! option that we do not read; what is copied into an answer is bounded. A guest holds the
//! addresses of the lease or none, whatever identifiers it shows: there is no other client on its
//! link.
//! Failure: whatever is malformed or not for us gets no answer.

use std::net::Ipv6Addr;

use dhcproto::Encodable;
use dhcproto::v6::{
    DhcpOption, IAAddr, IANA, IAPD, IATA, Message, MessageType, ORO, OptionCode, Status,
    StatusCode, UnknownOption,
};

use super::SERVER_MAC;
use super::lease::Lease;

mod parse;

pub use parse::decode;

/// Seconds an address is good for; the other two as fractions that RFC 8415 recommends.
const LEASE_SECONDS: u32 = 86_400;
const RENEW_SECONDS: u32 = LEASE_SECONDS / 2;
const REBIND_SECONDS: u32 = LEASE_SECONDS / 5 * 4;
/// RFC 8415 allows a DUID no more.
const MAX_DUID: usize = 130;
/// Maximum number of addresses of the lease that are sent; more would not fit.
const MAX_ADDRESSES: usize = 16;
/// What fits the smallest packet of IPv6.
const LIMIT: usize = 1280 - 48;

/// Bytes of an answer; `None` when it cannot be encoded.
#[must_use]
pub fn encode(message: &Message) -> Option<Vec<u8>> {
    message.to_vec().ok()
}

/// Our identifier: of kind link-layer address, on Ethernet.
fn server_id() -> Vec<u8> {
    [&[0, 3, 0, 1][..], &SERVER_MAC.bytes()].concat()
}

/// The answer to `request`, if it deserves one.
///
/// SOLICIT gets an ADVERTISE, or a REPLY when the client wants it at once; REQUEST, RENEW and
/// REBIND a REPLY with the addresses of the lease, and with an end to any other; CONFIRM whether
/// the addresses are the lease's; RELEASE and DECLINE an acknowledgement; INFORMATION-REQUEST
/// everything but addresses.
#[must_use]
pub fn reply(lease: &Lease, request: &Message) -> Option<Message> {
    let client = match request.opts().get(OptionCode::ClientId) {
        Some(DhcpOption::ClientId(id)) if (1..=MAX_DUID).contains(&id.len()) => Some(id.clone()),
        Some(_) => return None,
        None => None,
    };
    let for_us = match request.opts().get(OptionCode::ServerId) {
        Some(DhcpOption::ServerId(id)) if *id == server_id() => Some(true),
        Some(_) => return None,
        None => None,
    };
    let kind = request.msg_type();
    let (must_name_client, must_name_us) = match kind {
        MessageType::Solicit | MessageType::Confirm | MessageType::Rebind => (true, Some(false)),
        MessageType::Request | MessageType::Renew | MessageType::Release | MessageType::Decline => {
            (true, Some(true))
        }
        MessageType::InformationRequest => (false, None),
        _ => return None,
    };
    if must_name_client && client.is_none()
        || must_name_us.is_some_and(|must| must != for_us.is_some())
    {
        return None;
    }
    let rapid = request.opts().get(OptionCode::RapidCommit).is_some();
    let answer_kind = match kind {
        MessageType::Solicit if !rapid => MessageType::Advertise,
        _ => MessageType::Reply,
    };
    let mut answer = Message::new_with_id(answer_kind, request.xid());
    let options = answer.opts_mut();
    options.insert(DhcpOption::ServerId(server_id()));
    options.extend_with(client.map(DhcpOption::ClientId));
    match kind {
        MessageType::Confirm => options.insert(confirm(lease, request)?),
        MessageType::Release | MessageType::Decline => {
            options.insert(status(Status::Success, "noted"));
        }
        MessageType::InformationRequest => {}
        _ => {
            let renewing = matches!(kind, MessageType::Renew | MessageType::Rebind);
            options.extend_with(assignments(lease, request, renewing));
            if kind == MessageType::Solicit {
                // There is no other server to wait for.
                options.insert(DhcpOption::Preference(u8::MAX));
                options.extend_with(rapid.then_some(DhcpOption::RapidCommit));
            }
        }
    }
    if !matches!(
        kind,
        MessageType::Confirm | MessageType::Release | MessageType::Decline
    ) {
        describe(lease, request, &mut answer);
    }
    Some(answer)
}

trait Extend {
    fn extend_with(&mut self, more: impl IntoIterator<Item = DhcpOption>);
}

impl Extend for dhcproto::v6::DhcpOptions {
    fn extend_with(&mut self, more: impl IntoIterator<Item = DhcpOption>) {
        more.into_iter().for_each(|option| self.insert(option));
    }
}

/// One answer per association: one gets the lease, there is nothing for others.
fn assignments(lease: &Lease, request: &Message, renewing: bool) -> Vec<DhcpOption> {
    let none = |kind, words| [status(kind, words)].into_iter().collect();
    let associations = request.opts().iter().filter_map(|option| match option {
        DhcpOption::IANA(ia) => Some(ia),
        _ => None,
    });
    // The one that has an address of ours already; their order says nothing.
    let lucky = associations.min_by_key(|ia| (!held(ia).any(|address| lease.has(address)), ia.id));
    let mut lucky = lucky.map(|ia| ia.id);
    let answer = |option: &DhcpOption| match option {
        DhcpOption::IANA(ia) if lucky == Some(ia.id) => {
            lucky = None;
            let stale = held(ia).filter(|address| renewing && !lease.has(*address));
            let stale = stale.map(|address| address_option(address, 0));
            let own = lease
                .addresses
                .iter()
                .take(MAX_ADDRESSES)
                .map(|net| address_option(net.addr(), LEASE_SECONDS));
            Some(DhcpOption::IANA(IANA {
                id: ia.id,
                t1: RENEW_SECONDS,
                t2: REBIND_SECONDS,
                opts: own.chain(stale).collect(),
            }))
        }
        DhcpOption::IANA(ia) => Some(DhcpOption::IANA(IANA {
            id: ia.id,
            t1: 0,
            t2: 0,
            opts: none(
                Status::NoAddrsAvail,
                "the pod's addresses are in another association",
            ),
        })),
        DhcpOption::IATA(ia) => Some(DhcpOption::IATA(IATA {
            id: ia.id,
            opts: none(Status::NoAddrsAvail, "there are no temporary addresses"),
        })),
        DhcpOption::IAPD(ia) => Some(DhcpOption::IAPD(IAPD {
            id: ia.id,
            t1: 0,
            t2: 0,
            opts: none(Status::NoPrefixAvail, "there are no prefixes"),
        })),
        _ => None,
    };
    request.opts().iter().filter_map(answer).collect()
}

fn confirm(lease: &Lease, request: &Message) -> Option<DhcpOption> {
    let mut addresses = request.opts().iter().filter_map(|option| match option {
        DhcpOption::IANA(ia) => Some(held(ia)),
        _ => None,
    });
    let mut addresses = addresses.by_ref().flatten().peekable();
    addresses.peek()?;
    Some(if addresses.all(|address| lease.has(address)) {
        status(Status::Success, "the addresses are yours")
    } else {
        status(Status::NotOnLink, "the addresses belong to another network")
    })
}

fn held(ia: &IANA) -> impl Iterator<Item = Ipv6Addr> + '_ {
    ia.opts.iter().filter_map(|option| match option {
        DhcpOption::IAAddr(held) => Some(held.addr),
        _ => None,
    })
}

fn address_option(addr: Ipv6Addr, seconds: u32) -> DhcpOption {
    DhcpOption::IAAddr(IAAddr {
        addr,
        preferred_life: seconds,
        valid_life: seconds,
        opts: dhcproto::v6::DhcpOptions::new(),
    })
}

fn status(status: Status, words: &str) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode {
        status,
        msg: words.to_owned(),
    })
}

/// Adds what the lease specifies besides addresses as long as it fits.
fn describe(lease: &Lease, request: &Message, answer: &mut Message) {
    let mut options = Vec::new();
    if !lease.dns.is_empty() {
        options.push(DhcpOption::DomainNameServers(lease.dns.clone()));
    }
    let requested = match request.opts().get(OptionCode::ORO) {
        Some(DhcpOption::ORO(ORO { opts })) => opts.contains(&OptionCode::ClientFqdn),
        _ => false,
    };
    if let Some(name) = lease.hostname()
        && (requested || request.opts().get(OptionCode::ClientFqdn).is_some())
    {
        /// RFC 4704: the server updates no DNS.
        const NO_UPDATE: u8 = 0b100;
        let value = [&[NO_UPDATE][..], &name].concat();
        options.push(DhcpOption::Unknown(UnknownOption::new(
            OptionCode::ClientFqdn,
            value,
        )));
    }
    let searches = lease.searches().concat();
    if !searches.is_empty() {
        // The library would compress the names, which RFC 8415 forbids.
        let option = UnknownOption::new(OptionCode::DomainSearchList, searches);
        options.push(DhcpOption::Unknown(option));
    }
    for option in options {
        let mut longer = answer.clone();
        longer.opts_mut().insert(option);
        if longer.to_vec().is_ok_and(|bytes| bytes.len() <= LIMIT) {
            *answer = longer;
        }
    }
}

#[cfg(test)]
mod tests;

//! Requests of guests for addresses.
//!
//! Invariant: only the NIC of the lease gets an answer; its fields, read here a second time by the
//! tables of the RFCs, name addresses of the lease or none, repeat the request's transaction, and
//! fit what the client can receive. A request that was read and written is answered in the same
//! way.
//! Failure: a panic.

use dhcproto::{Decodable, Encodable};
use netns::ipv6::fuzzing::{Inbound, Notice, dhcp_frame, parse_frame, parse_notice};
use netns::{Mac, dhcp, ipv6};

const MAC: [u8; 6] = [0x0a, 0xbb, 0xcc, 0, 0, 7];
/// Lengths of headers: Ethernet, IPv6, UDP.
const HEADERS: usize = 14 + 40 + 8;

fn lease4(kind: u8) -> dhcp::Lease {
    let far = kind & 1 == 1;
    let lots = if kind & 2 == 0 { 2 } else { 40 };
    let text = |text: &str| text.parse().ok();
    dhcp::Lease {
        mac: Mac::new(MAC),
        address: ipnet(if far { "10.1.0.5/32" } else { "10.1.0.5/24" }),
        gateway: text(if far { "169.254.1.1" } else { "10.1.0.1" }),
        routes: vec![(ipnet("10.2.0.0/16"), text("10.1.0.9"))],
        mtu: 1450,
        dns: text("10.96.0.10").into_iter().collect(),
        searches: (0..lots)
            .map(|n| format!("ns{n}.svc.cluster.local"))
            .collect(),
        hostname: Some("vm-1".to_owned()),
    }
}

#[allow(clippy::expect_used, reason = "a constant")]
fn ipnet<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a network")
}

/// A datagram to the port of DHCPv4 servers; its first byte chooses the lease.
///
/// # Panics
///
/// When an answer is not of the lease, or not for the client.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn dhcp4(input: &[u8]) {
    let Some((kind, datagram)) = input.split_first() else {
        return;
    };
    let lease = lease4(*kind);
    let Some(request) = dhcp::decode(datagram) else {
        return;
    };
    assert_eq!(request.xid().to_be_bytes(), datagram[4..8]);
    assert_eq!(datagram[..3], [1, 1, 6], "a request over Ethernet");
    assert_eq!(datagram[24..28], [0; 4], "no relay");
    let answer = dhcp::reply(&lease, &request);
    let ours = datagram[28..34] == MAC;
    let Some(answer) = answer else { return };
    assert!(ours, "an answer for another client");
    let again = request.to_vec().expect("a request");
    let again = dhcp::decode(&again).expect("a request");
    assert_eq!(dhcp::reply(&lease, &again).as_ref(), Some(&answer));

    let wire = dhcp::encode(&answer).expect("an answer");
    assert!(wire.len() >= 300);
    assert_eq!(wire[..3], [2, 1, 6]);
    assert_eq!(wire[4..8], datagram[4..8]);
    assert_eq!(wire[28..34], MAC);
    let own = lease.address.addr().octets();
    let given: [u8; 4] = [wire[16], wire[17], wire[18], wire[19]];
    assert!([[0; 4], own].contains(&given), "{given:?}");
    assert_eq!(wire[236..240], [99, 130, 83, 99]);
    let options = options4(&wire[240..]);
    let option = |code: u8| {
        options
            .iter()
            .find(|(c, _)| *c == code)
            .map(|(_, v)| &v[..])
    };
    let kind = option(53).expect("a kind");
    assert!([[2], [5], [6]].iter().any(|k| k == kind), "{kind:?}");
    assert_eq!(option(54), Some(&dhcp::SERVER_ADDRESS.octets()[..]));
    assert_eq!(kind == [6], option(56).is_some(), "a refusal has a reason");
    if given == own {
        assert_eq!(option(1), Some(&lease.address.netmask().octets()[..]));
        assert!(option(51).is_some(), "a lease has an end");
    }
    // Identifiers go back as they came.
    let asked = options4(&datagram[240..]);
    for code in [61, 97] {
        let of = |all: &[(u8, Vec<u8>)]| -> Vec<u8> {
            let same = all.iter().filter(|(c, _)| *c == code);
            same.flat_map(|(_, value)| value.clone()).collect()
        };
        let back = of(&options);
        assert!(back.is_empty() || back == of(&asked), "option {code}");
    }
    let largest = asked
        .iter()
        .find(|(code, value)| *code == 57 && value.len() == 2);
    let largest = largest.map_or(0, |(_, v)| usize::from(u16::from_be_bytes([v[0], v[1]])));
    let used = wire
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    assert!(used <= largest.max(576) - 28, "{used} bytes for {largest}");
}

/// Codes and values, up to the end.
fn options4(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        match bytes {
            [] | [255, ..] | [_] => return all,
            [0, rest @ ..] => bytes = rest,
            [code, length, rest @ ..] => {
                let length = usize::from(*length).min(rest.len());
                all.push((*code, rest[..length].to_vec()));
                bytes = &rest[length..];
            }
        }
    }
}

fn lease6(kind: u8) -> ipv6::Lease {
    let lots = if kind & 2 == 0 { 2 } else { 60 };
    ipv6::Lease {
        mac: Mac::new(MAC),
        addresses: vec![ipnet("fd00::5/64"), ipnet("fd01::5/128")],
        routes: Vec::new(),
        mtu: 1450,
        dns: vec![ipnet("fd00::a")],
        searches: (0..lots)
            .map(|n| format!("ns{n}.svc.cluster.local"))
            .collect(),
        hostname: Some("vm-1".to_owned()),
    }
}

/// A datagram to the port of DHCPv6 servers; its first byte chooses the lease.
///
/// # Panics
///
/// When an answer is not of the lease, or not for the client.
pub fn dhcp6(input: &[u8]) {
    if let Some((kind, datagram)) = input.split_first() {
        answered6(&lease6(*kind), datagram);
    }
}

/// The answer to a datagram, checked.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
fn answered6(lease: &ipv6::Lease, datagram: &[u8]) -> Option<Vec<u8>> {
    let request = ipv6::decode(datagram)?;
    let answer = ipv6::reply(lease, &request)?;
    let again = request.to_vec().expect("a request");
    let again = ipv6::decode(&again).expect("a request");
    assert_eq!(ipv6::reply(lease, &again).as_ref(), Some(&answer));
    let wire = ipv6::encode(&answer).expect("an answer");
    assert!(dhcproto::v6::Message::from_bytes(&wire).is_ok());
    assert!([2, 7].contains(&wire[0]), "kind {}", wire[0]);
    assert_eq!(wire[1..4], datagram[1..4], "the transaction");
    let options = options6(&wire[4..]).expect("whole options");
    let asked = options6(&datagram[4..]).expect("whole options");
    let values = |all: &[(u16, Vec<u8>)], code| -> Vec<Vec<u8>> {
        let same = all.iter().filter(|(c, _)| *c == code);
        same.map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(values(&options, 2).len(), 1, "one server");
    let client = values(&options, 1);
    assert!(client.len() <= 1);
    assert!(
        client
            .iter()
            .all(|id| id.len() <= 130 && values(&asked, 1).contains(id))
    );
    let mut holders = 0;
    for association in values(&options, 3) {
        let inside = options6(&association[12..]).expect("whole options");
        let mut live = 0;
        for address in values(&inside, 5) {
            let is_ours = lease
                .addresses
                .iter()
                .any(|net| net.addr().octets() == address[..16]);
            let lifetime = &address[16..24];
            assert!(
                is_ours || lifetime == [0; 8],
                "an address that is not of the lease"
            );
            live += usize::from(lifetime != [0; 8]);
        }
        assert!(live == 0 || live == lease.addresses.len());
        holders += usize::from(live > 0);
        let id = &association[..4];
        assert!(values(&asked, 3).iter().any(|asked| asked.starts_with(id)));
    }
    assert!(holders <= 1, "{holders} associations have the addresses");
    Some(wire)
}

/// Codes and values; `None` when one is cut off.
fn options6(mut bytes: &[u8]) -> Option<Vec<(u16, Vec<u8>)>> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        all.push((
            u16::from_be_bytes([head[0], head[1]]),
            rest.get(..length)?.to_vec(),
        ));
        bytes = &rest[length..];
    }
    bytes.is_empty().then_some(all)
}

/// A frame of a guest, or of a neighbour of its pod; its first byte chooses the lease.
///
/// # Panics
///
/// When a frame counts that is not of the NIC, an answer does not lead to it, or a notice of a
/// neighbour is about more than one station.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn ipv6_frames(input: &[u8]) {
    let Some((kind, frame)) = input.split_first() else {
        return;
    };
    match parse_notice(frame) {
        Some(Notice::Router { address, mac }) => {
            assert!(address.is_unicast_link_local() && frame[6..12] == mac.bytes());
        }
        Some(Notice::Neighbour { target, mac }) => {
            assert!(!target.is_multicast() && mac.bytes()[0] & 1 == 0);
        }
        None => {}
    }
    let lease = lease6(*kind);
    let Some(inbound) = parse_frame(frame, lease.mac) else {
        return;
    };
    assert_eq!(frame[6..12], MAC, "a frame of another NIC");
    let Inbound::Dhcp { from, payload } = inbound else {
        return;
    };
    assert!(from.is_unicast_link_local());
    assert!(frame.len() >= HEADERS + payload.len());
    assert!(
        frame
            .windows(payload.len().max(1))
            .any(|part| part == payload)
            || payload.is_empty()
    );
    let Some(answer) = answered6(&lease, payload) else {
        return;
    };
    let sent = dhcp_frame(lease.mac, from, &answer).expect("a frame");
    assert_eq!(sent[..6], MAC);
    assert_eq!(sent[12..14], [0x86, 0xdd]);
    assert_eq!(sent[38..54], from.octets());
    assert_eq!(
        sent[54..58],
        [547_u16.to_be_bytes(), 546_u16.to_be_bytes()].concat()
    );
    assert_eq!(sent[HEADERS..], answer);
    assert_eq!(checksum(&sent), 0xffff, "the checksum of the datagram");
}

/// The sum of RFC 1071 over pseudo header and datagram.
fn checksum(frame: &[u8]) -> u32 {
    let datagram = &frame[54..];
    let length = u32::try_from(datagram.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let all = [&frame[22..54], &length, &[0, 0, 0, 17], datagram, &[0]].concat();
    let sum = all.chunks_exact(2).fold(0, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16)
}

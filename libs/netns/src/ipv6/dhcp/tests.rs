//! Answers to every kind of request, as values.
//!
//! Invariant: answers are checked after a trip through their bytes, as a client would see them.
//! Failure: property tests print the packet that broke them.

use dhcproto::Decodable;
use dhcproto::v6::DhcpOptions;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::ipv6::tests::{ip, lease};

const OURS: &[u8] = &[0, 3, 0, 1, 2, 0, 0xa9, 0xfe, 0xfe, 1];
const OTHERS: &[u8] = &[0, 3, 0, 1, 9, 9, 9, 9, 9, 9];

fn request(kind: MessageType, server: Option<&[u8]>, more: Vec<DhcpOption>) -> Message {
    let mut message = Message::new_with_id(kind, [1, 2, 3]);
    let options = message.opts_mut();
    options.insert(DhcpOption::ClientId(vec![0, 1, 7]));
    let server = server.map(|id| DhcpOption::ServerId(id.to_vec()));
    let all = server.into_iter().chain(more);
    all.for_each(|option| options.insert(option));
    message
}

fn association(id: u32, held: &[&str]) -> DhcpOption {
    let address = |text: &&str| {
        DhcpOption::IAAddr(IAAddr {
            addr: ip(text),
            preferred_life: 1,
            valid_life: 1,
            opts: DhcpOptions::new(),
        })
    };
    DhcpOption::IANA(IANA {
        id,
        t1: 0,
        t2: 0,
        opts: held.iter().map(address).collect(),
    })
}

/// The answer as it goes over the wire.
fn answer_to(request: &Message) -> Option<Message> {
    let request = decode(&request.to_vec().unwrap())?;
    let bytes = encode(&reply(&lease(), &request)?).unwrap();
    Some(Message::from_bytes(&bytes).unwrap())
}

#[test]
fn nothing_is_hidden_in_a_rapid_commit() {
    let solicit = request(MessageType::Solicit, None, vec![DhcpOption::RapidCommit]);
    let whole = solicit.to_vec().unwrap();
    assert!(decode(&whole).is_some());
    // Options of vendors with a length of 0, on which the parser panics.
    let hidden = [&[0, 14, 0, 8][..], &[0, 17, 0, 0, 0, 0, 0, 0]].concat();
    let plain = [0, 14, 0, 0];
    let at = whole.windows(4).position(|four| four == plain).unwrap();
    let request = [&whole[..at], &hidden, &whole[at + 4..]].concat();
    assert_eq!(decode(&request), None);
}

/// An association's number, addresses with their lifetimes, and statuses.
type Given = (u32, Vec<(String, u32)>, Vec<Status>);

fn given(answer: &Message) -> Vec<Given> {
    let one = |option: &DhcpOption| {
        let DhcpOption::IANA(ia) = option else {
            return None;
        };
        let mut addresses = Vec::new();
        let mut statuses = Vec::new();
        for option in ia.opts.iter() {
            match option {
                DhcpOption::IAAddr(a) => addresses.push((a.addr.to_string(), a.valid_life)),
                DhcpOption::StatusCode(status) => statuses.push(status.status),
                _ => {}
            }
        }
        Some((ia.id, addresses, statuses))
    };
    answer.opts().iter().filter_map(one).collect()
}

fn ours() -> Vec<(String, u32)> {
    vec![("fd00:7::5".to_owned(), 86_400)]
}

#[test]
fn an_advertise_contains_the_whole_cni_result() {
    let answer = answer_to(&request(
        MessageType::Solicit,
        None,
        vec![association(9, &[])],
    ))
    .unwrap();
    assert_eq!(
        (answer.msg_type(), answer.xid()),
        (MessageType::Advertise, [1, 2, 3])
    );
    assert_eq!(given(&answer), [(9, ours(), vec![])]);
    let has = |option: &DhcpOption| answer.opts().iter().any(|found| found == option);
    assert!(has(&DhcpOption::ClientId(vec![0, 1, 7])));
    assert!(has(&DhcpOption::ServerId(OURS.to_vec())));
    assert!(has(&DhcpOption::Preference(255)));
    assert!(has(&DhcpOption::DomainNameServers(vec![ip("fd00:96::a")])));
    let names = vec!["a.b.".parse().unwrap(), "c.".parse().unwrap()];
    assert!(has(&DhcpOption::DomainSearchList(names)));
    assert!(answer.opts().get(OptionCode::ClientFqdn).is_none());
}

#[test]
fn a_rapid_commit_gets_its_addresses_at_once() {
    let rapid = vec![association(9, &[]), DhcpOption::RapidCommit];
    let answer = answer_to(&request(MessageType::Solicit, None, rapid)).unwrap();
    assert_eq!(answer.msg_type(), MessageType::Reply);
    assert!(answer.opts().get(OptionCode::RapidCommit).is_some());
    assert_eq!(given(&answer), [(9, ours(), vec![])]);
}

#[test]
fn the_host_name_is_sent_to_clients_that_request_it() {
    let wanted = DhcpOption::ORO(ORO {
        opts: vec![OptionCode::ClientFqdn],
    });
    let answer = answer_to(&request(
        MessageType::InformationRequest,
        None,
        vec![wanted],
    ))
    .unwrap();
    let bytes = answer.to_vec().unwrap();
    let name = [0, 39, 0, 6, 4, 4, b'v', b'm', b'-', b'1'];
    assert!(
        bytes.windows(name.len()).any(|window| window == name),
        "{bytes:?}"
    );
}

#[rstest]
#[case::request(MessageType::Request, Some(OURS), true)]
#[case::request_of_another_server(MessageType::Request, Some(OTHERS), false)]
#[case::request_without_a_server(MessageType::Request, None, false)]
#[case::renew(MessageType::Renew, Some(OURS), true)]
#[case::rebind(MessageType::Rebind, None, true)]
#[case::rebind_that_names_a_server(MessageType::Rebind, Some(OURS), false)]
#[case::solicit_that_names_a_server(MessageType::Solicit, Some(OURS), false)]
#[case::release(MessageType::Release, Some(OURS), true)]
#[case::decline(MessageType::Decline, Some(OURS), true)]
#[case::information(MessageType::InformationRequest, None, true)]
#[case::an_answer(MessageType::Reply, Some(OURS), false)]
#[case::an_offer(MessageType::Advertise, Some(OURS), false)]
#[case::relayed(MessageType::Unknown(77), None, false)]
fn a_request_is_judged_by_its_kind_and_server(
    #[case] kind: MessageType,
    #[case] server: Option<&[u8]>,
    #[case] answered: bool,
) {
    let answer = answer_to(&request(kind, server, vec![association(1, &["fd00:7::5"])]));
    assert_eq!(answer.is_some(), answered);
    if let Some(answer) = answer {
        assert_eq!(answer.msg_type(), MessageType::Reply);
    }
}

#[test]
fn a_request_without_a_client_id_is_refused() {
    let mut unnamed = Message::new_with_id(MessageType::Solicit, [1, 2, 3]);
    unnamed.opts_mut().insert(association(1, &[]));
    assert_eq!(answer_to(&unnamed), None);
    unnamed
        .opts_mut()
        .insert(DhcpOption::ClientId(vec![7; 131]));
    assert_eq!(answer_to(&unnamed), None);
}

#[test]
fn an_address_of_another_network_ends_when_it_is_renewed() {
    let held = association(1, &["fd00:7::5", "fd00:66::6"]);
    let answer = answer_to(&request(MessageType::Rebind, None, vec![held])).unwrap();
    let mut expected = ours();
    expected.push(("fd00:66::6".to_owned(), 0));
    assert_eq!(given(&answer), [(1, expected, vec![])]);
}

#[rstest]
#[case::ours(&["fd00:7::5"], Some(Status::Success))]
#[case::an_old_one(&["fd00:66::6"], Some(Status::NotOnLink))]
#[case::both(&["fd00:7::5", "fd00:66::6"], Some(Status::NotOnLink))]
#[case::none(&[], None)]
fn a_confirm_is_answered_with_whether_the_addresses_are_right(
    #[case] held: &[&str],
    #[case] expected: Option<Status>,
) {
    let answer = answer_to(&request(
        MessageType::Confirm,
        None,
        vec![association(1, held)],
    ));
    let status = answer.and_then(|answer| match answer.opts().get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(status)) => Some(status.status),
        _ => None,
    });
    assert_eq!(status, expected);
}

#[test]
fn there_is_one_association_with_addresses_and_nothing_else() {
    let more = vec![
        association(1, &[]),
        association(2, &[]),
        DhcpOption::IATA(IATA {
            id: 3,
            opts: DhcpOptions::new(),
        }),
        DhcpOption::IAPD(IAPD {
            id: 4,
            t1: 0,
            t2: 0,
            opts: DhcpOptions::new(),
        }),
    ];
    let answer = answer_to(&request(MessageType::Request, Some(OURS), more)).unwrap();
    let none = vec![Status::NoAddrsAvail];
    assert_eq!(given(&answer), [(1, ours(), vec![]), (2, vec![], none)]);
    assert!(answer.opts().get(OptionCode::IATA).is_some());
    assert!(answer.opts().get(OptionCode::IAPD).is_some());
}

#[test]
fn a_reply_fits_the_smallest_packet_for_any_request() {
    let many = (0..40)
        .map(|n| association(n, &["fd00:66::6"; 20]))
        .collect();
    let answer = answer_to(&request(MessageType::Rebind, None, many)).unwrap();
    assert!(answer.to_vec().unwrap().len() <= 1280 - 48);
}

#[test]
fn options_that_the_library_cannot_stand_do_not_reach_it() {
    // An authentication option that is too short for its fixed part, alone and inside an
    // association.
    let mut bytes = request(MessageType::Solicit, None, vec![association(1, &[])])
        .to_vec()
        .unwrap();
    bytes.extend([0, 11, 0, 2, 1, 1]);
    bytes.extend([
        0, 3, 0, 18, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 2, 1, 1,
    ]);
    assert!(
        decode(&bytes)
            .and_then(|request| reply(&lease(), &request))
            .is_some()
    );
}

proptest! {
    #[test]
    fn no_datagram_brings_the_server_down(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        if let Some(request) = decode(&bytes) {
            let _ = reply(&lease(), &request).and_then(|answer| encode(&answer));
        }
    }

    #[test]
    fn no_options_bring_the_server_down(
        kind in 1_u8..14,
        options in prop::collection::vec(
            (0_u16..45, prop::collection::vec(any::<u8>(), 0..60)), 0..12),
        client in any::<bool>(),
        cut in 0_usize..40,
    ) {
        let mut bytes = vec![kind, 1, 2, 3];
        let client = client.then(|| (1, vec![7]));
        for (code, value) in client.iter().chain(&options) {
            bytes.extend(code.to_be_bytes());
            bytes.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend(value);
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Some(request) = decode(&bytes)
            && let Some(answer) = reply(&lease(), &request)
        {
            let wire = encode(&answer).unwrap();
            prop_assert!(wire.len() <= 1280 - 48);
            let answer = Message::from_bytes(&wire).unwrap();
            for (_, addresses, _) in given(&answer) {
                for (address, life) in addresses {
                    prop_assert!(life == 0 || address == "fd00:7::5");
                }
            }
        }
    }
}

//! Answers to every kind of request, as values.
//!
//! Invariant: answers are checked after a trip through their bytes, as a client would see them.
//! Failure: property tests print the packet that broke them.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};
use rstest::rstest;

use ipnet::Ipv4Net;

use super::{Lease, SERVER_ADDRESS, decode, encode, reply};
use crate::mac::Mac;

mod hostile;

const MAC: [u8; 6] = [0x0a, 0xbb, 0xcc, 0, 0, 7];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 5);

fn lease() -> Lease {
    Lease {
        mac: Mac::new(MAC),
        address: "10.1.0.5/24".parse().unwrap(),
        gateway: Some("10.1.0.1".parse().unwrap()),
        routes: Vec::new(),
        mtu: 1450,
        dns: vec!["10.96.0.10".parse().unwrap()],
        searches: vec![
            "default.svc.cluster.local".to_owned(),
            "cluster.local".to_owned(),
        ],
        hostname: Some("vm-1".to_owned()),
    }
}

fn request(kind: MessageType) -> Message {
    let unset = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(7, unset, unset, unset, unset, &MAC);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    message
}

fn with(kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let mut message = request(kind);
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

/// The answer as it goes over the wire.
fn answer_to(lease: &Lease, request: &Message) -> Option<Message> {
    let request = decode(&request.to_vec().unwrap())?;
    let bytes = encode(&reply(lease, &request)?).unwrap();
    assert!(bytes.len() >= 300);
    Some(Message::from_bytes(&bytes).unwrap())
}

fn kind(answer: Option<&Message>) -> Option<MessageType> {
    answer.and_then(|answer| answer.opts().msg_type())
}

fn option(answer: &Message, code: OptionCode) -> Option<DhcpOption> {
    answer.opts().get(code).cloned()
}

#[test]
fn an_offer_contains_the_whole_cni_result() {
    let answer = answer_to(&lease(), &request(MessageType::Discover)).unwrap();
    assert_eq!(answer.opcode(), Opcode::BootReply);
    assert_eq!(
        (answer.xid(), answer.yiaddr(), answer.chaddr()),
        (7, ADDRESS, &MAC[..])
    );
    let mut expected = vec![
        DhcpOption::MessageType(MessageType::Offer),
        DhcpOption::ServerIdentifier(SERVER_ADDRESS),
        DhcpOption::AddressLeaseTime(86_400),
        DhcpOption::Renewal(43_200),
        DhcpOption::Rebinding(64_800),
        DhcpOption::SubnetMask("255.255.255.0".parse().unwrap()),
        DhcpOption::Router(vec!["10.1.0.1".parse().unwrap()]),
        DhcpOption::InterfaceMtu(1450),
        DhcpOption::DomainNameServer(vec!["10.96.0.10".parse().unwrap()]),
        DhcpOption::Hostname("vm-1".to_owned()),
        DhcpOption::DomainSearch(vec![
            "default.svc.cluster.local.".parse().unwrap(),
            "cluster.local.".parse().unwrap(),
        ]),
    ];
    expected.sort_by_key(|option| u8::from(OptionCode::from(option)));
    let options: Vec<_> = answer
        .opts()
        .iter()
        .map(|(_, option)| option.clone())
        .collect();
    assert_eq!(options, expected);
}

#[test]
fn the_last_search_name_is_terminated() {
    let lease = Lease {
        searches: vec!["a.b".to_owned()],
        ..lease()
    };
    let bytes = encode(&reply(&lease, &request(MessageType::Discover)).unwrap()).unwrap();
    let wanted = [119, 5, 1, b'a', 1, b'b', 0];
    assert!(bytes.windows(wanted.len()).any(|window| window == wanted));
}

#[rstest]
#[case::selecting_ours(Some(ADDRESS), Some(SERVER_ADDRESS), None, Some(MessageType::Ack))]
#[case::selecting_another_address(Some([10, 1, 0, 9].into()), Some(SERVER_ADDRESS), None, Some(MessageType::Nak))]
#[case::selecting_another_server(Some(ADDRESS), Some([10, 1, 0, 1].into()), None, None)]
#[case::rebooting_with_ours(Some(ADDRESS), None, None, Some(MessageType::Ack))]
#[case::rebooting_with_an_old_address(Some([192, 168, 0, 2].into()), None, None, Some(MessageType::Nak))]
#[case::renewing(None, None, Some(ADDRESS), Some(MessageType::Ack))]
#[case::renewing_an_old_address(None, None, Some([192, 168, 0, 2].into()), Some(MessageType::Nak))]
#[case::about_no_address(None, None, None, None)]
fn a_request_is_judged_by_its_address_and_server(
    #[case] wanted: Option<Ipv4Addr>,
    #[case] server: Option<Ipv4Addr>,
    #[case] current: Option<Ipv4Addr>,
    #[case] expected: Option<MessageType>,
) {
    let mut message = request(MessageType::Request);
    message.set_ciaddr(current.unwrap_or(Ipv4Addr::UNSPECIFIED));
    let options = message.opts_mut();
    wanted.map(|ip| options.insert(DhcpOption::RequestedIpAddress(ip)));
    server.map(|ip| options.insert(DhcpOption::ServerIdentifier(ip)));
    let answer = answer_to(&lease(), &message);
    assert_eq!(kind(answer.as_ref()), expected);
    if let Some(answer) = answer {
        let granted = expected == Some(MessageType::Ack);
        assert_eq!(answer.yiaddr() == ADDRESS, granted);
        assert_eq!(
            option(&answer, OptionCode::AddressLeaseTime).is_some(),
            granted
        );
    }
}

#[test]
fn inform_is_answered_without_an_address_or_times() {
    let mut message = request(MessageType::Inform);
    message.set_ciaddr(ADDRESS);
    let answer = answer_to(&lease(), &message).unwrap();
    assert_eq!(kind(Some(&answer)), Some(MessageType::Ack));
    assert_eq!(
        (answer.yiaddr(), answer.ciaddr()),
        (Ipv4Addr::UNSPECIFIED, ADDRESS)
    );
    assert_eq!(option(&answer, OptionCode::AddressLeaseTime), None);
    assert!(option(&answer, OptionCode::DomainNameServer).is_some());
}

#[rstest]
#[case(MessageType::Release)]
#[case(MessageType::Decline)]
#[case(MessageType::Offer)]
#[case(MessageType::Unknown(99))]
fn other_messages_get_no_answer(#[case] kind: MessageType) {
    let mut message = with(kind, vec![DhcpOption::RequestedIpAddress(ADDRESS)]);
    message.set_ciaddr(ADDRESS);
    assert_eq!(answer_to(&lease(), &message), None);
}

#[test]
fn another_nic_a_relay_and_an_answer_are_not_for_us() {
    let mut other = request(MessageType::Discover);
    other.set_chaddr(&[2; 6]);
    assert_eq!(answer_to(&lease(), &other), None);
    let mut relayed = request(MessageType::Discover);
    relayed.set_giaddr([10, 0, 0, 1]);
    assert_eq!(answer_to(&lease(), &relayed), None);
    let mut answer = request(MessageType::Discover);
    answer.set_opcode(Opcode::BootReply);
    assert_eq!(answer_to(&lease(), &answer), None);
}

#[test]
fn a_length_of_address_beyond_the_field_is_dropped_before_it_is_used() {
    let mut bytes = request(MessageType::Discover).to_vec().unwrap();
    bytes[2] = 200;
    assert_eq!(decode(&bytes), None);
    assert_eq!(reply(&lease(), &Message::from_bytes(&bytes).unwrap()), None);
}

#[test]
fn identifiers_come_back_as_they_were() {
    let echoed = vec![
        DhcpOption::ClientIdentifier(vec![1, 2, 3]),
        DhcpOption::ClientMachineIdentifier(vec![0; 17]),
    ];
    let answer = answer_to(&lease(), &with(MessageType::Discover, echoed.clone())).unwrap();
    for expected in echoed {
        assert_eq!(option(&answer, OptionCode::from(&expected)), Some(expected));
    }
}

#[test]
fn the_parts_of_an_identifier_are_one_wherever_they_are() {
    let whole = request(MessageType::Discover).to_vec().unwrap();
    let end = whole.iter().rposition(|byte| *byte == 255).unwrap();
    let between = [53, 1, 1];
    let parts = [&[61, 2, 1, 2][..], &between, &[61, 1, 3], &[255]].concat();
    let request = decode(&[&whole[..end], &parts].concat()).unwrap();
    let answer = answer_to(&lease(), &request).unwrap();
    let expected = DhcpOption::ClientIdentifier(vec![1, 2, 3]);
    assert_eq!(
        option(&answer, OptionCode::ClientIdentifier),
        Some(expected)
    );
}

#[test]
fn an_empty_identifier_is_answered_without_one() {
    let empty = vec![DhcpOption::ClientIdentifier(Vec::new())];
    let answer = answer_to(&lease(), &with(MessageType::Discover, empty)).unwrap();
    assert_eq!(option(&answer, OptionCode::ClientIdentifier), None);
}

#[rstest]
#[case::kind(53)]
#[case::address(50)]
#[case::server(54)]
#[case::size(57)]
fn a_value_of_another_length_than_its_own_is_malformed(#[case] code: u8) {
    let whole = request(MessageType::Discover).to_vec().unwrap();
    let end = whole.iter().rposition(|byte| *byte == 255).unwrap();
    for length in [0_u8, 3, 9, 255] {
        let value = vec![2; length.into()];
        let request = [&whole[..end], &[code, length], &value, &[255]].concat();
        assert_eq!(decode(&request), None, "{length}");
    }
}

#[test]
fn identifiers_leave_room_for_the_lease() {
    let long = vec![
        DhcpOption::ClientIdentifier(vec![1; 255]),
        DhcpOption::ClientMachineIdentifier(vec![0; 255]),
    ];
    let length = |answer: &Message| answer.to_vec().unwrap().len();
    let answer = answer_to(&lease(), &with(MessageType::Discover, long.clone())).unwrap();
    assert_eq!(
        option(&answer, OptionCode::ClientIdentifier).as_ref(),
        long.first()
    );
    assert_eq!(option(&answer, OptionCode::ClientMachineIdentifier), None);
    assert!(option(&answer, OptionCode::SubnetMask).is_some());
    assert!(length(&answer) <= 548, "{}", length(&answer));
    let mut refused = with(MessageType::Request, long.clone());
    let other = DhcpOption::RequestedIpAddress([10, 1, 0, 9].into());
    refused.opts_mut().insert(other);
    let refusal = answer_to(&lease(), &refused).unwrap();
    assert!(option(&refusal, OptionCode::Message).is_some() && length(&refusal) <= 548);
    let roomy = [long.clone(), vec![DhcpOption::MaxMessageSize(1500)]].concat();
    let answer = answer_to(&lease(), &with(MessageType::Discover, roomy)).unwrap();
    assert_eq!(
        option(&answer, OptionCode::ClientMachineIdentifier).as_ref(),
        long.last()
    );
}

fn routes(lease: &Lease, requested: Option<Vec<OptionCode>>) -> (bool, Vec<(String, String)>) {
    let list = requested.map(DhcpOption::ParameterRequestList);
    let answer = answer_to(
        lease,
        &with(MessageType::Discover, list.into_iter().collect()),
    )
    .unwrap();
    let classless = match option(&answer, OptionCode::ClasslessStaticRoute) {
        Some(DhcpOption::ClasslessStaticRoute(routes)) => routes
            .iter()
            .map(|(dst, via)| (dst.to_string(), via.to_string()))
            .collect(),
        _ => Vec::new(),
    };
    (option(&answer, OptionCode::Router).is_some(), classless)
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect()
}

#[test]
fn further_routes_bring_the_default_route_with_them() {
    let further = vec![(
        "10.2.0.0/16".parse().unwrap(),
        Some("10.1.0.9".parse().unwrap()),
    )];
    let lease = Lease {
        routes: further,
        ..lease()
    };
    let expected = pairs(&[("10.2.0.0/16", "10.1.0.9"), ("0.0.0.0/0", "10.1.0.1")]);
    assert_eq!(routes(&lease, None), (false, expected.clone()));
    let understands = vec![OptionCode::Router, OptionCode::ClasslessStaticRoute];
    assert_eq!(routes(&lease, Some(understands)), (false, expected.clone()));
    assert_eq!(
        routes(&lease, Some(vec![OptionCode::Router])),
        (true, expected)
    );
}

#[test]
fn a_gateway_outside_the_subnet_gets_a_route_on_the_link_first() {
    let address = "10.1.0.5/32".parse().unwrap();
    let gateway = Some("169.254.1.1".parse().unwrap());
    let expected = pairs(&[("169.254.1.1/32", "0.0.0.0"), ("0.0.0.0/0", "169.254.1.1")]);
    let lease = Lease {
        address,
        gateway,
        ..lease()
    };
    assert_eq!(routes(&lease, None).1, expected);
    let on_link = vec![("169.254.1.1/32".parse().unwrap(), None)];
    assert_eq!(
        routes(
            &Lease {
                routes: on_link,
                ..lease
            },
            None
        )
        .1,
        expected
    );
}

#[test]
fn everybody_can_be_a_neighbour() {
    let lease = Lease {
        address: "10.1.0.5/32".parse().unwrap(),
        gateway: None,
        routes: vec![(Ipv4Net::default(), None)],
        ..lease()
    };
    assert_eq!(
        routes(&lease, None),
        (false, pairs(&[("0.0.0.0/0", "0.0.0.0")]))
    );
}

#[test]
fn bad_names_and_sizes_are_left_out() {
    let lease = Lease {
        hostname: Some("vm 1\n".to_owned()),
        searches: vec!["..".to_owned(), "a b".to_owned(), "x".repeat(64)],
        mtu: 70_000,
        dns: Vec::new(),
        ..lease()
    };
    let answer = answer_to(&lease, &request(MessageType::Discover)).unwrap();
    for code in [
        OptionCode::Hostname,
        OptionCode::DomainSearch,
        OptionCode::InterfaceMtu,
        OptionCode::DomainNameServer,
    ] {
        assert_eq!(option(&answer, code), None);
    }
}

#[test]
fn an_answer_fits_the_client() {
    let searches = (0..32)
        .map(|i| format!("{}{i}.example", "long-".repeat(10)))
        .collect();
    let lease = Lease {
        searches,
        ..lease()
    };
    let small = answer_to(&lease, &request(MessageType::Discover)).unwrap();
    assert_eq!(option(&small, OptionCode::DomainSearch), None);
    assert!(small.to_vec().unwrap().len() <= 548);
    let roomy = with(
        MessageType::Discover,
        vec![DhcpOption::MaxMessageSize(9000)],
    );
    let large = answer_to(&lease, &roomy).unwrap();
    let Some(DhcpOption::DomainSearch(names)) = option(&large, OptionCode::DomainSearch) else {
        panic!("no search list");
    };
    assert_eq!(names.len(), 32);
}

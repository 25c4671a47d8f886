//! What is read back is what was written, and nothing a guest reports makes it large or dangerous.
//!
//! Invariant: hostile values are as many and as long as a guest could make them.
//! Failure: the text that came out is shown.

use super::*;
use crate::node_probe::{NodeProbe, ProbeOutcome};

fn facts(addresses: &[&str]) -> GuestFacts {
    let interface = GuestInterface {
        name: "eth0".to_owned(),
        mac: "02:00:00:00:00:01".to_owned(),
        addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
        source: AddressSource::GuestAgent,
    };
    GuestFacts {
        power: Power::On,
        agent: AgentState::Connected,
        interfaces: vec![interface],
        ..GuestFacts::default()
    }
}

#[test]
fn facts_survive_being_written_and_read() {
    let facts = GuestFacts {
        host_name: "vm-1".to_owned(),
        unsupported: vec!["user data: a byte order mark".to_owned()],
        started: Some(Time("2026-01-02T03:04:05Z".parse().unwrap())),
        ..facts(&["10.0.0.7/24", "2001:db8::7/64"])
    };
    let text = facts.to_json();
    assert_eq!(GuestFacts::from_json(&text).unwrap(), facts, "{text}");
    assert!(
        text.starts_with(r#"{"power":"On","agent":"Connected","#),
        "{text}"
    );
}

#[test]
fn values_of_a_newer_version_are_read_as_unknown() {
    let text =
        r#"{"power":"Migrating","agent":"Sleepy","future":1,"interfaces":[{"source":"Oracle"}]}"#;
    let facts = GuestFacts::from_json(text).unwrap();
    assert_eq!(facts.power, Power::Unknown);
    assert_eq!(facts.agent, AgentState::NoInfo);
    assert_eq!(facts.interfaces[0].source, AddressSource::Unknown);
}

#[test]
fn the_largest_facts_of_a_hostile_guest_fit() {
    let long = "\"".repeat(10_000);
    let interface = GuestInterface {
        name: long.clone(),
        mac: long.clone(),
        addresses: vec!["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/128".to_owned(); 1000],
        source: AddressSource::GuestAgent,
    };
    let facts = GuestFacts {
        pause_reason: long.clone(),
        pause_message: long.clone(),
        unsupported: vec![long.clone(); 1000],
        container_id: long.clone(),
        domain_uuid: long.clone(),
        machine_type: long.clone(),
        host_name: "h".repeat(253),
        os: GuestOs {
            id: long.clone(),
            name: long.clone(),
            version: long.clone(),
            kernel: long,
        },
        interfaces: vec![interface; 1000],
        info: (0..1000)
            .map(|n| (format!("key-{n:03}"), "\"".repeat(60)))
            .collect(),
        probe: Some(GuestProbe {
            probe: NodeProbe {
                host: Some("\"".repeat(10_000)),
                ..NodeProbe::default()
            },
            outcome: ProbeOutcome::NotAllowed,
        }),
        ..GuestFacts::default()
    };
    let facts = facts.bounded();
    assert_eq!(facts.info.len(), 15);
    assert_eq!(facts.unsupported.len(), 4);
    let text = facts.to_json();
    assert!(text.len() <= LIMIT, "{}", text.len());
    assert_eq!(GuestFacts::from_json(&text).unwrap(), facts);
}

#[test]
fn text_that_is_too_long_is_not_even_parsed() {
    let text = format!("{{\"hostName\":\"{}\"}}", "a".repeat(LIMIT));
    assert!(matches!(
        GuestFacts::from_json(&text),
        Err(Error::TooLong(_))
    ));
    assert!(matches!(GuestFacts::from_json("7"), Err(Error::Json(_))));
}

#[test]
fn only_addresses_that_reach_the_guest_are_usable() {
    let all = facts(&[
        "127.0.0.1/8",
        "169.254.1.1/16",
        "0.0.0.0/0",
        "224.0.0.1/32",
        "::1/128",
        "fe80::1/64",
        "ff02::1/128",
        "nonsense",
        "10.0.0.1/33",
        "::ffff:10.0.0.9/120",
        "10.0.0.7/24",
        "2001:db8::7/64",
    ]);
    let usable: Vec<_> = all
        .usable_addresses()
        .map(|(_, ip)| ip.to_string())
        .collect();
    assert_eq!(usable, ["10.0.0.9", "10.0.0.7", "2001:db8::7"]);
}

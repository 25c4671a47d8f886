//! Results as plugins print them, sound, blank and wild.
//!
//! Invariant: what the parser takes refers only to what is in it.
//! Failure: a panic, or a field that changes its value.

use proptest::prelude::*;
use rscni_types::version::SpecVersion;
use serde_json::{Value, json};

use super::{ResultError, parse_result};

const ASKED: SpecVersion = SpecVersion::new(1, 0, 0);

#[test]
fn a_result_of_the_old_layout_is_typed() {
    let raw = json!({
        "cniVersion": "0.3.1",
        "interfaces": [{"name": "eth0", "mac": "0a:58:0a:01:00:05", "sandbox": "/run/netns/x"}],
        "ips": [{"version": "4", "interface": 0, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    });
    let result = parse_result(raw.clone(), ASKED).unwrap();
    assert_eq!(result.raw, raw);
    let parsed = result.parsed;
    assert_eq!(
        parsed.interfaces[0].sandbox.as_deref(),
        Some("/run/netns/x")
    );
    assert_eq!(parsed.ips[0].address.to_string(), "10.1.0.5/16");
    assert_eq!(parsed.ips[0].gateway.unwrap().to_string(), "10.1.0.1");
    assert_eq!(parsed.ips[0].interface, Some(0));
    assert_eq!(parsed.routes[0].gw, None);
    assert_eq!(parsed.dns.unwrap().nameservers, ["10.1.0.1"]);
}

#[test]
fn a_result_of_the_new_layout_keeps_mtu_and_metrics() {
    let raw = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mtu": 8950}],
        "ips": [{"address": "fd00::5/64", "interface": 0}],
        "routes": [{"dst": "fd01::/48", "gw": "fd00::1", "mtu": 1400, "priority": 7}],
    });
    let parsed = parse_result(raw, ASKED).unwrap().parsed;
    assert_eq!(parsed.interfaces[0].mtu, Some(8950));
    assert_eq!(parsed.routes[0].mtu, Some(1400));
    assert_eq!(parsed.routes[0].priority, Some(7));
}

#[test]
fn blanks_and_wild_references_read_as_absent() {
    let raw = json!({
        "interfaces": [{"name": "eth0", "mac": "", "sandbox": ""}],
        "ips": [
            {"address": "10.0.0.2/24", "gateway": "", "interface": 4},
            {"address": "10.0.0.3/24", "gateway": null, "interface": -1},
        ],
        "routes": null,
    });
    let result = parse_result(raw, ASKED).unwrap();
    assert_eq!(result.raw["cniVersion"], "1.0.0");
    assert_eq!(result.parsed.interfaces[0].sandbox, None);
    assert!(
        result
            .parsed
            .ips
            .iter()
            .all(|ip| ip.gateway.is_none() && ip.interface.is_none())
    );
}

#[test]
fn what_is_no_result_is_refused() {
    let version = parse_result(json!({"cniVersion": "0.2.0", "ip4": {}}), ASKED);
    assert!(matches!(version, Err(ResultError::Version(_))));
    assert!(matches!(
        parse_result(json!([]), ASKED),
        Err(ResultError::NotObject)
    ));
    for bad in [
        json!({"ips": [{"address": "10.0.0.300/24"}]}),
        json!({"ips": [{"gateway": "10.0.0.1"}]}),
        json!({"ips": "10.0.0.1"}),
        json!({"interfaces": [{"mac": "x"}]}),
    ] {
        assert!(matches!(
            parse_result(bad, ASKED),
            Err(ResultError::Shape(_))
        ));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        Just("ips"),
        Just("interfaces"),
        Just("routes"),
        Just("dns"),
        Just("address"),
        Just("interface"),
        Just("gateway"),
        Just("name"),
        Just("dst"),
        Just("cniVersion"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9a-f.:/]{0,18}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(words.clone().prop_map(String::from), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_makes_the_parser_panic_and_references_hold(raw in any_json()) {
        if let Ok(result) = parse_result(raw, ASKED) {
            let count = result.parsed.interfaces.len();
            for ip in &result.parsed.ips {
                prop_assert!(ip.interface.is_none_or(|i| (i as usize) < count));
            }
            let again = parse_result(result.raw.clone(), SpecVersion::CURRENT).unwrap();
            prop_assert_eq!(again, result);
        }
    }

    #[test]
    fn addresses_and_routes_come_out_as_they_went_in(
        host in any::<u32>(), prefix in 0u8..=32, gateway in any::<u32>(), mtu in any::<u32>(),
    ) {
        let host = std::net::Ipv4Addr::from(host);
        let gateway = std::net::Ipv4Addr::from(gateway);
        let net = format!("{host}/{prefix}");
        let parsed = parse_result(json!({
            "interfaces": [{"name": "a", "mtu": mtu}],
            "ips": [{"address": net, "gateway": gateway, "interface": 0}],
            "routes": [{"dst": net, "gw": gateway, "mtu": mtu}],
        }), ASKED).unwrap().parsed;
        prop_assert_eq!(parsed.ips[0].address.to_string(), net);
        prop_assert_eq!(parsed.ips[0].gateway, Some(gateway.into()));
        prop_assert_eq!(parsed.ips[0].interface, Some(0));
        prop_assert_eq!((parsed.interfaces[0].mtu, parsed.routes[0].mtu), (Some(mtu), Some(mtu)));
    }
}

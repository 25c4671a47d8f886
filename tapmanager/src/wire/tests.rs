//! Messages of any content.
//!
//! Invariant: a message that is read is read as the same after it was written, and has no fields
//! that are ignored.
//! Failure: proptest shows the smallest message that breaks it.

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// A value of one of JSON's kinds, right for some field.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u16>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from),
        "([0-9a-f]{2}:){5}[0-9a-f]{2}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["10.0.0.1", "fd00::1"])),
        Just(json!([{"hostPort": 1, "containerPort": 2, "protocol": "tcp"}])),
        Just(json!([{"mac": "0a:00:00:00:00:01", "addresses": ["10.0.0.1"]}])),
        Just(json!({"servers": ["10.0.0.1"], "searches": [], "options": []})),
    ]
}

/// A request with fields of its own and of others.
fn request() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "version",
        "id",
        "keep",
        "after",
        "pod_name",
        "hostname",
        "dns",
        "port_mappings",
        "bandwidth",
        "allow_spoofing",
        "mac",
        "known_nics",
        "cgroup_parent",
        "memory_bytes",
        "uid",
        "token",
        "extra",
    ]);
    let ops = prop::sample::select(vec![
        "hello",
        "add",
        "get",
        "check",
        "del",
        "list",
        "gc",
        "status",
        "prepare_start",
        "routes",
        "counters",
        "other",
    ]);
    (ops, prop::collection::btree_map(names, value(), 0..5)).prop_map(|(op, fields)| {
        let mut request = json!({"op": op});
        for (name, value) in fields {
            request[name] = value;
        }
        request
    })
}

fn survives<T>(bytes: &[u8]) -> Result<Option<T>, TestCaseError>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let Ok(read) = serde_json::from_slice::<T>(bytes) else {
        return Ok(None);
    };
    let written = serde_json::to_vec(&read).unwrap();
    prop_assert_eq!(&serde_json::from_slice::<T>(&written).unwrap(), &read);
    Ok(Some(read))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_request_is_whole_or_refused(request in request()) {
        let read = survives::<Request>(request.to_string().as_bytes())?;
        prop_assert!(read.is_none() || request.get("extra").is_none());
        prop_assert!(read.is_none() || request["op"] != "other");
        let handoff = survives::<HandoffRequest>(request.to_string().as_bytes())?;
        // Its own operation is a field that the hand-off does not know.
        prop_assert!(handoff.is_none());
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80), cut in any::<prop::sample::Index>()) {
        survives::<Request>(&bytes)?;
        survives::<Reply>(&bytes)?;
        survives::<HandoffRequest>(&bytes)?;
        // A message that is cut off is none.
        let hello = serde_json::to_vec(&Request::Hello { version: PROTOCOL_VERSION }).unwrap();
        prop_assert!(survives::<Request>(&hello)?.is_some());
        prop_assert!(survives::<Request>(&hello[..cut.index(hello.len())])?.is_none());
    }
}

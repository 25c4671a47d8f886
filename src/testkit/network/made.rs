//! Networks and errors of the fake.
//!
//! Invariant: the errors are those of a real client.
//! Failure: none.

use std::time::Duration;

use serde_json::{Value, json};
use tapmanager::client::{Client, Error};
use tapmanager::wire::{AddRequest, Address, Dns, ErrorCode, Network, Nic, NicCounters, WireError};

pub(super) fn network(request: &AddRequest, has_address: bool) -> Network {
    let id = &request.id;
    let address = Address {
        net: "10.1.0.5/24".parse().unwrap(),
        gateway: None,
    };
    let result = json!({ "ips": [{ "address": "10.1.0.5/24" }] });
    Network {
        id: id.clone(),
        netns: format!("/run/netns/{id}").into(),
        nics: vec![nic(request, has_address.then_some(address))],
        detached: request.detached,
        omitted: Vec::new(),
        dns: Dns::default(),
        cni_network: "fake".to_owned(),
        cni_result: if has_address { result } else { Value::Null },
    }
}

/// The one NIC of every guest.
fn nic(request: &AddRequest, address: Option<Address>) -> Nic {
    let mac = if request.mac.is_empty() {
        "0a:58:0a:01:00:05"
    } else {
        &request.mac
    };
    Nic {
        link: "eth0".to_owned(),
        mac: mac.to_owned(),
        mtu: 1500,
        bridge: "vmbr0".to_owned(),
        tap: "vmtap0".to_owned(),
        addresses: address.into_iter().collect(),
        routes: Vec::new(),
    }
}

/// A NIC without traffic.
pub(super) fn idle() -> NicCounters {
    NicCounters {
        link: "eth0".to_owned(),
        rx_bytes: 0,
        rx_errors: 0,
        tx_bytes: 0,
        tx_errors: 0,
        rx_packets: Some(0),
        rx_dropped: Some(0),
        tx_packets: Some(0),
        tx_dropped: Some(0),
    }
}

pub(super) fn refused(code: ErrorCode, why: &str) -> Error {
    Error::Refused(WireError {
        code,
        message: why.to_owned(),
    })
}

/// What a client gets whose connection ends before the answer.
pub(super) fn broken_off() -> Error {
    Error::Protocol("it closed the connection".to_owned())
}

/// What a client gets that reaches nothing.
pub(super) async fn unreachable() -> Error {
    let client = Client::new("/nonexistent/tapmanager.sock", Duration::from_secs(1));
    client.status().await.expect_err("no answer from nothing")
}

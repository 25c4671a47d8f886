//! Fields about the guest: how they reach the pod, and that a condition names those that nothing
//! acts on.
//!
//! Invariant: a field that has an effect is in no condition.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

const KIND: &str = "UnsupportedFeatures";

/// A running machine with this network.
async fn networked(network: Value) -> Bench {
    let mut bench = Bench::new();
    bench
        .running(json!({ "spec": { "network": network } }))
        .await;
    bench
}

#[tokio::test]
async fn a_host_name_is_the_pods_and_so_the_guests() {
    let bench = networked(json!({ "hostName": "web-1" })).await;
    assert_eq!(bench.pod()["spec"]["hostname"], "web-1");
    assert_eq!(bench.condition_text(KIND), "-");
}

#[tokio::test]
async fn the_mac_address_of_the_first_interface_is_on_the_pod() {
    let eth0 = json!({ "name": "eth0", "macAddr": "52:54:00:12:34:5A" });
    let bench = networked(json!({ "interfaces": [eth0] })).await;
    let reported = &bench.pod()["metadata"]["annotations"]["vmlet.dev/mac-address"];
    assert_eq!(reported, "52:54:00:12:34:5a");
    assert_eq!(bench.condition_text(KIND), "-");
}

#[tokio::test]
async fn a_machine_without_a_network_is_not_waited_for() {
    let mut bench = networked(json!({ "disabled": true })).await;
    let pod = bench.pod();
    assert_eq!(pod["metadata"]["annotations"]["vmlet.dev/network"], "none");
    assert_eq!(bench.condition_text(KIND), "-");
    let bridge = json!({ "name": "docker0", "addresses": ["172.17.0.1/16"] });
    bench.facts(json!({ "power": "On", "agent": "Connected", "interfaces": [bridge] }));
    assert_eq!(seconds(&bench.settle().await), None);
    assert_eq!(bench.status().network, None);
    assert_eq!(
        bench.condition_text("VirtualMachineGuestNetworkConfigSynced"),
        "-"
    );
}

#[tokio::test]
async fn a_field_that_nothing_acts_on_is_named() {
    let fixed = json!({ "name": "lan", "addresses": ["10.1.0.9/24"], "dhcp4": false });
    let mut bench = networked(json!({ "interfaces": [fixed] })).await;
    assert_eq!(bench.condition_text(KIND), "True/NotImplemented");
    let message = |bench: &Bench| {
        bench
            .condition(KIND)
            .map_or_else(String::new, |c| c.message)
    };
    let reported = message(&bench);
    for words in [
        "interfaces[].name (",
        "interfaces[].addresses (not on the pod",
        "dhcp4 (",
    ] {
        assert!(reported.contains(words), "{reported}");
    }
    // Also of a machine that runs already.
    let more = json!({ "suspendMode": "Hard", "readinessProbe": {
        "guestHeartbeat": {}, "periodSeconds": 5,
    }});
    bench.edit(VMS, "vm", json!({ "spec": more }));
    bench.settle().await.ok();
    let reported = message(&bench);
    for words in ["suspendMode (", "readinessProbe.periodSeconds ("] {
        assert!(reported.contains(words), "{reported}");
    }
    let none = json!({ "suspendMode": "TrySoft", "network": null, "readinessProbe": {
        "guestHeartbeat": null, "tcpSocket": { "port": 80 }, "periodSeconds": 5,
    }});
    bench.edit(VMS, "vm", json!({ "spec": none }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(KIND), "-", "{}", message(&bench));
}

#[tokio::test]
async fn a_restart_is_required_for_nothing_that_it_does_not_bring() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let nothing = json!({ "groupName": "g", "readinessProbe": {
        "guestHeartbeat": {}, "periodSeconds": 5,
    }});
    bench.edit(VMS, "vm", json!({ "spec": nothing }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("RestartRequired"), "-");
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "network": { "hostName": "web" } } }),
    );
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("RestartRequired"),
        "True/SpecificationChanged"
    );
}

#[tokio::test]
async fn a_network_that_cannot_be_read_is_reported_in_the_words_of_the_api_server() {
    let mut bench = Bench::new();
    let kind = "network-attachment-definitions";
    bench.refuse(http::Method::GET, kind, 403, usize::MAX);
    let interface = json!({ "name": "a", "networkRef": "blue" });
    bench.machine(json!({ "spec": { "network": { "interfaces": [interface] } } }));
    bench.settle().await.ok();
    let condition = bench.condition("VirtualMachineNetworkReady").unwrap();
    let words = "interface a: network ns/blue: refused by the test";
    assert_eq!(condition.message, words);
}

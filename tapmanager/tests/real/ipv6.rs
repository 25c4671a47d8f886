//! Pods with IPv6: beside IPv4, before it, and alone.
//!
//! Invariant: the addresses come from the real plugins `bridge` and `host-local`; the guest learns
//! them by its kernel and a real DHCPv6 client.
//! Failure: the program's log is in the panic, or what was left behind.

use serde_json::{Value, json};
use tapmanager::wire::Network;

use crate::guest::run;
use crate::network::boot;
use crate::node::{Node, pod};
use crate::speaks6::{dhclient, routed, wake};

/// A node whose bridge has a subnet for each of `ranges`, in that order.
async fn node(ranges: &[&str]) -> Node {
    let mut node = Node::new().await;
    let ranges: Vec<Value> = ranges
        .iter()
        .map(|subnet| json!([{"subnet": subnet}]))
        .collect();
    let plugins = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": "cbr0", "isDefaultGateway": true, "mtu": 1400,
            "ipam": {
                "type": "host-local", "dataDir": node.scratch.path().join("leases"), "ranges": ranges,
                "routes": [{"dst": "fd00:99::/48"}]
            },
            "dns": {"nameservers": ["10.96.0.10", "fd00:96::a"], "search": ["cluster.local"]}
        }]
    });
    node.configure(&plugins).await;
    node.launch().await;
    node
}

fn ips(network: &Network) -> Vec<String> {
    network.ips().map(|ip| ip.to_string()).collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_has_both_families_also_after_a_crash_of_the_program() {
    let mut node = node(&["10.88.7.0/24", "fd00:88:7::/64"]).await;
    let network = node.client().add(pod("one")).await.unwrap();
    assert_eq!(ips(&network), ["10.88.7.2", "fd00:88:7::2"]);
    let guest = boot(&node, &network, "guest").await;
    assert_eq!(guest.lease("").await["ip"], "10.88.7.2");
    wake(&guest).await;
    let routes = routed(&guest).await;
    assert!(routes.contains("fd00:99::/48 via fe80:"), "{routes}");
    let received = dhclient(&guest, node.scratch.path()).await;
    assert_eq!(received["new_ip6_address"], "fd00:88:7::2");
    assert_eq!(received["new_dhcp6_name_servers"], "fd00:96::a");
    let reach = "busybox ping -6 -c 1 -W 15 fd00:88:7::1 && busybox ping -c 1 -W 15 10.88.7.1";
    guest.run(reach).await;
    run(&node.ns, "busybox ping -6 -c 1 -W 15 fd00:88:7::2").await;

    node.kill().await;
    guest.run(reach).await;
    node.launch().await;
    node.client().check("one").await.unwrap();
    // As after a reboot: the guest knows nothing.
    guest
        .run("echo 1 > /proc/sys/net/ipv6/conf/nic0/disable_ipv6")
        .await;
    wake(&guest).await;
    routed(&guest).await;
    let again = dhclient(&guest, node.scratch.path()).await;
    assert_eq!(again["new_ip6_address"], "fd00:88:7::2");
    guest.run(reach).await;

    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_pod_may_have_ipv6_alone() {
    let node = node(&["fd00:88:8::/64"]).await;
    let network = node.client().add(pod("one")).await.unwrap();
    assert_eq!(ips(&network), ["fd00:88:8::2"]);
    let guest = boot(&node, &network, "guest").await;
    wake(&guest).await;
    routed(&guest).await;
    let received = dhclient(&guest, node.scratch.path()).await;
    assert_eq!(received["new_ip6_address"], "fd00:88:8::2");
    run(&node.ns, "busybox ping -6 -c 1 -W 15 fd00:88:8::2").await;
    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_primary_address_is_the_first_range_of_the_plugins() {
    let node = node(&["fd00:88:9::/64", "10.88.9.0/24"]).await;
    let network = node.client().add(pod("one")).await.unwrap();
    assert_eq!(ips(&network), ["fd00:88:9::2", "10.88.9.2"]);
    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn pods_whose_gateway_is_on_a_link_of_each_use_their_own() {
    let mut node = Node::new().await;
    run(&node.ns, "ip addr add fd00:99::1/128 dev lo").await;
    let plugins = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp", "mtu": 1400,
            "ipam": {
                "type": "host-local", "dataDir": node.scratch.path().join("leases"),
                "ranges": [[{"subnet": "fd00:88:a::/64"}]], "routes": [{"dst": "::/0"}]
            }
        }]
    });
    node.configure(&plugins).await;
    node.launch().await;
    for name in ["one", "two"] {
        let network = node.client().add(pod(name)).await.unwrap();
        let guest = boot(&node, &network, &format!("guest-{name}")).await;
        // As NetworkManager does: the address has nothing to do with the NIC's.
        guest
            .run("echo 3 > /proc/sys/net/ipv6/conf/nic0/addr_gen_mode")
            .await;
        wake(&guest).await;
        routed(&guest).await;
        dhclient(&guest, node.scratch.path()).await;
        guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
    }
    for name in ["one", "two"] {
        node.client().del(name).await.unwrap();
    }
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

//! Guests behind a macvlan, whose IPv6 router is a host of the network and no link of the node.
//!
//! Invariant: the plugin is the real one; the router is a kernel in a namespace of its own, which
//! forwards and, as most routers with fixed gateways, advertises nothing.
//! Failure: the guest's routes, or the program's log.

use netns::Namespace;
use serde_json::json;

use crate::guest::run;
use crate::kinds::{chain, host_local, no_pod_is_left, node_with_parent};
use crate::network::boot;
use crate::node::{Node, pod};
use crate::speaks6::{dhclient, routed, wake};

const WARNING: &str = "gateways neither on the node nor answering outside";

/// A node on whose network `fd00:66::1` is the gateway.
async fn node() -> (Node, Namespace) {
    let (mut node, outside) = node_with_parent().await;
    let range =
        json!({"subnet": "fd00:66::/64", "rangeStart": "fd00:66::50", "gateway": "fd00:66::1"});
    let mut ipam = host_local(&node, &range);
    ipam["routes"] = json!([{"dst": "::/0"}]);
    let plugin = json!({"type": "macvlan", "master": "wan0", "mode": "bridge", "ipam": ipam});
    node.configure(&chain(&json!([plugin]))).await;
    node.launch().await;
    (node, outside)
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_macvlan_guest_gets_its_default_route_over_the_router_of_its_network() {
    let (mut node, outside) = node().await;
    let router = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding && ip link set lo up \
        && ip addr add fd00:99::1/128 dev lo && ip addr add fd00:66::1/64 dev far0 nodad";
    run(&outside, router).await;
    let one = node.client().add(pod("one")).await.unwrap();
    let guest = boot(&node, &one, "g1").await;
    wake(&guest).await;
    let routes = routed(&guest).await;
    let shown = run(&outside, "ip -6 -o addr show dev far0 scope link").await;
    let address = shown.split_whitespace().nth(3).unwrap();
    let address = address.split('/').next().unwrap();
    assert!(
        routes.contains(&format!("default via {address} dev nic0 proto ra")),
        "{address}: {routes}\n{}",
        node.log()
    );
    dhclient(&guest, node.scratch.path()).await;
    guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
    assert!(!node.log().contains(WARNING), "{}", node.log());

    // After a crash of the program the next one finds it again.
    node.kill().await;
    node.launch().await;
    node.client().check("one").await.unwrap();
    node.logged("gateway found outside the node").await;
    drop(guest);
    no_pod_is_left(&node, &["one"]).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_router_that_answers_nothing_is_named_once_and_looked_for_again() {
    let (node, outside) = node().await;
    let one = node.client().add(pod("one")).await.unwrap();
    let guest = boot(&node, &one, "g1").await;
    wake(&guest).await;
    let warning = node.logged(WARNING).await;
    assert!(
        warning.contains("fd00:66::1") && warning.contains(&one.nics[0].mac),
        "{warning}"
    );
    // The guest has its address all the same, and the subnet.
    let received = dhclient(&guest, node.scratch.path()).await;
    assert_eq!(received["new_ip6_address"], "fd00:66::50");
    let routes = guest.run("ip -6 route").await;
    assert!(routes.contains("fd00:66::/64 dev nic0"), "{routes}");
    assert!(!routes.contains("default"), "{routes}");
    node.logged_times("search for gateways ended", 2).await;
    assert_eq!(node.log().matches(WARNING).count(), 1, "{}", node.log());

    let router = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding \
        && ip addr add fd00:66::1/64 dev far0 nodad";
    run(&outside, router).await;
    node.logged("gateway found outside the node").await;
    routed(&guest).await;
    drop(guest);
    no_pod_is_left(&node, &["one"]).await;
}

//! A guest whose IPv6 gateway is a router on no link of the node.
//!
//! Invariant: the router is a kernel with forwarding in a namespace of its own, at the other end of
//! the pod's link; what answers neighbours is that kernel. The advertisements are the test's.
//! Failure: the guest never has a default route, or one over a router that was forged.

use netns::Namespace;

use crate::frames::{Bytes, ether, icmp6_sum, ip6_hops, mac};
use crate::guest::{NIC, Scratch, run};
use crate::ipv6::{plug, pod};
use crate::speaks6::{dhclient, routed, wake};
use crate::wire::Wire;

const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ROUTER_SOLICITATION: u8 = 133;

/// An advertisement of a router.
fn advertisement(from: &str, sender: [u8; 6], hops: u8) -> Bytes {
    let body = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let message = icmp6_sum(from, "ff02::1", &body);
    ether(
        sender,
        ALL_NODES,
        0x86dd,
        &ip6_hops(from, "ff02::1", 58, hops, &message),
    )
}

/// The router's hardware address.
async fn hardware(router: &Namespace) -> [u8; 6] {
    let link = run(router, "ip -o link show out0").await;
    let mut words = link.split_whitespace();
    words.find(|word| *word == "link/ether");
    mac(words.next().unwrap())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_router_outside_the_node_is_the_one_that_advertises_from_the_gateways_address() {
    let dir = Scratch::new();
    let (pod, router) = pod(&dir).await;
    let node = Namespace::create(dir.path(), "elsewhere").await.unwrap();
    let change = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding \
        && ip addr flush dev out0 scope link && ip addr add fe80::abc/64 dev out0 nodad";
    run(&router, change).await;
    let real = hardware(&router).await;
    let wire = Wire::link(&router, "out0").await;
    let replies = tokio::spawn(async move {
        loop {
            let question = wire.next().await;
            if question.get(54) != Some(&ROUTER_SOLICITATION) || question[20] != 58 {
                continue;
            }
            let mut damaged = advertisement("fe80::bad:3", real, 255);
            *damaged.last_mut().unwrap() = 1;
            wire.send(&advertisement("fe80::bad:1", [2, 0, 0, 0, 0, 0xbd], 255));
            wire.send(&advertisement("fe80::bad:2", real, 64));
            wire.send(&damaged);
            wire.send(&advertisement("fd00:7::1", real, 255));
            wire.send(&advertisement("fe80::abc", real, 255));
        }
    });
    let (guest, _server) = plug(&dir, &pod, &node).await;
    wake(&guest).await;
    let routes = routed(&guest).await;
    assert!(
        routes.contains(&format!("default via fe80::abc dev {NIC} proto ra")),
        "{routes}"
    );
    assert!(
        routes.contains(&format!("fd00:8::/64 via fe80::abc dev {NIC} proto ra")),
        "{routes}"
    );
    assert!(!routes.contains("bad"), "{routes}");
    dhclient(&guest, dir.path()).await;
    guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
    replies.abort();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_router_that_advertises_nothing_is_known_by_its_hardware_address() {
    let dir = Scratch::new();
    let (pod, router) = pod(&dir).await;
    let node = Namespace::create(dir.path(), "elsewhere").await.unwrap();
    run(&router, "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding").await;
    let link_local = run(&router, "ip -6 -o addr show dev out0 scope link").await;
    let address = link_local.split_whitespace().nth(3).unwrap();
    let address = address.split('/').next().unwrap();
    let (guest, _server) = plug(&dir, &pod, &node).await;
    wake(&guest).await;
    let routes = routed(&guest).await;
    assert!(
        routes.contains(&format!("default via {address} dev {NIC} proto ra")),
        "{address}: {routes}"
    );
    dhclient(&guest, dir.path()).await;
    guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
}

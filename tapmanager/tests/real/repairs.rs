//! Plugins that say less, or other things, than they do.
//!
//! Invariant: the plugins are shell scripts that leave links as Calico, Weave and Multus leave
//! theirs.
//! Failure: the configuration of the guest, or the program's log.

use serde_json::json;
use tapmanager::wire::{HandoffReply, Network};

use crate::guest::{Guest, run};
use crate::network::boot;
use crate::node::{Node, pod};

/// A node whose only plugin runs `make` for ADD, says `result` then, and runs `unmake` for DEL.
async fn node_with(make: &str, result: &serde_json::Value, unmake: &str) -> Node {
    let mut node = Node::new().await;
    let script = format!(
        "case $CNI_COMMAND in\nADD) exec 3>&1 >&2; set -e\n{make}\necho '{result}' >&3 ;;\n\
         DEL) {unmake} ;;\nesac; exit 0"
    );
    node.plugin("odd", &script).await;
    let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "odd"}]});
    node.configure(&network).await;
    node.launch().await;
    node
}

async fn add(node: &Node) -> Network {
    match node.client().add(pod("one")).await {
        Ok(network) => network,
        Err(error) => panic!("{error:?}\n{}", node.log()),
    }
}

fn repairs(node: &Node) -> Vec<String> {
    let log = node.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("CNI result repaired"));
    lines.map(str::to_owned).collect()
}

async fn gone(node: &Node) {
    node.client().del("one").await.unwrap();
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_gateway_that_is_no_neighbour_serves_the_guest_as_it_serves_a_container() {
    let make =
        "ip link add cali0 type veth peer name tmp0; ip link set tmp0 netns $CNI_NETNS name eth0
        nsenter --net=$CNI_NETNS sh -ec 'ip link set eth0 up; ip addr add 10.71.0.5/32 dev eth0
        ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1 dev eth0'
        ip link set cali0 address ee:ee:ee:ee:ee:ee up; ip addr add 10.71.9.9/32 dev lo
        echo 1 > /proc/sys/net/ipv4/conf/cali0/proxy_arp; echo 1 > /proc/sys/net/ipv4/ip_forward
        echo 0 > /proc/sys/net/ipv4/neigh/cali0/proxy_delay
        ip route add 10.71.0.5 dev cali0 scope link; ip route add default dev lo";
    let result =
        json!({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.71.0.5/32"}]});
    let node = node_with(make, &result, "ip link del cali0; ip addr flush dev lo").await;
    let network = add(&node).await;
    let guest = boot(&node, &network, "guest").await;
    let expected = guest.lease("").await;
    assert_eq!(
        (expected["ip"].as_str(), expected["subnet"].as_str()),
        ("10.71.0.5", "255.255.255.255")
    );
    let routes = "169.254.1.1/32 0.0.0.0 0.0.0.0/0 169.254.1.1";
    assert_eq!(expected["staticroutes"], routes);
    guest.run("busybox ping -c 1 -W 15 10.71.9.9").await;
    run(&node.ns, "busybox ping -c 1 -W 15 10.71.0.5").await;
    let neighbour = guest.run("ip neigh").await;
    assert!(
        neighbour.contains("169.254.1.1 dev nic0 lladdr ee:ee:ee:ee:ee:ee"),
        "{neighbour}"
    );
    let expected = repairs(&node);
    assert_eq!(expected.len(), 3, "{expected:?}");
    // The same request once more is answered from what is known.
    add(&node).await;
    assert_eq!(repairs(&node), expected);
    gone(&node).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn one_address_without_options_is_enough() {
    let make = "ip link add far0 type veth peer name tmp0; ip link set tmp0 netns $CNI_NETNS name eth0
        nsenter --net=$CNI_NETNS sh -ec 'ip link set eth0 mtu 1376 up; ip addr add 10.72.0.5/12 dev eth0
        ip route add default via 10.72.0.1 dev eth0; ip route add 224.0.0.0/4 dev eth0'
        ip link set far0 up; ip addr add 10.72.0.1/12 dev far0";
    let result =
        json!({"cniVersion": "0.3.0", "ips": [{"version": "4", "address": "10.72.0.5/12"}]});
    let node = node_with(make, &result, "ip link del far0").await;
    let network = add(&node).await;
    let gateway = network.nics[0].addresses[0].gateway.unwrap();
    assert_eq!(gateway.to_string(), "10.72.0.1");
    let guest = boot(&node, &network, "guest").await;
    let expected = guest.lease("").await;
    assert_eq!(
        (expected["subnet"].as_str(), expected["mtu"].as_str()),
        ("255.240.0.0", "1376")
    );
    guest.run("busybox ping -c 1 -W 15 10.72.0.1").await;
    gone(&node).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn links_in_the_wrong_order_with_each_others_addresses_become_the_right_nics() {
    let make = "for n in 1 0; do ip link add far$n type veth peer name tmp$n; ip link set far$n up; done
        ip link set tmp1 netns $CNI_NETNS name net1; ip link set tmp0 netns $CNI_NETNS name eth0
        nsenter --net=$CNI_NETNS sh -ec 'ip link set eth0 up; ip link set net1 up
        ip addr add 10.73.0.5/24 dev eth0; ip addr add 10.74.0.5/24 dev net1
        ip route add default via 10.73.0.1 dev eth0; ip route add 10.75.0.0/16 via 10.74.0.1 dev net1'
        ip addr add 10.73.0.1/24 dev far0; ip addr add 10.74.0.1/24 dev far1";
    let result = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "net1", "sandbox": "/n"}, {"name": "far0"}, {"name": "eth0", "sandbox": "/n"},
        ],
        "ips": [
            {"address": "10.74.0.5/24", "interface": 2},
            {"address": "10.73.0.5/24", "interface": 1},
        ],
    });
    let node = node_with(make, &result, "ip link del far0; ip link del far1").await;
    let network = add(&node).await;
    let ips: Vec<String> = network.ips().map(|ip| ip.to_string()).collect();
    assert_eq!(ips, ["10.73.0.5", "10.74.0.5"]);
    let (reply, taps) = node.redeem(&node.token("one").await).await;
    let HandoffReply::Ok { nics } = reply else {
        panic!("{reply:?}")
    };
    for (number, (tap, nic)) in taps.into_iter().zip(&nics).enumerate() {
        let name = format!("guest{number}");
        let guest = Guest::plug(node.scratch.path(), &name, tap, &nic.mac).await;
        let expected = guest.lease("").await;
        assert_eq!(expected["ip"], ips[number]);
        let gateway = ["10.73.0.1", "10.74.0.1"][number];
        guest
            .run(&format!("busybox ping -c 1 -W 15 {gateway}"))
            .await;
    }
    let expected = repairs(&node).join("\n");
    for words in [
        "10.74.0.5 of eth0 is on net1",
        "10.73.0.5 without interface is on eth0",
    ] {
        assert!(expected.contains(words), "{expected}");
    }
    gone(&node).await;
}

//! The plugins that clusters use, one by one, with guests behind the links that they leave.
//!
//! Invariant: the plugins are the real ones, on pairs and bridges of the node's own namespace.
//! Failure: the configuration of the guest, the program's log, or what was left behind.

use netns::Namespace;
use serde_json::{Value, json};
use tapmanager::client::Error;
use tapmanager::wire::{Bandwidth, ErrorCode, Network};

use crate::guest::{Guest, run};
use crate::network::boot;
use crate::node::{Node, pod};

pub(crate) fn chain(plugins: &Value) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
}

pub(crate) fn host_local(node: &Node, range: &Value) -> Value {
    json!({
        "type": "host-local", "dataDir": node.scratch.path().join("leases"),
        "ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]
    })
}

/// A node whose link `wan0` leads to the address 10.66.0.1 of somewhere else.
pub(crate) async fn node_with_parent() -> (Node, Namespace) {
    let node = Node::new().await;
    let dir = node.scratch.path().to_owned();
    let outside = Namespace::create(&dir, "outside").await.unwrap();
    run(
        &node.ns,
        &format!(
            "ip link add wan0 type veth peer name far0 netns {} && ip link set wan0 up",
            outside.path().display()
        ),
    )
    .await;
    run(
        &outside,
        "ip link set far0 up; ip addr add 10.66.0.1/24 dev far0",
    )
    .await;
    (node, outside)
}

async fn add(node: &Node, id: &str) -> Network {
    match node.client().add(pod(id)).await {
        Ok(network) => network,
        Err(error) => panic!("{error:?}\n{}", node.log()),
    }
}

async fn pings(guest: &Guest, address: &str) {
    guest
        .run(&format!("busybox ping -c 1 -W 15 {address}"))
        .await;
}

pub(crate) async fn no_pod_is_left(node: &Node, ids: &[&str]) {
    for id in ids {
        node.client().check(id).await.unwrap();
        node.client().del(id).await.unwrap();
    }
    let mut left = node.leftovers().await;
    left.retain(|line| !line.contains("wan0"));
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn ptp_guests_reach_the_node_and_each_other_by_routes_only() {
    let mut node = Node::new().await;
    let ipam = host_local(&node, &json!({"subnet": "10.67.0.0/24"}));
    node.configure(&chain(
        &json!([{"type": "ptp", "ipMasq": true, "mtu": 1450, "ipam": ipam}]),
    ))
    .await;
    node.launch().await;
    let one = add(&node, "one").await;
    let two = add(&node, "two").await;
    let guest = boot(&node, &one, "g1").await;
    let other = boot(&node, &two, "g2").await;
    let lease = guest.lease("").await;
    let its = other.lease("").await;
    assert_eq!(
        (lease["subnet"].as_str(), lease["mtu"].as_str()),
        ("255.255.255.255", "1450")
    );
    let routes = "10.67.0.1/32 0.0.0.0 10.67.0.0/24 10.67.0.1 0.0.0.0/0 10.67.0.1";
    assert_eq!(lease["staticroutes"], routes);
    pings(&guest, "10.67.0.1").await;
    pings(&guest, &its["ip"]).await;
    run(
        &node.ns,
        &format!("busybox ping -c 1 -W 15 {}", lease["ip"]),
    )
    .await;
    no_pod_is_left(&node, &["one", "two"]).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn macvlan_guests_have_the_macvlans_address_and_meet_their_neighbours() {
    for mode in ["bridge", "private"] {
        let (mut node, outside) = node_with_parent().await;
        let range =
            json!({"subnet": "10.66.0.0/24", "rangeStart": "10.66.0.50", "gateway": "10.66.0.1"});
        let ipam = host_local(&node, &range);
        let plugin = json!({"type": "macvlan", "master": "wan0", "mode": mode, "ipam": ipam});
        node.configure(&chain(&json!([plugin]))).await;
        node.launch().await;
        let one = add(&node, "one").await;
        let two = add(&node, "two").await;
        let guest = boot(&node, &one, "g1").await;
        let other = boot(&node, &two, "g2").await;
        let lease = guest.lease("").await;
        let its = other.lease("").await;
        pings(&guest, "10.66.0.1").await;
        run(
            &outside,
            &format!("busybox ping -c 1 -W 15 {}", lease["ip"]),
        )
        .await;
        let neighbours = run(&outside, "ip neigh").await;
        assert!(neighbours.contains(&one.nics[0].mac), "{neighbours}");
        if mode == "bridge" {
            pings(&guest, &its["ip"]).await;
        }
        drop((guest, other));
        no_pod_is_left(&node, &["one", "two"]).await;
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn plugins_whose_links_cannot_carry_guests_are_refused_before_they_do_anything() {
    for kind in ["ipvlan", "sriov"] {
        let (mut node, _outside) = node_with_parent().await;
        let ipam = host_local(&node, &json!({"subnet": "10.66.0.0/24"}));
        let plugin = json!({"type": kind, "master": "wan0", "ipam": ipam});
        node.configure(&chain(&json!([plugin]))).await;
        node.launch().await;
        let status = node.client().status().await.unwrap();
        assert!(!status.ready && status.message.contains(kind), "{status:?}");
        let Err(Error::Refused(error)) = node.client().add(pod("one")).await else {
            panic!("a network of {kind}")
        };
        assert_eq!(error.code, ErrorCode::NotReady);
        assert!(error.message.contains("macvlan"), "{error}");
        no_pod_is_left(&node, &[]).await;
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn large_packets_cross_the_whole_way() {
    let mut node = Node::new().await;
    let ipam = host_local(&node, &json!({"subnet": "10.69.0.0/24"}));
    let plugin =
        json!({"type": "bridge", "bridge": "cbr0", "isGateway": true, "mtu": 9000, "ipam": ipam});
    node.configure(&chain(&json!([plugin]))).await;
    node.launch().await;
    let one = add(&node, "one").await;
    assert_eq!(one.nics[0].mtu, 9000);
    let pod = Namespace::open(&one.netns).unwrap().unwrap();
    let links = run(&pod, "ip -o link").await;
    assert_eq!(links.matches("mtu 9000").count(), 3, "{links}");
    let guest = boot(&node, &one, "g1").await;
    let lease = guest.lease("").await;
    assert_eq!(lease["mtu"], "9000");
    guest.run("ip link set nic0 mtu 9000").await;
    guest
        .run("busybox ping -c 1 -W 15 -s 8972 10.69.0.1; ip -s link show nic0")
        .await;
    // No part of it was cut.
    let cut = run(&node.ns, "busybox awk '$1 == \"Ip:\"' /proc/net/snmp").await;
    let fields: Vec<&str> = cut.lines().last().unwrap().split(' ').collect();
    // ReasmReqds and FragCreates.
    assert_eq!((fields[14], fields[19]), ("0", "0"), "{cut}");
    no_pod_is_left(&node, &["one"]).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn bandwidth_limits_are_in_force_on_the_nodes_end_and_go_with_the_pod() {
    let mut node = Node::new().await;
    let ipam = host_local(&node, &json!({"subnet": "10.70.0.0/24"}));
    let bridge = json!({"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipam": ipam});
    let limits = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    node.configure(&chain(&json!([bridge, limits]))).await;
    node.launch().await;
    let mut request = pod("one");
    request.bandwidth = Some(Bandwidth {
        ingress_rate: 8_000_000,
        ingress_burst: 2_097_152,
        egress_rate: 16_000_000,
        egress_burst: 2_097_152,
    });
    let one = node.client().add(request).await.unwrap();
    let shown = run(&node.ns, "tc qdisc").await;
    for limit in ["rate 8Mbit burst 256Kb", "rate 16Mbit burst 256Kb"] {
        assert!(shown.contains(limit), "{limit:?}: {shown}");
    }
    let guest = boot(&node, &one, "g1").await;
    let lease = guest.lease("").await;
    pings(&guest, "10.70.0.1").await;
    let ours = node.ns.clone();
    let guests = guest.namespace();
    // Bytes that came in the second after the burst; without limits they would be hundreds of
    // megabytes.
    for (from, to, address, limit) in [
        (&ours, &guests, lease["ip"].as_str(), 1_000_000),
        (&guests, &ours, "10.70.0.1", 2_000_000),
    ] {
        let mut came = Vec::new();
        let is_limited = |came: &usize| *came > limit / 4 && *came < limit * 4;
        // A second in which this host was suspended has no meaning.
        while came.len() < 5 && !came.last().is_some_and(is_limited) {
            came.push(flood(from, to, address).await);
        }
        assert!(came.last().is_some_and(is_limited), "{came:?} of {limit}");
    }
    no_pod_is_left(&node, &["one"]).await;
    assert!(!run(&node.ns, "tc qdisc").await.contains("tbf"));
    assert_eq!(run(&node.ns, "ip -o link show type ifb").await, "");
}

/// Bytes that `to` reads within a second of what `from` writes as fast as it can, after the first
/// 512 KiB.
async fn flood(from: &Namespace, to: &Namespace, address: &str) -> usize {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = to.run(|| std::net::TcpListener::bind("0.0.0.0:7777")).await;
    let listener = listener.unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let peer = format!("{address}:7777");
    let writer = from.run(move || std::net::TcpStream::connect(peer)).await;
    let writer = writer.unwrap().unwrap();
    writer.set_nonblocking(true).unwrap();
    let mut writer = tokio::net::TcpStream::from_std(writer).unwrap();
    // The guest's end is carried by this runtime, so nothing here may block.
    let (mut reader, _) = listener.accept().await.unwrap();
    let water = tokio::spawn(async move { while writer.write_all(&[0; 65_536]).await.is_ok() {} });
    let mut buffer = vec![0; 65_536];
    reader.read_exact(&mut vec![0; 512 * 1024]).await.unwrap();
    let mut came = 0;
    let count = async {
        while let Ok(length) = reader.read(&mut buffer).await {
            came += length;
        }
    };
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), count).await;
    water.abort();
    came
}

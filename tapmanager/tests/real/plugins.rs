//! Plugins that fail, hang, or leave something that is no network.
//!
//! Invariant: bad plugins are shell scripts that write down how they were called.
//! Failure: leftovers of a failed ADD are listed.

use fdpass::AsyncConnection;
use serde_json::{Value, json};
use tapmanager::client::Error;
use tapmanager::wire::{
    AddRequest, ErrorCode, HandoffReply, MAX_MESSAGE, PROTOCOL_VERSION, WireError,
};

use crate::guest::Guest;
use crate::node::{DEADLINE, Node, pod, real_plugins};

/// The real bridge followed by a plugin of ours.
async fn node_with(script: &str) -> Node {
    let mut node = Node::new().await;
    let calls = node.scratch.path().join("calls");
    node.plugin(
        "odd",
        &format!(
            "echo $CNI_COMMAND:$CNI_NETNS >> {}\n{script}",
            calls.display()
        ),
    )
    .await;
    let mut network = real_plugins(node.scratch.path());
    network["plugins"][1] = json!({"type": "odd"});
    node.configure(&network).await;
    // Enough for plugins that are well, on a machine that is slow or is paused for a moment.
    node.flag("--cni-timeout", "8s");
    node.launch().await;
    node
}

fn calls(node: &Node) -> String {
    std::fs::read_to_string(node.scratch.path().join("calls")).unwrap_or_default()
}

async fn refused(node: &Node, request: AddRequest) -> WireError {
    match node.client().add(request).await {
        Err(Error::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_failed_plugin_is_undone_and_its_message_is_passed_on() {
    let node = node_with(
        "if [ $CNI_COMMAND = ADD ]; then \
         echo '{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"no more colours\"}'; exit 1; fi",
    )
    .await;
    let error = refused(&node, pod("one")).await;
    assert_eq!(error.code, ErrorCode::Plugin);
    assert!(error.message.contains("no more colours"), "{error}");
    assert!(calls(&node).contains("DEL:"), "{}", calls(&node));
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
    assert_eq!(node.client().list().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_plugin_that_hangs_is_ended_and_undone() {
    let node = node_with("if [ $CNI_COMMAND = ADD ]; then sleep 600; fi").await;
    let error = refused(&node, pod("one")).await;
    assert_eq!(error.code, ErrorCode::Timeout, "{error}");
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_plugin_whose_del_fails_is_called_again() {
    let node = node_with(
        "case $CNI_COMMAND in ADD) sed 's/.*\"prevResult\"://; s/,\"type\":.*//' ;; \
         DEL) [ -e $0.free ] || { echo '{\"code\":100,\"msg\":\"not yet\"}'; exit 1; } ;; esac",
    )
    .await;
    let network = match node.client().add(pod("one")).await {
        Ok(network) => network,
        Err(error) => panic!("{error:?}\n{}", node.log()),
    };
    let Err(Error::Refused(error)) = node.client().del("one").await else {
        panic!("DEL succeeded")
    };
    assert_eq!(error.code, ErrorCode::Plugin);
    assert!(error.message.contains("not yet"), "{error}");
    assert_eq!(node.client().list().await.unwrap(), ["one"]);
    // Not even the loss of the namespace keeps DEL from ending.
    netns::Namespace::delete(&network.netns).await.unwrap();
    std::fs::write(node.scratch.path().join("bin/odd.free"), "").unwrap();
    node.client().del("one").await.unwrap();
    assert!(calls(&node).ends_with("DEL:\n"), "{}", calls(&node));
    node.becomes_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_node_without_a_network_is_not_ready() {
    let mut node = Node::new().await;
    node.launch().await;
    let status = node.client().status().await.unwrap();
    assert!(!status.ready && !status.message.is_empty(), "{status:?}");
    assert_eq!(refused(&node, pod("one")).await.code, ErrorCode::NotReady);
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_plugin_that_leaves_no_link_or_an_unusable_one_is_at_fault() {
    let result: Value = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.0.0.5/24", "interface": 0}]
    });
    for make in [
        "true",
        "nsenter --net=$CNI_NETNS ip link add eth0 type bridge",
    ] {
        let mut node = Node::new().await;
        let script = format!("[ $CNI_COMMAND = ADD ] && {make} && echo '{result}'; exit 0");
        node.plugin("odd", &script).await;
        let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "odd"}]});
        node.configure(&network).await;
        node.launch().await;
        let error = refused(&node, pod("one")).await;
        assert_eq!(error.code, ErrorCode::Plugin, "{error}");
        assert!(error.message.contains("no link"), "{error}");
        assert_eq!(
            node.leftovers().await,
            Vec::<String>::new(),
            "{}",
            node.log()
        );
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_link_of_the_plugins_becomes_a_nic_with_its_addresses_of_both_families() {
    let mut node = Node::new().await;
    // As Multus does: a second link, of which the result says nothing.
    node.plugin(
        "second",
        "case $CNI_COMMAND in \
         ADD) ip link add net1 mtu 8000 type veth peer name far1 mtu 8000 || exit 1; \
              ip link set far1 up; ip link set net1 netns $CNI_NETNS || exit 1; \
              nsenter --net=$CNI_NETNS sh -ec 'ip link set net1 up; ip addr add 10.77.0.9/16 dev net1; \
              ip -6 addr add fd77::9/64 dev net1 nodad' || exit 1; \
              sed 's/.*\"prevResult\"://; s/,\"type\":.*//' ;; \
         DEL) ip link del far1 2>/dev/null; true ;; esac",
    )
    .await;
    let mut network = real_plugins(node.scratch.path());
    network["plugins"][0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.88.7.0/24"}], [{"subnet": "fd88:7::/64"}]]);
    network["plugins"][1] = json!({"type": "second"});
    node.configure(&network).await;
    node.launch().await;
    let network = match node.client().add(pod("one")).await {
        Ok(network) => network,
        Err(error) => panic!("{error:?}\n{}", node.log()),
    };
    let shown: Vec<_> = network
        .nics
        .iter()
        .map(|nic| (nic.link.as_str(), nic.mtu))
        .collect();
    assert_eq!(shown, [("eth0", 1400), ("net1", 8000)]);
    let ips: Vec<String> = network.ips().map(|ip| ip.to_string()).collect();
    assert_eq!(ips, ["10.88.7.2", "fd88:7::2", "10.77.0.9", "fd77::9"]);
    let gateway = network.nics[0].addresses[1]
        .gateway
        .map(|ip| ip.to_string());
    assert_eq!(gateway.as_deref(), Some("fd88:7::1"));
    let (reply, taps) = node.redeem(&node.token("one").await).await;
    let HandoffReply::Ok { nics } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!((nics.len(), taps.len(), nics[1].mtu), (2, 2, 8000));
    let mut taps = taps.into_iter();
    let first = Guest::plug(
        node.scratch.path(),
        "g0",
        taps.next().unwrap(),
        &nics[0].mac,
    )
    .await;
    let second = Guest::plug(
        node.scratch.path(),
        "g1",
        taps.next().unwrap(),
        &nics[1].mac,
    )
    .await;
    assert_eq!(first.lease("").await["ip"], "10.88.7.2");
    let lease = second.lease("").await;
    assert_eq!(
        (lease["ip"].as_str(), lease["mtu"].as_str()),
        ("10.77.0.9", "8000")
    );
    assert_eq!(lease.get("router"), None);
    first
        .run(
            "echo 0 > /proc/sys/net/ipv6/conf/nic0/disable_ipv6; ip addr add fd88:7::2/64 dev \
            nic0 nodad",
        )
        .await;
    first.run("busybox ping -6 -c 3 -W 15 fd88:7::1").await;
    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

/// A peer that has said hello and looks for the network of `id`; the answer is not awaited.
async fn asks_for(node: &Node, id: &str) -> AsyncConnection {
    let connection = AsyncConnection::connect(&node.control()).unwrap();
    let hello = json!({"op": "hello", "version": PROTOCOL_VERSION}).to_string();
    connection.send(hello.as_bytes(), &[]).await.unwrap();
    let answer = tokio::time::timeout(DEADLINE, connection.recv(MAX_MESSAGE)).await;
    answer.expect("no hello from the program").unwrap();
    let request = json!({"op": "get", "id": id}).to_string();
    connection.send(request.as_bytes(), &[]).await.unwrap();
    connection
}

#[tokio::test]
#[ignore = "needs root"]
async fn requests_that_wait_for_slow_plugins_keep_short_ones_not_waiting() {
    let mut node = Node::new().await;
    let gate = node.scratch.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0; read line < {}; exit 1",
        gate.display()
    );
    node.plugin("slow", &script).await;
    let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "slow"}]});
    node.configure(&network).await;
    node.flag("--cni-timeout", "10m");
    node.launch().await;
    let client = node.client();
    let add = tokio::spawn(async move { client.add(pod("one")).await });
    // It is in the journal, so it has its slot.
    while node.client().list().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut waiting = Vec::new();
    for _ in 0..150 {
        waiting.push(asks_for(&node, "one").await);
    }
    let status = node.client().status().await.unwrap();
    assert!(status.ready, "{status:?}");
    assert!(node.client().counters().await.unwrap().is_empty());
    assert!(!add.is_finished());

    tokio::task::spawn_blocking(move || std::fs::write(gate, "on\n"))
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(add.await.unwrap(), Err(Error::Refused(_))));
    for connection in waiting {
        let answer = tokio::time::timeout(DEADLINE, connection.recv(MAX_MESSAGE)).await;
        let answer = answer.expect("no answer").unwrap().unwrap();
        let answer: Value = serde_json::from_slice(&answer.bytes).unwrap();
        assert_eq!(answer["error"]["code"], "not_found", "{answer}");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn plugins_are_asked_to_collect_only_where_the_settings_allow_it() {
    let mut node = node_with("true").await;
    let network = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "odd"}]});
    node.configure(&network).await;
    let none = Vec::<String>::new();
    assert_eq!(node.client().gc(Vec::new()).await.unwrap(), none);
    assert_eq!(calls(&node), "");

    node.terminate().await;
    node.flag("--cni-plugin-gc", "true");
    node.launch().await;
    assert_eq!(node.client().gc(Vec::new()).await.unwrap(), none);
    assert_eq!(calls(&node), "GC:\n");
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_plugins_leave_beside_the_main_table_and_the_nics_is_reported() {
    let node = node_with(
        "case $CNI_COMMAND in ADD) nsenter --net=$CNI_NETNS sh -ec '\
         ip rule add from 10.88.7.0/24 table 100 priority 1000; \
         ip route add 203.0.113.0/24 via 10.88.7.1 dev eth0 table 100; \
         ip route add blackhole 198.51.100.0/24; ip addr add 192.0.2.7/32 dev lo' || exit 1; \
         sed 's/.*\"prevResult\"://; s/,\"type\":.*//' ;; esac",
    )
    .await;
    let network = match node.client().add(pod("one")).await {
        Ok(network) => network,
        Err(error) => panic!("{error:?}\n{}", node.log()),
    };
    let omitted = network.omitted.join("\n");
    for part in [
        "priority 1000 to table 100",
        "203.0.113.0/24 via 10.88.7.1 on eth0 in table 100",
        "blackhole 198.51.100.0/24 in table 254",
        "192.0.2.7/32 on \"lo\"",
    ] {
        assert!(omitted.contains(part), "{part}: {omitted}");
    }
    assert_eq!(network.omitted.len(), 3, "{omitted}");
    node.client().del("one").await.unwrap();
    node.becomes_clean().await;
}

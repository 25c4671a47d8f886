//! Networks of pods from ADD to DEL, with a real DHCP client as the guest.
//!
//! Invariant: node, pods and guests are namespaces of the test's own.
//! Failure: the program's log is in the panic, or what was left behind.
use std::collections::BTreeSet;

use crate::guest::{Guest, NIC, run};
use crate::node::{Node, pod};
use tapmanager::client::Error;
use tapmanager::wire::{ErrorCode, HandoffReply, Network, PortMapping};

/// Frames of the guest that get no answer are counted as sent by it.
async fn count(node: &Node, guest: &Guest) {
    let counted = async || {
        let all = node.client().counters().await.unwrap();
        assert_eq!((all.len(), all[0].id.as_str()), (1, "one"));
        assert_eq!(
            (all[0].nics.len(), all[0].nics[0].link.as_str()),
            (1, "eth0")
        );
        all[0].nics[0].clone()
    };
    let before = counted().await;
    assert!(before.rx_bytes > 0 && before.tx_bytes > 0, "{before:?}");
    guest
        .run(&format!(
            "ip neigh add 10.88.7.99 lladdr 02:00:00:00:00:99 dev {NIC} \
             && busybox ping -q -c 3 -s 1300 -W 1 10.88.7.99; true"
        ))
        .await;
    let after = counted().await;
    let sent = after.tx_bytes - before.tx_bytes;
    let received = after.rx_bytes - before.rx_bytes;
    assert!(sent >= 3900 && received < sent / 2, "{before:?} {after:?}");
}

/// A guest that has the network's first NIC.
pub(crate) async fn boot(node: &Node, network: &Network, name: &str) -> Guest {
    let (reply, taps) = node.redeem(&node.token(&network.id).await).await;
    let HandoffReply::Ok { nics } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!((nics.len(), taps.len()), (1, 1));
    assert_eq!(nics[0].mac, network.nics[0].mac);
    let tap = taps.into_iter().next().unwrap();
    Guest::plug(node.scratch.path(), name, tap, &nics[0].mac).await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_the_network_of_its_pod_and_nothing_is_left_after_del() {
    let node = Node::start().await;
    let mut request = pod("one");
    request.port_mappings = vec![PortMapping {
        host_port: 8080,
        container_port: 80,
        protocol: "tcp".to_owned(),
        host_ip: String::new(),
    }];
    let status = node.client().status().await.unwrap();
    assert!(status.ready, "{status:?}");
    assert_eq!((status.network.as_str(), status.plugins.len()), ("pods", 2));

    let network = node.client().add(request.clone()).await.unwrap();
    let again = node.client().add(request).await.unwrap();
    assert_eq!(again, network);
    assert_eq!(node.client().get("one").await.unwrap(), network);
    node.client().check("one").await.unwrap();
    let nic = &network.nics[0];
    assert_eq!((nic.link.as_str(), nic.mtu), ("eth0", 1400));
    assert_eq!(network.omitted, [""; 0]);
    let address = network.ips().next().unwrap().to_string();

    let guest = boot(&node, &network, "guest").await;
    let received = guest.lease("").await;
    let get = |name: &str| received.get(name).cloned().unwrap_or_default();
    assert_eq!(get("ip"), address);
    assert_eq!(
        (get("subnet"), get("mtu")),
        ("255.255.255.0".to_owned(), "1400".to_owned())
    );
    assert_eq!(get("hostname"), "host-one");
    assert_eq!(get("dns"), "10.96.0.10");
    assert_eq!(get("search"), "svc.cluster.local cluster.local");
    assert_eq!(
        get("staticroutes"),
        "10.99.0.0/16 10.88.7.1 0.0.0.0/0 10.88.7.1"
    );
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    speak(&guest, &network).await;
    run(&node.ns, &format!("busybox ping -c 1 -W 15 {address}")).await;
    count(&node, &guest).await;
    let rules = run(&node.ns, "iptables -w 5 -t nat -S").await;
    assert!(
        rules.contains(&format!("--to-destination {address}:80")),
        "{rules}"
    );

    node.client().del("one").await.unwrap();
    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
    assert_eq!(node.client().list().await.unwrap(), Vec::<String>::new());
    let gone = node.client().get("one").await;
    assert!(matches!(gone, Err(Error::Refused(e)) if e.code == ErrorCode::NotFound));
}

/// The guest speaks to the node from the address of the pod.
async fn speak(guest: &Guest, network: &Network) {
    let socket = guest.udp("0.0.0.0:0").await;
    let from = network.ips().next().unwrap();
    socket.connect("10.88.7.1:9").await.unwrap();
    assert_eq!(socket.local_addr().unwrap().ip(), from);
}

#[tokio::test]
#[ignore = "needs root"]
async fn many_pods_at_once_get_different_addresses_and_one_pod_at_once_gets_one() {
    let node = Node::start().await;
    let pods = (0..6).map(|n| {
        let client = node.client();
        async move { client.add(pod(&format!("pod{n}"))).await.unwrap() }
    });
    let same = (0..4).map(|_| {
        let client = node.client();
        async move { client.add(pod("same")).await.unwrap() }
    });
    let (networks, same) = tokio::join!(
        futures_util::future::join_all(pods),
        futures_util::future::join_all(same)
    );
    let ips: BTreeSet<_> = networks
        .iter()
        .chain(&same)
        .flat_map(Network::ips)
        .collect();
    assert_eq!(ips.len(), 7, "{ips:?}");
    assert!(same.iter().all(|network| *network == same[0]));
    let two = boot(&node, &networks[2], "g2").await;
    let three = boot(&node, &networks[3], "g3").await;
    let lease_two = two.lease("").await;
    let lease_three = three.lease("").await;
    assert_ne!(lease_two["ip"], lease_three["ip"]);
    two.run(&format!("busybox ping -c 1 -W 15 {}", lease_three["ip"]))
        .await;

    let gone = node.client().gc(vec!["pod2".to_owned()]).await.unwrap();
    assert_eq!(gone.len(), 6);
    assert_eq!(node.client().list().await.unwrap(), ["pod2"]);
    two.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    node.client().del("pod2").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_second_request_for_a_pod_must_be_the_same() {
    let node = Node::start().await;
    node.client().add(pod("one")).await.unwrap();
    let mut other = pod("one");
    other.hostname = "another".to_owned();
    let refused = node.client().add(other).await;
    assert!(matches!(refused, Err(Error::Refused(e)) if e.code == ErrorCode::Invalid));
    let hostile = node.client().add(pod("../one")).await;
    assert!(matches!(hostile, Err(Error::Refused(e)) if e.code == ErrorCode::Invalid));
    node.client().del("one").await.unwrap();
}

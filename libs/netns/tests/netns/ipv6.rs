//! A guest that learns its IPv6 from us: by its kernel from router advertisements, by `dhclient`
//! from DHCPv6.
//!
//! Invariant: the guest's kernel is set up as distributions do; only our servers configure it.
//! Failure: the test prints the configuration that the guest received.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

use netns::ipv6::{Lease, Node, Port, Server};
use netns::netlink::Kernel;
use netns::{Guard, Namespace, bridge_setup, open_tap};
use socket2::{Domain, Protocol, Socket, Type};

use crate::guest::{Guest, NIC, Scratch, run};
use crate::speaks6::{dhclient, routed, settled, wake};

/// A pod whose `eth0` leads to `out0` of a node that has `fd00:99::1` behind it.
pub(crate) async fn pod(dir: &Scratch) -> (Namespace, Namespace) {
    let node = Namespace::create(dir.path(), "node").await.unwrap();
    let pod = Namespace::create(dir.path(), "pod").await.unwrap();
    let wire = format!(
        "ip link set lo up && ip addr add fd00:99::1/128 dev lo \
         && ip link add out0 mtu 1400 type veth peer name eth0 mtu 1400 netns {} && ip link set out0 up \
         && ip addr add fd00:7::1/64 dev out0 nodad",
        pod.path().display()
    );
    run(&node, &wire).await;
    let plug = "ip link set eth0 up && ip addr add fd00:7::5/64 dev eth0 nodad \
        && ip route add default via fd00:7::1 && ip route add fd00:8::/64 via fd00:7::1";
    run(&pod, plug).await;
    (pod, node)
}

fn lease(record: &bridge_setup::LinkRecord) -> Lease {
    let gateway = Some("fd00:7::1".parse().unwrap());
    Lease {
        mac: record.mac,
        addresses: vec!["fd00:7::5/64".parse().unwrap()],
        routes: vec![
            ("::/0".parse().unwrap(), gateway),
            ("fd00:8::/64".parse().unwrap(), gateway),
        ],
        mtu: record.mtu,
        dns: vec!["fd00:96::a".parse().unwrap()],
        searches: vec!["svc.cluster.local".to_owned(), "cluster.local".to_owned()],
        hostname: Some("vm-1".to_owned()),
    }
}

/// A guest in the place of the pod's link, and its server.
pub(crate) async fn plug(dir: &Scratch, pod: &Namespace, node: &Namespace) -> (Guest, Server) {
    let net = Kernel::open(pod).await.unwrap();
    bridge_setup::prepare(&net).await.unwrap();
    let records = bridge_setup::survey(&net).await.unwrap();
    let own = Guard::Own(vec!["fd00:7::5".parse().unwrap()]);
    bridge_setup::apply(&net, &records, &[own]).await.unwrap();
    let port = Port {
        link: records[0].link.clone(),
        tap: records[0].tap.clone(),
        lease: lease(&records[0]),
    };
    let server = Server::start(pod, &Node::new(node.clone()), vec![port])
        .await
        .unwrap();
    let tap = open_tap(pod, &records[0].tap).await.unwrap();
    let guest = Guest::plug(dir.path(), "guest", tap, &records[0].mac.to_string()).await;
    (guest, server)
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_its_ipv6_address_and_routes_through_the_gateway_of_its_pod() {
    let dir = Scratch::new();
    let (pod, node) = pod(&dir).await;
    let (guest, server) = plug(&dir, &pod, &node).await;

    // A DHCPv6 server outside would receive every request that gets out.
    let ears = node
        .run(|| std::net::UdpSocket::bind("[::]:547"))
        .await
        .unwrap()
        .unwrap();
    ears.set_nonblocking(true).unwrap();
    let link = run(&node, "ip -o link show out0 | cut -d: -f1").await;
    ears.join_multicast_v6(&"ff02::1:2".parse().unwrap(), link.trim().parse().unwrap())
        .unwrap();

    wake(&guest).await;
    let routes = routed(&guest).await;
    let reported = dhclient(&guest, dir.path()).await;
    let addresses = guest
        .run(&format!("ip -6 -o addr show dev {NIC} scope global"))
        .await;
    let mtu = guest
        .run(&format!("cat /proc/sys/net/ipv6/conf/{NIC}/mtu"))
        .await;
    guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
    let outside = run(&node, "ip -6 -o addr show dev out0 scope link").await;
    let received = run(&node, "cat /proc/net/dev_snmp6/out0").await;
    let leaked = ears.recv_from(&mut [0; 16]);
    let inside = run(&pod, "ip -6 -o addr").await;

    let get = |name: &str| reported.get(name).map(String::as_str);
    assert_eq!(get("new_ip6_address"), Some("fd00:7::5"));
    assert_eq!(get("new_dhcp6_name_servers"), Some("fd00:96::a"));
    assert_eq!(
        get("new_dhcp6_domain_search"),
        Some("svc.cluster.local. cluster.local.")
    );
    assert_eq!(get("new_max_life"), Some("86400"));
    assert_eq!(addresses.lines().count(), 1, "{addresses}");
    assert!(addresses.contains("fd00:7::5/128"), "{addresses}");
    let gateway = outside
        .split_whitespace()
        .nth(3)
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    assert!(
        routes.contains(&format!("default via {gateway} dev {NIC} proto ra")),
        "{routes}"
    );
    assert!(
        routes.contains(&format!("fd00:8::/64 via {gateway} dev {NIC} proto ra")),
        "{routes}"
    );
    assert!(
        routes.contains(&format!("fd00:7::/64 dev {NIC} proto kernel")),
        "{routes}"
    );
    assert_eq!(mtu.trim(), "1400");
    assert!(
        !inside.contains("eth0") && !inside.contains("vm"),
        "{inside}"
    );
    assert!(leaked.is_err(), "a DHCPv6 request left the pod: {leaked:?}");
    let solicitations = received
        .lines()
        .find(|line| line.contains("InRouterSolicits"))
        .unwrap();
    assert_eq!(solicitations.split_whitespace().nth(1), Some("0"));
    drop(server);
}

/// Requests routers as a kernel does, without forgetting what it knows.
async fn solicit(dir: &Scratch) {
    let guest = Namespace::open(&dir.path().join("guest")).unwrap().unwrap();
    let ask = || -> std::io::Result<usize> {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        let nic = nix::net::if_::if_nametoindex(NIC)?;
        socket.set_multicast_if_v6(nic)?;
        socket.set_multicast_hops_v6(255)?;
        let routers = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2), 0, 0, nic);
        socket.send_to(&[133, 0, 0, 0, 0, 0, 0, 0], &routers.into())
    };
    let sent = guest.run(ask).await.unwrap();
    sent.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_gateway_that_has_another_link_local_address_takes_the_place_of_the_old_one() {
    let dir = Scratch::new();
    let (pod, node) = pod(&dir).await;
    let (guest, _server) = plug(&dir, &pod, &node).await;
    wake(&guest).await;
    routed(&guest).await;
    settled(&guest).await;
    let change = "ip addr flush dev out0 scope link; ip addr add fe80::77/64 dev out0 nodad";
    run(&node, change).await;
    let moved = async {
        loop {
            solicit(&dir).await;
            let routes = guest.run("ip -6 route show default").await;
            if routes.lines().count() == 1 && routes.contains("via fe80::77") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), moved)
        .await
        .unwrap();
    dhclient(&guest, dir.path()).await;
    guest.run("busybox ping -6 -c 1 -W 15 fd00:99::1").await;
}

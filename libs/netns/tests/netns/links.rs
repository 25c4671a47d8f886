//! A pod's network with a real DHCP client behind its tap and a listening neighbour before its
//! link.
//!
//! Invariant: pod, guest and neighbour are namespaces made by the test, which go with its
//! directory.
//! Failure: the test prints the configuration that the guest received.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use crate::guest::{Guest, Scratch, run};
use netns::dhcp::{Lease, Server};
use netns::netlink::Kernel;
use netns::{Guard, Namespace, bridge_setup, open_tap};

/// A pod whose `eth0` (10.1.2.5/24, MTU 1400) leads to `out0` (10.1.2.1) of another namespace.
async fn pod(dir: &Scratch) -> (Namespace, Namespace) {
    let outside = Namespace::create(dir.path(), "outside").await.unwrap();
    let pod = Namespace::create(dir.path(), "pod").await.unwrap();
    run(
        &outside,
        &format!(
            "ip link add out0 mtu 1400 type veth peer name eth0 mtu 1400 netns {} && ip link set out0 up \
             && ip addr add 10.1.2.1/24 dev out0",
            pod.path().display()
        ),
    )
    .await;
    run(
        &pod,
        "ip link set eth0 up && ip addr add 10.1.2.5/24 dev eth0 && ip route add default via \
         10.1.2.1",
    )
    .await;
    (pod, outside)
}

fn lease(record: &bridge_setup::LinkRecord) -> Lease {
    Lease {
        mac: record.mac,
        address: "10.1.2.5/24".parse().unwrap(),
        gateway: Some(Ipv4Addr::new(10, 1, 2, 1)),
        routes: vec![(
            "10.7.0.0/16".parse().unwrap(),
            Some(Ipv4Addr::new(10, 1, 2, 1)),
        )],
        mtu: record.mtu,
        dns: vec![Ipv4Addr::new(10, 96, 0, 10)],
        searches: vec!["svc.cluster.local".to_owned(), "cluster.local".to_owned()],
        hostname: Some("vm-1".to_owned()),
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_its_lease_and_reaches_its_gateway_and_no_dhcp_leaves() {
    let dir = Scratch::new();
    let (pod, outside) = pod(&dir).await;
    let net = Kernel::open(&pod).await.unwrap();
    bridge_setup::prepare(&net).await.unwrap();
    let records = bridge_setup::survey(&net).await.unwrap();
    let own = Guard::Own(vec![Ipv4Addr::new(10, 1, 2, 5).into()]);
    bridge_setup::apply(&net, &records, &[own]).await.unwrap();
    let leases = vec![(records[0].bridge.clone(), lease(&records[0]))];
    let server = Server::start(&pod, leases).await.unwrap();
    let tap = open_tap(&pod, &records[0].tap).await.unwrap();
    assert!(tap.as_raw_fd() > 2);
    // A DHCP server outside that would receive every request that gets out.
    let ears = outside
        .run(|| std::net::UdpSocket::bind("0.0.0.0:67"))
        .await
        .unwrap()
        .unwrap();
    ears.set_nonblocking(true).unwrap();

    let guest = Guest::plug(dir.path(), "guest", tap, &records[0].mac.to_string()).await;
    let bound = guest.lease("").await;
    guest.run("busybox ping -c 1 -W 15 10.1.2.1").await;
    // A renewal goes to the server's address, which only the gateway could reach by routing.
    let renewed = renew(&guest, records[0].mac).await;
    let leaked = ears.recv_from(&mut [0; 16]);

    let ports = run(&pod, "bridge -d link").await;

    bridge_setup::restore(&net, &records).await.unwrap();
    let after = bridge_setup::survey(&net).await.unwrap();
    drop(server);

    let get = |name: &str| bound.get(name).map(String::as_str);
    assert_eq!(get("ip"), Some("10.1.2.5"));
    assert_eq!(get("subnet"), Some("255.255.255.0"));
    assert_eq!(get("mtu"), Some("1400"));
    assert_eq!(get("dns"), Some("10.96.0.10"));
    assert_eq!(get("hostname"), Some("vm-1"));
    assert_eq!(get("search"), Some("svc.cluster.local cluster.local"));
    assert_eq!(get("lease"), Some("86400"));
    assert_eq!(get("serverid"), Some("169.254.254.1"));
    assert_eq!(
        get("staticroutes"),
        Some("10.7.0.0/16 10.1.2.1 0.0.0.0/0 10.1.2.1")
    );
    assert_eq!(get("router"), None);
    assert_eq!(ports.matches("learning off").count(), 2, "{ports}");
    assert!(renewed, "no answer to a unicast renewal");
    assert!(leaked.is_err(), "a DHCP request left the pod: {leaked:?}");
    assert_eq!(after[0].addresses, records[0].addresses);
    assert_eq!(
        (after[0].mac, &after[0].routes),
        (records[0].mac, &records[0].routes)
    );
}

/// Whether a REQUEST in state RENEWING, sent by unicast, is answered to the address in use.
async fn renew(guest: &Guest, mac: netns::Mac) -> bool {
    let socket = guest.udp("10.1.2.5:68").await;
    let mut packet = vec![0_u8; 236];
    packet[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    packet[12..16].copy_from_slice(&[10, 1, 2, 5]);
    packet[28..34].copy_from_slice(&mac.bytes());
    packet.extend([99, 130, 83, 99, 53, 1, 3, 255]);
    let mut answer = [0; 600];
    for _ in 0..60 {
        socket.send_to(&packet, "169.254.254.1:67").await.unwrap();
        let wait = std::time::Duration::from_secs(1);
        if let Ok(received) = tokio::time::timeout(wait, socket.recv_from(&mut answer)).await {
            let (_, from) = received.unwrap();
            return answer[4..8] == [1, 2, 3, 4] && from.to_string() == "169.254.254.1:67";
        }
    }
    false
}

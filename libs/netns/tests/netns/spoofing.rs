//! Frames of a hostile guest, and which hosts receive them.
//!
//! Invariant: the test holds the tap in the place of the guest, and writes frames to it as QEMU
//! would; neighbours listen to everything on the other end of the plugin's link. Each frame ends
//! with its name.
//! Failure: names of frames that got through, or did not.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use crate::frames::{BROADCAST, Bytes, arp, ether, icmp6, ip4, ip6, mac, udp};
use crate::guest::{Scratch, run};
use crate::traffic::{GATEWAY, NODES, OWN, OWN6, honest, hostile};
use crate::wire::Wire;
use netns::bridge_setup::LinkRecord;
use netns::netlink::Kernel;
use netns::{Guard, Namespace, bridge_setup, open_tap};

/// A pod between a guest, whose tap this holds, and its neighbours.
struct Pod {
    scratch: Scratch,
    pod: Namespace,
    records: Vec<LinkRecord>,
    kernel: Kernel,
    guest: Wire,
    outside: Wire,
}

impl Pod {
    async fn with(guard: Guard) -> Self {
        let scratch = Scratch::new();
        let outside = Namespace::create(scratch.path(), "outside").await.unwrap();
        let pod = Namespace::create(scratch.path(), "pod").await.unwrap();
        let make = format!(
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
             ip link add out0 type veth peer name eth0 address 02:aa:00:00:00:05 netns {} && ip link set out0 up",
            pod.path().display()
        );
        run(&outside, &make).await;
        let make = "echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad; ip link set eth0 up; \
                    ip addr add 10.1.2.5/24 dev eth0; ip addr add fd00:1::5/64 dev eth0 nodad";
        run(&pod, make).await;
        let kernel = Kernel::open(&pod).await.unwrap();
        bridge_setup::prepare(&kernel).await.unwrap();
        let records = bridge_setup::survey(&kernel).await.unwrap();
        bridge_setup::apply(&kernel, &records, &[guard])
            .await
            .unwrap();
        let tap: OwnedFd = open_tap(&pod, &records[0].tap).await.unwrap();
        Self {
            outside: Wire::link(&outside, "out0").await,
            guest: Wire::tap(tap),
            scratch,
            pod,
            records,
            kernel,
        }
    }

    fn mac(&self) -> [u8; 6] {
        self.records[0].mac.bytes()
    }
}

fn guarded() -> Guard {
    Guard::Own(vec![OWN.parse().unwrap(), OWN6.parse().unwrap()])
}

fn names(frames: &[(&'static str, Bytes)]) -> BTreeSet<String> {
    frames.iter().map(|(name, _)| (*name).to_owned()).collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn only_allowed_frames_reach_the_neighbours() {
    let pod = Pod::with(guarded()).await;
    let good = honest(pod.mac());
    let bad = hostile(pod.mac());
    let received = pod
        .guest
        .send_frames(&pod.outside, &[good.clone(), bad].concat(), &good[0])
        .await;
    assert_eq!(received, names(&good));
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_unfiltered_guest_may_send_anything_but_dhcp_and_router_requests() {
    let pod = Pod::with(Guard::Open).await;
    let good = honest(pod.mac());
    let bad = hostile(pod.mac());
    let received = pod
        .guest
        .send_frames(
            &pod.outside,
            &[good.clone(), bad.clone()].concat(),
            &good[0],
        )
        .await;
    // The bridge itself drops frames for bridges, and IPv4 that cannot be parsed.
    let silent: BTreeSet<String> = names(&bad).difference(&received).cloned().collect();
    for name in [
        "DHCP discover",
        "DHCP request",
        "DHCPv6 solicit",
        "router solicitation",
    ] {
        assert!(silent.contains(name), "{silent:?}");
    }
    for name in [
        "another MAC",
        "ARP for the gateway",
        "router advertisement",
        "VLAN",
    ] {
        assert!(!silent.contains(name), "{silent:?}");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn rules_are_replaced_and_a_link_given_back_is_out_of_the_guests_reach() {
    let pod = Pod::with(Guard::Open).await;
    bridge_setup::protect(&pod.kernel, &pod.records, &[guarded()])
        .await
        .unwrap();
    let me = pod.mac();
    let good = honest(me);
    let bad = hostile(me);
    let received = pod.guest.send_frames(&pod.outside, &bad, &good[0]).await;
    assert_eq!(received, BTreeSet::from([good[0].0.to_owned()]));
    bridge_setup::restore(&pod.kernel, &pod.records)
        .await
        .unwrap();
    let links = run(&pod.pod, "bridge link").await;
    assert!(links.contains(&pod.records[0].tap), "{links}");
    assert!(!links.contains("eth0"), "{links}");
    drop(pod.scratch);
}

#[tokio::test]
#[ignore = "needs root"]
async fn neighbours_reach_the_guest_but_do_not_configure_it() {
    let pod = Pod::with(guarded()).await;
    let me = pod.mac();
    let other = mac("02:00:00:00:00:77");
    let v6 = |next, body: &[u8]| {
        ether(
            other,
            mac("33:33:00:00:00:01"),
            0x86dd,
            &ip6("fe80::1", NODES, next, body),
        )
    };
    let good = vec![
        (
            "ARP",
            ether(other, BROADCAST, 0x806, &arp(1, other, GATEWAY, OWN)),
        ),
        (
            "UDP",
            ether(
                other,
                me,
                0x800,
                &ip4(GATEWAY, OWN, 17, 0, &udp(53, 4000, b"x")),
            ),
        ),
        (
            "multicast",
            ether(
                other,
                mac("01:00:5e:00:00:fb"),
                0x800,
                &ip4(GATEWAY, "224.0.0.251", 17, 0, &udp(53, 53, b"")),
            ),
        ),
        ("solicitation", v6(58, &icmp6(135, OWN6))),
    ];
    let bad = vec![
        (
            "DHCP offer",
            ether(
                other,
                BROADCAST,
                0x800,
                &ip4(GATEWAY, "255.255.255.255", 17, 0, &udp(67, 68, b"")),
            ),
        ),
        ("router advertisement", v6(58, &icmp6(134, "::"))),
        ("DHCPv6 advertise", v6(17, &udp(547, 546, b""))),
    ];
    let received = pod
        .outside
        .send_frames(&pod.guest, &[good.clone(), bad].concat(), &good[0])
        .await;
    assert_eq!(received, names(&good));
}

#[tokio::test]
#[ignore = "needs root"]
async fn only_our_server_receives_on_the_sockets_of_the_namespace() {
    for guard in [guarded(), Guard::Open] {
        let pod = Pod::with(guard).await;
        let sockets = pod.pod.run(|| {
            let bind = |address: &str| {
                let socket = std::net::UdpSocket::bind(address).unwrap();
                socket
                    .set_read_timeout(Some(std::time::Duration::from_secs(60)))
                    .unwrap();
                socket
            };
            (
                bind("0.0.0.0:67"),
                bind("0.0.0.0:5353"),
                std::net::TcpListener::bind("0.0.0.0:22").unwrap(),
            )
        });
        let (dhcp, udp_socket, tcp) = sockets.await.unwrap();
        let me = pod.mac();
        let bridge = pod.records[0].bridge_mac.bytes();
        let server = "169.254.254.1";
        let other = mac("02:00:00:00:00:77");
        let mut syn = [0; 20];
        (syn[1], syn[3], syn[12], syn[13]) = (99, 22, 0x50, 2);
        for (wire, from, ip) in [(&pod.guest, me, OWN), (&pod.outside, other, GATEWAY)] {
            let to = |body: &[u8]| ether(from, bridge, 0x800, body);
            wire.send(&to(&ip4(ip, server, 17, 0, &udp(4000, 5353, b"query"))));
            wire.send(&ether(
                from,
                BROADCAST,
                0x800,
                &ip4(ip, "255.255.255.255", 17, 0, &udp(4000, 5353, b"query")),
            ));
            wire.send(&to(&ip4(
                ip,
                "127.0.0.1",
                17,
                0,
                &udp(4000, 5353, b"query"),
            )));
            wire.send(&to(&ip4(ip, server, 6, 0, &syn)));
            wire.send(&to(&ip4(ip, server, 1, 0, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])));
        }
        pod.outside.send(&ether(
            other,
            bridge,
            0x800,
            &ip4(GATEWAY, server, 17, 0, &udp(68, 67, b"intruder")),
        ));
        pod.guest.send(&ether(
            me,
            BROADCAST,
            0x800,
            &ip4("0.0.0.0", "255.255.255.255", 17, 0, &udp(68, 67, b"client")),
        ));
        let (length, _) = dhcp.recv_from(&mut [0; 99]).unwrap();
        assert_eq!(length, b"client".len());
        udp_socket.set_nonblocking(true).unwrap();
        tcp.set_nonblocking(true).unwrap();
        assert!(udp_socket.recv_from(&mut [0; 99]).is_err());
        assert!(tcp.accept().is_err());
        // The server's own address is there for the guest to find, and answers nothing else. A
        // request may be lost, and a guest repeats it.
        let request = ether(me, BROADCAST, 0x806, &arp(1, me, OWN, server));
        let answer = pod
            .guest
            .answer_to(&request, |frame| frame[6..12] == bridge)
            .await;
        assert_eq!(
            (answer[12], answer[13], answer[21]),
            (8, 6, 2),
            "{answer:x?}"
        );
        // A frame of the guest comes after all that the namespace has sent to its neighbours.
        let (_, word) = &honest(me)[0];
        pod.guest.send(word);
        let mut speaker = Vec::new();
        while speaker != me {
            speaker = pod.outside.next().await[6..12].to_vec();
            assert_ne!(speaker, bridge, "the namespace speaks to neighbours");
        }
    }
}

//! A guest that learns its IPv6 from us: by its kernel from router advertisements, by `dhclient` from
//! DHCPv6.
//!
//! Invariant: the guest's kernel is set up as distributions do; nothing but our servers tells it anything.
//! Failure: the test prints what the guest was told.

use std::collections::BTreeMap;
use std::path::Path;

use netns::ipv6::{Lease, Server};
use netns::netlink::Kernel;
use netns::{Namespace, open_tap, surgery};

use crate::guest::{Guest, NIC, Scratch, run};

/// What `dhclient` runs: it keeps the variables and sets the address.
const SCRIPT: &str = r#"#!/bin/sh
case "$reason" in
BOUND6|REBOOT6|RENEW6|REBIND6)
  ip addr replace "$new_ip6_address/$new_ip6_prefixlen" dev "$interface"
  env > "$REPORT.part"
  mv "$REPORT.part" "$REPORT"
  ;;
esac
"#;

/// A pod whose `eth0` leads to `out0` of a node that has `fd00:99::1` behind it.
async fn pod(dir: &Scratch) -> (Namespace, Namespace) {
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

fn lease(record: &surgery::LinkRecord) -> Lease {
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

/// Switches the guest's IPv6 on, as it comes up in a fresh kernel.
async fn wake(guest: &Guest) {
    let wake = format!(
        "cd /proc/sys/net/ipv6/conf/{NIC} && echo 128 > accept_ra_rt_info_max_plen \
         && echo 1 > accept_ra && echo 0 > disable_ipv6"
    );
    guest.run(&wake).await;
}

/// Waits until the guest's kernel has a default route; returns all its routes.
async fn routed(guest: &Guest) -> String {
    guest
        .run("until ip -6 route show default | grep -q via; do busybox sleep 0.05; done; ip -6 route")
        .await
}

/// Asks for a lease and returns the variables of the client's script.
async fn dhclient(guest: &Guest, dir: &Path) -> BTreeMap<String, String> {
    let at = |name: &str| dir.join(name).display().to_string();
    tokio::fs::write(at("dhclient.sh"), SCRIPT).await.unwrap();
    let ask = format!(
        "chmod +x {script}; rm -f {report}; REPORT={report}; export REPORT; \
         until ! ip -6 addr show dev {NIC} scope link | grep -q tentative; do busybox sleep 0.05; done; \
         dhclient -6 -1 -d -v -cf /dev/null -lf {leases} -pf {pid} -sf {script} -e REPORT={report} {NIC} & \
         until [ -e {report} ]; do busybox sleep 0.05; done; kill $!; wait",
        script = at("dhclient.sh"),
        report = at("lease6"),
        leases = at("leases6"),
        pid = at("dhclient.pid"),
    );
    guest.run(&ask).await;
    let text = tokio::fs::read_to_string(at("lease6")).await.unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_its_ipv6_address_and_routes_through_the_gateway_of_its_pod() {
    let dir = Scratch::new();
    let (pod, node) = pod(&dir).await;
    let net = Kernel::open(&pod).await.unwrap();
    surgery::prepare(&net).await.unwrap();
    let records = surgery::survey(&net).await.unwrap();
    surgery::apply(&net, &records).await.unwrap();
    let leases = vec![(records[0].tap.clone(), lease(&records[0]))];
    let server = Server::start(&pod, &node, leases.clone()).await.unwrap();
    let tap = open_tap(&pod, &records[0].tap).await.unwrap();
    let guest = Guest::plug(dir.path(), "guest", tap, &records[0].mac.to_string()).await;

    wake(&guest).await;
    let routes = routed(&guest).await;
    let told = dhclient(&guest, dir.path()).await;
    let addresses = guest
        .run(&format!("ip -6 -o addr show dev {NIC} scope global"))
        .await;
    let mtu = guest
        .run(&format!("cat /proc/sys/net/ipv6/conf/{NIC}/mtu"))
        .await;
    guest.run("busybox ping -6 -c 1 -W 5 fd00:99::1").await;
    let outside = run(&node, "ip -6 -o addr show dev out0 scope link").await;
    let inside = run(&pod, "ip -6 -o addr").await;

    let get = |name: &str| told.get(name).map(String::as_str);
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
    drop(server);
}

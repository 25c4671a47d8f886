//! The rearrangement on a fake, and once on the real kernel.
//!
//! Invariant: what is asserted is the state afterwards, not the calls.
//! Failure: the real test deletes its namespace first and asserts then.

use super::*;
use crate::namespace::Namespace;
use crate::netlink::{Kernel, fake::Fake};

fn route(dst: &str, gateway: Option<&str>) -> Route {
    Route {
        dst: dst.parse().unwrap(),
        gateway: gateway.map(|g| g.parse().unwrap()),
        source: None,
        metric: 0,
        scope: if gateway.is_some() { 0 } else { SCOPE_LINK },
        protocol: 3,
        table: Route::MAIN_TABLE,
        onlink: false,
    }
}

fn calico() -> Fake {
    let fake = Fake::new();
    let routes = [
        route("0.0.0.0/0", Some("169.254.1.1")),
        route("169.254.1.1/32", None),
    ];
    fake.add("net1", LinkKind::Veth, &["10.9.0.2/24"], &[]);
    fake.add("tunl0", LinkKind::Tunnel, &[], &[]);
    fake.add(
        "eth0",
        LinkKind::Veth,
        &["10.1.2.3/32", "fd00::3/64"],
        &routes,
    );
    fake
}

#[tokio::test]
async fn eth0_comes_first_and_only_links_of_plugins_are_taken() {
    let records = survey(&calico()).await.unwrap();
    let names: Vec<_> = records
        .iter()
        .map(|r| (r.link.as_str(), r.tap.as_str()))
        .collect();
    assert_eq!(names, [("eth0", "vmtap0"), ("net1", "vmtap1")]);
    assert_eq!(
        records[0].routes[0].gateway, None,
        "next hops must be reachable first"
    );
}

#[tokio::test]
async fn the_guest_side_gets_a_tap_and_the_link_loses_its_identity() {
    let fake = calico();
    let records = survey(&fake).await.unwrap();
    apply(&fake, &records, &[]).await.unwrap();
    let link = fake.get("eth0").unwrap();
    let tap = fake.get("vmtap0").unwrap();
    let bridge = fake.get("vmbr0").unwrap();
    assert_eq!(
        (link.addresses.len(), link.routes.len(), link.ipv6),
        (0, 0, false)
    );
    assert_eq!(link.link.mac, Some(records[0].port_mac));
    assert_ne!(link.link.mac, Some(records[0].mac));
    assert_eq!(link.link.bridge, Some(bridge.link.index));
    assert_eq!(tap.link.bridge, Some(bridge.link.index));
    assert_eq!((tap.link.mtu, bridge.link.mtu), (1450, 1450));
    assert!(link.link.up && tap.link.up && bridge.link.up);
    let filters = fake.filters.lock().unwrap().clone();
    assert!(
        filters[0].starts_with("0 ports"),
        "filter before ports: {filters:?}"
    );
}

#[tokio::test]
async fn restoring_gives_plugins_what_they_left() {
    let fake = calico();
    let records = survey(&fake).await.unwrap();
    let before = (fake.get("eth0").unwrap(), fake.get("net1").unwrap());
    apply(&fake, &records, &[]).await.unwrap();
    restore(&fake, &records).await.unwrap();
    let after = fake.get("eth0").unwrap();
    assert_eq!(after.addresses, before.0.addresses);
    assert_eq!(after.routes.len(), before.0.routes.len());
    assert_eq!((after.link.mac, after.ipv6), (before.0.link.mac, true));
    assert_eq!(fake.get("net1").unwrap().addresses, before.1.addresses);
    assert_eq!(after.link.bridge, None);
}

#[tokio::test]
async fn restoring_works_after_any_step_of_a_failed_rearrangement_and_twice() {
    for verb in [
        "attach",
        "set_mac",
        "set_mtu",
        "add_address",
        "delete_route",
        "set_up",
    ] {
        let fake = calico().failing(verb);
        let records = survey(&fake).await.unwrap();
        apply(&fake, &records, &[]).await.unwrap_err();
        for _ in 0..2 {
            // Its outcome depends on the verb that never works; what can be done must be done.
            let _ = restore(&fake, &records).await;
        }
        assert_eq!(fake.get("eth0").unwrap().link.bridge, None, "{verb}");
    }
}

#[tokio::test]
async fn a_link_that_is_gone_is_skipped() {
    let fake = calico();
    let records = survey(&fake).await.unwrap();
    apply(&fake, &records, &[]).await.unwrap();
    fake.remove("net1");
    restore(&fake, &records).await.unwrap();
    assert_eq!(fake.get("eth0").unwrap().addresses.len(), 2);
}

#[tokio::test]
async fn a_device_that_is_busy_while_up_is_taken_down_to_change_its_address() {
    let fake = Fake::new();
    fake.add("eth0", LinkKind::Device, &["10.0.0.2/24"], &[]);
    let records = survey(&fake).await.unwrap();
    apply(&fake, &records, &[]).await.unwrap();
    let link = fake.get("eth0").unwrap().link;
    assert_eq!((link.mac, link.up), (Some(records[0].port_mac), true));
}

#[tokio::test]
async fn a_macvlan_keeps_its_address_and_the_bridge_knows_that_the_guest_has_it() {
    let fake = Fake::new();
    let kind = LinkKind::Other("macvlan".to_owned());
    fake.add("eth0", kind, &["10.0.0.2/24"], &[]);
    let records = survey(&fake).await.unwrap();
    let mac = records[0].mac;
    apply(&fake, &records, &[]).await.unwrap();
    assert_eq!(fake.get("eth0").unwrap().link.mac, Some(mac));
    assert_eq!(fake.get("vmtap0").unwrap().directed, Some(mac));
    restore(&fake, &records).await.unwrap();
    assert_eq!(fake.get("eth0").unwrap().addresses.len(), 1);
}

#[tokio::test]
async fn namespaces_that_cannot_serve_a_guest_are_refused() {
    assert!(matches!(survey(&Fake::new()).await, Err(Error::NoLink)));
    for (kind, words) in [
        ("ipvlan", "MAC address of its own"),
        ("ipvtap", "macvlan"),
        ("macvtap", "tap itself"),
    ] {
        let fake = Fake::new();
        fake.add(
            "eth0",
            LinkKind::Other(kind.to_owned()),
            &["10.0.0.2/24"],
            &[],
        );
        let error = survey(&fake).await.unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains(words), "{error}");
    }
    let fake = Fake::new();
    fake.add("a\"b", LinkKind::Veth, &[], &[]);
    assert!(matches!(survey(&fake).await, Err(Error::Name(_))));
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_kernel_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let ns = Namespace::create(dir.path(), "a").await.unwrap();
    let script = "ip link add eth0 type veth peer name far && ip link set far up \
        && ip link set eth0 up mtu 1400 && ip addr add 10.1.2.3/32 dev eth0 \
        && ip addr add fd00::3/64 dev eth0 nodad && ip route add 169.254.1.1 dev eth0 scope link \
        && ip route add default via 169.254.1.1 && ip -6 route add default via fd00::1";
    let status = ns
        .run(move || {
            std::process::Command::new("sh")
                .args(["-ec", script])
                .status()
        })
        .await
        .unwrap()
        .unwrap();
    assert!(status.success());
    let net = Kernel::open(&ns).await.unwrap();
    prepare(&net).await.unwrap();
    let mut before = survey(&net).await.unwrap();
    before.retain(|record| record.link == "eth0");
    let work = async {
        apply(&net, &before, &[]).await?;
        let links = net.links().await?;
        let eth0 = links.iter().find(|l| l.name == "eth0").unwrap().clone();
        let during = (
            eth0.mac,
            net.addresses(eth0.index).await?,
            net.routes(eth0.index).await?,
        );
        restore(&net, &before).await?;
        Ok::<_, Error>((during, survey(&net).await?, net.links().await?))
    };
    let outcome = work.await;
    drop(net);
    Namespace::delete(ns.path()).await.unwrap();
    let (during, after, links) = outcome.unwrap();
    assert_eq!(during, (Some(before[0].port_mac), Vec::new(), Vec::new()));
    let eth0 = after.iter().find(|record| record.link == "eth0").unwrap();
    assert_eq!(
        (&eth0.addresses, eth0.mac),
        (&before[0].addresses, before[0].mac)
    );
    assert_eq!(eth0.routes, before[0].routes);
    let eth0 = links.iter().find(|link| link.name == "eth0").unwrap();
    assert_eq!(eth0.bridge, None, "{links:?}");
}

//! A guest's ways to learn its IPv6: its kernel, and a real DHCPv6 client.
//!
//! Invariant: the kernel is set up as distributions do; nothing that the servers do not say is
//! assumed.
//! Failure: every wait ends with the deadline of the guest's shell.

use std::collections::BTreeMap;
use std::path::Path;

use crate::guest::{Guest, NIC, write_program};

/// What `dhclient` runs: it sets the address and keeps the variables.
const SCRIPT: &str = r#"#!/bin/sh
case "$reason" in
BOUND6|REBOOT6|RENEW6|REBIND6)
  ip addr replace "$new_ip6_address/$new_ip6_prefixlen" dev "$interface"
  # While its uniqueness is proved, an address is no source of packets.
  while ip -6 addr show dev "$interface" | grep -q tentative; do busybox sleep 0.05; done
  env > "$REPORT.part"
  mv "$REPORT.part" "$REPORT"
  ;;
esac
"#;

/// Switches the guest's IPv6 on, as it comes up in a fresh kernel.
pub(crate) async fn wake(guest: &Guest) {
    let wake = format!(
        "cd /proc/sys/net/ipv6/conf/{NIC} && echo 128 > accept_ra_rt_info_max_plen \
         && echo 1 > accept_ra && echo 0 > disable_ipv6"
    );
    guest.run(&wake).await;
}

/// Waits until the guest's kernel has a default route; returns all its routes.
pub(crate) async fn routed(guest: &Guest) -> String {
    guest
        .run(
            "until ip -6 route show default | grep -q via; do busybox sleep 0.05; done; ip -6 \
            route",
        )
        .await
}

/// Waits until the guest's own link-local address is proved unique: until then it is no source of packets.
pub(crate) async fn settled(guest: &Guest) {
    let settled = format!(
        "until ip -6 -o addr show dev {NIC} scope link -tentative | grep -q inet6; do busybox sleep 0.05; done"
    );
    guest.run(&settled).await;
}

/// Requests a lease and returns the variables of the client's script.
pub(crate) async fn dhclient(guest: &Guest, dir: &Path) -> BTreeMap<String, String> {
    let at = |name: &str| dir.join(name).display().to_string();
    write_program(&guest.namespace(), &dir.join("dhclient.sh"), SCRIPT).await;
    let ask = format!(
        "rm -f {report}; REPORT={report}; export REPORT; \
         dhclient -6 -1 -d -v -cf /dev/null -lf {leases} -pf {pid} -sf {script} -e REPORT={report} {NIC} & \
         until [ -e {report} ]; do busybox sleep 0.05; done; kill $!; wait",
        script = at("dhclient.sh"),
        report = at("lease6"),
        leases = at("leases6"),
        pid = at("dhclient.pid"),
    );
    settled(guest).await;
    guest.run(&ask).await;
    let text = tokio::fs::read_to_string(at("lease6")).await.unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

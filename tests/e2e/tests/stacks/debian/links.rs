//! A network that gives a guest three NICs: the bridge of the stack, and two links of a plugin of
//! this file at the end of the chain.
//!
//! Invariant: each link has a subnet and an MTU of its own; the node answers on the other side.
//! Failure: that of the plugin, which the tapmanager reports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result};
use e2e::Stack;
use serde_json::{Value, json};

/// Names of the links in the pod's network namespace, subnets without their last number, MTUs.
pub(super) const LINKS: [(&str, &str, u32); 2] =
    [("net1", "10.91.0", 1400), ("net2", "10.92.0", 1300)];

/// perl is an essential package of Debian; jq is not.
const PLUGIN: &str = r#"#!/bin/sh
set -e
input=$(cat)
links="@LINKS@"
id=$(echo "$CNI_CONTAINERID" | cut -c 1-8)
case $CNI_COMMAND in
ADD)
    for link in $links; do
        IFS=, read -r name subnet mtu <<END
$link
END
        ip link add "$name$id" mtu "$mtu" type veth peer name "$name" mtu "$mtu"
        ip link set "$name" netns "$CNI_NETNS"
        ip address add "$subnet.1/24" dev "$name$id"
        ip link set "$name$id" up
        nsenter --net="$CNI_NETNS" ip address add "$subnet.2/24" dev "$name"
        nsenter --net="$CNI_NETNS" ip link set "$name" up
    done
    echo "$input" | perl -0ne 'print $1 if /"prevResult"\s*:\s*(\{(?:[^{}]++|(?1))*\})/'
    ;;
DEL)
    for link in $links; do ip link delete "${link%%,*}$id" 2>/dev/null || true; done
    ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}' ;;
esac
"#;

/// Gives the next pods of the stack three NICs.
pub(super) fn install(stack: &Stack) -> Result<()> {
    let links = LINKS.map(|(name, subnet, mtu)| format!("{name},{subnet},{mtu}"));
    let folder = stack.dir().join("cni/bin");
    fs::create_dir_all(&folder)?;
    let program = folder.join("more-links");
    fs::write(&program, PLUGIN.replace("@LINKS@", &links.join(" ")))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let file = stack.dir().join("cni/conf/10-vmlet.conflist");
    let mut list: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let plugins = list["plugins"].as_array_mut().context("plugins")?;
    plugins.push(json!({ "type": "more-links" }));
    Ok(fs::write(&file, list.to_string())?)
}

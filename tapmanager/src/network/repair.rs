//! Differences between the results of plugins and the links that they made.
//!
//! Invariant: links take precedence over the result: the guest gets what is on the links.
//! Only for a link without addresses the result counts, and an address whose interface is missing,
//! unknown or on the node's side belongs to the first link then.
//! Failure: none; each difference is a sentence for the log.

use std::net::IpAddr;

use netns::bridge_setup::LinkRecord;
use tapmanager::wire::Network;

use super::LINK;

/// Each difference that `network` does not have any more, as text.
pub(crate) fn repairs(
    links: &[LinkRecord],
    result: &cni::CNIResult,
    network: &Network,
) -> Vec<String> {
    let mut found = Vec::new();
    let inside = |name: &str| {
        let named = |i: &&cni::Interface| i.name == name && i.sandbox.is_some();
        result.interfaces.iter().find(named)
    };
    for link in links.iter().filter(|link| inside(&link.link).is_none()) {
        found.push(format!(
            "interface {} is missing from the result",
            link.link
        ));
    }
    for ip in &result.ips {
        let address = ip.address.addr();
        let named = named_link(ip, result);
        match (holder(address, network), named) {
            (None, _) => found.push(format!("{address} of the result is on no link")),
            (Some(link), None) => found.push(format!("{address} without interface is on {link}")),
            (Some(link), Some(named)) if link != named => {
                found.push(format!("{address} of {named} is on {link}"));
            }
            (Some(_), Some(_)) => {}
        }
    }
    for address in network.ips() {
        if !result.ips.iter().any(|ip| ip.address.addr() == address) {
            let link = holder(address, network).unwrap_or(LINK);
            found.push(format!("{address} of {link} is missing from the result"));
        }
    }
    let has_routes = links.iter().any(|link| !link.routes.is_empty());
    if has_routes && result.routes.is_empty() {
        found.push("routes are missing from the result".to_owned());
    }
    found
}

/// The link in the namespace that the result says an address is on.
pub(super) fn named_link<'a>(ip: &cni::IpConfig, result: &'a cni::CNIResult) -> Option<&'a str> {
    let index = usize::try_from(ip.interface?).ok()?;
    let interface = result.interfaces.get(index)?;
    interface.sandbox.as_ref()?;
    Some(interface.name.as_str())
}

fn holder(address: IpAddr, network: &Network) -> Option<&str> {
    let has = |nic: &&tapmanager::wire::Nic| nic.addresses.iter().any(|a| a.net.addr() == address);
    network.nics.iter().find(has).map(|nic| nic.link.as_str())
}

#[cfg(test)]
mod tests;

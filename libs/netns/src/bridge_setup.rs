//! Puts a bridge and a tap between each link that CNI plugins made and the guest, and gives the
//! links back to the plugins.
//!
//! ```text
//!  before            after
//!  eth0 (MAC, IP)    eth0 (other MAC, no IP) ── vmbr0 ── vmtap0 ── guest's NIC (MAC, IP)
//! ```
//! A macvlan lets in only frames for its own address. It keeps it, and the bridge learns that the
//! address is behind the tap.
//!
//! Invariant: [`survey()`] changes nothing and its records suffice to [`restore`], so they are to
//! be saved before [`apply`]; the filter is in force before the first port is attached.
//! Failure: `apply` stops at the first step that fails; `restore` works whatever was done so far,
//! tries every step and reports the first that failed.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::dhcp::SERVER_ADDRESS;
use crate::filter::{self, Before, Guard, Port};
use crate::mac::Mac;
use crate::netlink::{
    Address, Error as NetlinkError, Link, LinkKind, Netlink, Route, SCOPE_LINK, Setting,
};

mod omitted;
mod survey;

pub use omitted::omitted;
#[cfg(test)]
pub(crate) use survey::is_plain;
pub use survey::survey;

/// Most links that become NICs: a machine has slots for so many.
pub const MAX_LINKS: usize = 8;

/// Why a namespace cannot be used for a guest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plugins left no link.
    #[error("the plugins left no link in the namespace")]
    NoLink,
    /// The plugins left more links than [`MAX_LINKS`].
    #[error("the plugins left {0} links in the namespace; at most {MAX_LINKS} can become NICs")]
    TooManyLinks(usize),
    /// A link cannot be a port of a bridge with the guest's address behind it.
    #[error(
        "link {link} is of kind {kind}, which cannot carry a guest: {reason}; use a plugin that leaves \
         a veth pair (bridge, ptp), a macvlan or a whole device"
    )]
    Unsupported {
        /// The link.
        link: String,
        /// The kernel's error.
        kind: String,
        /// The obstacle.
        reason: &'static str,
    },
    /// A link is a virtual function of a network card.
    #[error(
        "link {link} is the SR-IOV virtual function {pci}: those are not supported yet; use the card \
         through the plugin macvlan or bridge, or give the pod a whole device"
    )]
    VirtualFunction {
        /// The link.
        link: String,
        /// The function's place on the PCI bus.
        pci: String,
    },
    /// A link has a name that is not plain.
    #[error("link {0:?} has a name that cannot be used in a packet filter")]
    Name(String),
    /// A link that was just made or recorded no longer exists.
    #[error("link {0} has disappeared")]
    Vanished(String),
    /// No random bytes for an address.
    #[error("choose a random address")]
    Random(#[source] std::io::Error),
    /// The kernel refused a step.
    #[error("rearrange the links")]
    Netlink(#[from] NetlinkError),
}

/// Everything needed to rearrange a link and to put it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The plugin's link.
    pub link: String,
    /// Its hardware address, which the guest takes.
    pub mac: Mac,
    /// Its packet size in bytes.
    pub mtu: u32,
    /// Its addresses, which the guest takes.
    pub addresses: Vec<Address>,
    /// Routes over it.
    pub routes: Vec<Route>,
    /// The bridge between it and the tap.
    pub bridge: String,
    /// The tap of the guest.
    pub tap: String,
    /// Address of the link while the guest has the original; the same for a macvlan, which lets
    /// nothing in for another one.
    pub port_mac: Mac,
    /// Address of the bridge.
    pub bridge_mac: Mac,
}

/// Readies a fresh namespace for plugins: `lo` is up, and the namespace takes no address from
/// routers, because those are for the guest.
///
/// # Errors
/// The step that failed.
pub async fn prepare(net: &impl Netlink) -> Result<(), Error> {
    for links in ["all", "default"] {
        net.tune(links, Setting::RouterAdvertisements(false))
            .await?;
    }
    // DHCP requests come from addresses to which the namespace has no route.
    net.tune("all", Setting::ReversePathFilter(false)).await?;
    // Where br_netfilter is loaded, frames of the guest would be judged, and put together, once
    // more.
    net.tune("all", Setting::BridgeFirewall(false)).await?;
    for link in net.links().await? {
        if link.kind == LinkKind::Loopback {
            net.set_up(link.index, true).await?;
        }
    }
    Ok(())
}

/// Rearranges the links that `records` describe in a namespace that was [prepared](prepare), and
/// brings everything up. Each guest NIC may say what the guard at its record's place allows.
///
/// # Errors
/// The step that failed; the caller is to [`restore`].
pub async fn apply(
    net: &impl Netlink,
    records: &[LinkRecord],
    guards: &[Guard],
) -> Result<(), Error> {
    // The filter names links that need not exist yet, and loading it is the slowest step.
    tokio::try_join!(
        net.filter(filter_text(Before::Nothing, records, guards)),
        make_links(net, records)
    )?;
    for record in records {
        connect(net, record).await?;
    }
    Ok(())
}

/// Puts the filter of [`apply`] in force once more, whatever is in force now, without a gap.
///
/// # Errors
/// When the kernel refuses; what was in force stays so.
pub async fn protect(
    net: &impl Netlink,
    records: &[LinkRecord],
    guards: &[Guard],
) -> Result<(), Error> {
    let rules = filter_text(Before::Rules, records, guards);
    Ok(net.filter(rules).await?)
}

fn filter_text(before: Before, records: &[LinkRecord], guards: &[Guard]) -> String {
    // A NIC without an address in the result may not send.
    static NOTHING: Guard = Guard::Own(Vec::new());
    let guards = guards.iter().chain(std::iter::repeat(&NOTHING));
    let ports = records.iter().zip(guards).map(|(record, guard)| Port {
        link: &record.link,
        tap: &record.tap,
        mac: record.mac,
        bridge_mac: record.bridge_mac,
        guard,
    });
    filter::rules(before, ports)
}

async fn make_links(net: &impl Netlink, records: &[LinkRecord]) -> Result<(), NetlinkError> {
    for record in records {
        let bridge = &record.bridge;
        net.create_bridge(bridge, record.bridge_mac, record.mtu)
            .await?;
        net.create_tap(&record.tap).await?;
        net.tune(bridge, Setting::ReversePathFilter(false)).await?;
        net.tune(bridge, Setting::ArpForOthers(false)).await?;
        for link in [bridge, &record.tap, &record.link] {
            net.tune(link, Setting::Ipv6(false)).await?;
        }
    }
    Ok(())
}

async fn connect(net: &impl Netlink, record: &LinkRecord) -> Result<(), Error> {
    let links = net.links().await?;
    let link = index_of(&links, &record.link)?;
    let bridge = index_of(&links, &record.bridge)?;
    let tap = index_of(&links, &record.tap)?;
    for route in &record.routes {
        tolerate(
            net.delete_route(link, route).await,
            NetlinkError::is_missing,
        )?;
    }
    for address in &record.addresses {
        tolerate(
            net.delete_address(link, *address).await,
            NetlinkError::is_missing,
        )?;
    }
    if record.port_mac != record.mac {
        change_mac(net, link, record.port_mac).await?;
    }
    net.set_mtu(tap, record.mtu).await?;
    net.attach(link, Some(bridge)).await?;
    net.attach(tap, Some(bridge)).await?;
    if record.port_mac == record.mac {
        // The bridge takes frames for the address of a port as its own.
        net.direct(tap, record.mac).await?;
    }
    let own = Address {
        net: IpNet::from(std::net::IpAddr::from(SERVER_ADDRESS)),
        scope: SCOPE_LINK,
    };
    net.add_address(bridge, own).await?;
    for index in [link, tap, bridge] {
        net.set_up(index, true).await?;
    }
    Ok(())
}

/// Gives the links back to the plugins as they left them; whatever is missing is skipped. Bridges,
/// taps and packet filter stay, without a link to the outside, until the caller deletes the
/// namespace: the kernel then removes them all in the background, while the removal of a single
/// link takes tens of milliseconds.
///
/// # Errors
/// The first step that failed, after all were tried.
pub async fn restore(net: &impl Netlink, records: &[LinkRecord]) -> Result<(), Error> {
    let links = net.links().await?;
    let mut first = Ok(());
    let mut note = |outcome: Result<(), NetlinkError>| {
        if let Err(e) = outcome
            && first.is_ok()
        {
            first = Err(e.into());
        }
    };
    for record in records {
        let Some(link) = links.iter().find(|link| link.name == record.link) else {
            continue;
        };
        if link.bridge.is_some() {
            note(net.attach(link.index, None).await);
        }
        if link.mac != Some(record.mac) {
            note(change_mac(net, link.index, record.mac).await);
        }
        note(net.tune(&record.link, Setting::Ipv6(true)).await);
        note(net.set_up(link.index, true).await);
        for address in &record.addresses {
            note(tolerate(
                net.add_address(link.index, *address).await,
                NetlinkError::is_existing,
            ));
        }
        for route in &record.routes {
            note(tolerate(
                net.add_route(link.index, route).await,
                NetlinkError::is_existing,
            ));
        }
    }
    first
}

fn index_of(links: &[Link], name: &str) -> Result<u32, Error> {
    links
        .iter()
        .find(|link| link.name == name)
        .map(|link| link.index)
        .ok_or_else(|| Error::Vanished(name.to_owned()))
}

async fn change_mac(net: &impl Netlink, link: u32, mac: Mac) -> Result<(), NetlinkError> {
    match net.set_mac(link, mac).await {
        // Many drivers change the address of a running link; going down costs it its carrier.
        Err(e) if e.is_busy() => {
            net.set_up(link, false).await?;
            net.set_mac(link, mac).await
        }
        other => other,
    }
}

fn tolerate(
    outcome: Result<(), NetlinkError>,
    expected: fn(&NetlinkError) -> bool,
) -> Result<(), NetlinkError> {
    match outcome {
        Err(e) if expected(&e) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;

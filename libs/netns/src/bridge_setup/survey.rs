//! Reads the links that plugins left in a namespace.
//!
//! Invariant: nothing is changed.
//! Failure: the first link that cannot carry a guest, with the reason and what to use instead.

use std::cmp::Reverse;
use std::path::Path;

use super::{Error, LinkRecord, MAX_LINKS};
use crate::mac::Mac;
use crate::netlink::{Link, LinkKind, Netlink, Route};

/// Every function of the PCI bus, which is the same in every network namespace.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Describes every link that plugins made: `eth0` first, then in the order of their making.
///
/// # Errors
/// When there is no such link, or one that cannot carry a guest.
pub async fn survey(net: &impl Netlink) -> Result<Vec<LinkRecord>, Error> {
    let mut links: Vec<Link> = net
        .links()
        .await?
        .into_iter()
        .filter(is_from_plugin)
        .collect();
    links.sort_by_key(|link| (Reverse(link.name == "eth0"), link.index));
    if links.is_empty() {
        return Err(Error::NoLink);
    }
    if links.len() > MAX_LINKS {
        return Err(Error::TooManyLinks(links.len()));
    }
    let mut records = Vec::with_capacity(links.len());
    for (number, link) in links.into_iter().enumerate() {
        let mac = check(&link)?;
        let port_mac = if keeps_its_mac(&link) {
            mac
        } else {
            Mac::random().map_err(Error::Random)?
        };
        let addresses = net.addresses(link.index).await?;
        let mut routes = net.routes(link.index).await?;
        // Those that return with the addresses are not ours to put back; next hops must be
        // reachable first.
        routes.retain(|route| route.protocol != Route::PROTOCOL_KERNEL);
        routes.sort_by_key(|route| route.gateway.is_some());
        records.push(LinkRecord {
            link: link.name,
            mac,
            mtu: link.mtu,
            addresses,
            routes,
            bridge: format!("vmbr{number}"),
            tap: format!("vmtap{number}"),
            port_mac,
            bridge_mac: Mac::random().map_err(Error::Random)?,
        });
    }
    Ok(records)
}

fn is_from_plugin(link: &Link) -> bool {
    !matches!(
        link.kind,
        LinkKind::Loopback | LinkKind::Tunnel | LinkKind::Bridge | LinkKind::Tun
    )
}

fn check(link: &Link) -> Result<Mac, Error> {
    let unsupported = |kind: &str, reason| Error::Unsupported {
        link: link.name.clone(),
        kind: kind.to_owned(),
        reason,
    };
    if !is_plain(&link.name) {
        return Err(Error::Name(link.name.clone()));
    }
    if let Some(pci) = link
        .pci
        .as_deref()
        .filter(|pci| is_virtual_function(Path::new(PCI_DEVICES), pci))
    {
        return Err(Error::VirtualFunction {
            link: link.name.clone(),
            pci: pci.to_owned(),
        });
    }
    match &link.kind {
        LinkKind::Other(kind) if matches!(kind.as_str(), "ipvlan" | "ipvtap") => Err(unsupported(
            kind,
            "it has the MAC address of its parent and takes packets by IP address, while a guest \
             needs a MAC address of its own",
        )),
        LinkKind::Other(kind) if kind == "macvtap" => Err(unsupported(
            kind,
            "it is a tap itself and no port of a bridge",
        )),
        _ => link
            .mac
            .ok_or_else(|| unsupported("without an Ethernet address", "a guest's NIC is Ethernet")),
    }
}

/// Whether a link's name can be a part of file names and of filter rules.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    let is_path = matches!(name, "" | "." | "..");
    name.bytes().all(plain) && !is_path && !matches!(name, "all" | "default" | "lo")
}

/// Whether what the kernel calls `pci` is a part of a device that belongs to another driver.
fn is_virtual_function(devices: &Path, pci: &str) -> bool {
    let plain = |b: u8| b.is_ascii_hexdigit() || matches!(b, b':' | b'.');
    pci.bytes().all(plain) && devices.join(pci).join("physfn").exists()
}

/// Whether the link lets in only frames for its own address, so that it must keep the guest's.
fn keeps_its_mac(link: &Link) -> bool {
    matches!(&link.kind, LinkKind::Other(kind) if kind == "macvlan")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_that_belong_to_another_are_virtual() {
        let devices = tempfile::tempdir().unwrap();
        for (name, part) in [("0000:3b:00.0", "driver"), ("0000:3b:02.1", "physfn")] {
            std::fs::create_dir_all(devices.path().join(name).join(part)).unwrap();
        }
        let is_virtual = |pci| is_virtual_function(devices.path(), pci);
        assert!(is_virtual("0000:3b:02.1"));
        assert!(!is_virtual("0000:3b:00.0"));
        for odd in ["", "virtio0", "0000:3b:02.1/../0000:3b:02.1"] {
            assert!(!is_virtual(odd), "{odd}");
        }
    }
}

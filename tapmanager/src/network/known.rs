//! A guest that goes on from saved memory has its NICs already: hardware addresses, and leases that it believes in.
//!
//! Invariant: what plugins give counts. They are asked for the guest's own addresses first, in the way that the bridge
//! and host-local plugins understand; a network that cannot give them gives others.
//! Failure: a hardware address that is none is refused. A link that cannot carry a foreign one keeps its own, which is
//! logged: the guest is not heard until it takes that one.

use std::path::Path;

use netns::Mac;
use netns::surgery::LinkRecord;
use tapmanager::wire::{AddRequest, KnownNic};

use super::attachment;

/// What CNI is asked for, the most wanted first; the next one counts when a plugin refuses the one before.
pub(crate) fn attachments(request: &AddRequest, netns: &Path) -> Vec<cni::Attachment> {
    let plain = attachment(request, netns);
    let Some(first) = request.known_nics.first() else {
        return vec![plain];
    };
    let with = |args: &[(&str, String)]| {
        let mut wanted = plain.clone();
        let args = args.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
        wanted.args.extend(args);
        wanted
    };
    let mac = ("MAC", first.mac.clone());
    let mut all = Vec::new();
    if let Some(address) = first.addresses.first() {
        all.push(with(&[mac.clone(), ("IP", address.to_string())]));
    }
    all.extend([with(&[mac]), plain]);
    all
}

/// The hardware addresses of the guest's NICs.
pub(crate) fn macs(known: &[KnownNic]) -> Result<Vec<Mac>, String> {
    let parse = |nic: &KnownNic| {
        let mac = nic.mac.parse::<Mac>().map_err(|e| e.to_string())?;
        let octets = mac.bytes();
        if octets[0] & 1 == 1 || octets == [0; 6] {
            return Err(format!("{mac} is no address of a NIC"));
        }
        Ok(mac)
    };
    known.iter().map(parse).collect()
}

/// Gives the guest's NICs the addresses that they have; returns the links that cannot carry them.
pub(crate) fn adopt(links: &mut [LinkRecord], macs: &[Mac]) -> Vec<String> {
    let mut deaf = Vec::new();
    for (record, mac) in links.iter_mut().zip(macs) {
        if record.mac == *mac {
            continue;
        }
        if record.port_mac == record.mac {
            deaf.push(record.link.clone());
        } else {
            record.mac = *mac;
        }
    }
    deaf
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(mac: &str, addresses: &[&str]) -> KnownNic {
        KnownNic {
            mac: mac.to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    fn record(link: &str, port: u8) -> LinkRecord {
        LinkRecord {
            link: link.to_owned(),
            mac: Mac::new([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: Vec::new(),
            routes: Vec::new(),
            bridge: "vmbr0".to_owned(),
            tap: "vmtap0".to_owned(),
            port_mac: Mac::new([2, 0, 0, 0, 0, port]),
            bridge_mac: Mac::new([2, 0, 0, 0, 0, 9]),
        }
    }

    #[test]
    fn a_guest_without_memory_asks_for_nothing() {
        let request = AddRequest::default();
        let all = attachments(&request, Path::new("/n"));
        assert_eq!(all, [attachment(&request, Path::new("/n"))]);
    }

    #[test]
    fn a_guest_with_memory_asks_for_its_addresses_and_then_for_less() {
        let request = AddRequest {
            known_nics: vec![known("0a:58:0a:01:00:05", &["10.1.0.5", "fd00::5"])],
            ..AddRequest::default()
        };
        let all = attachments(&request, Path::new("/n"));
        let asked = |i: usize, key: &str| {
            let pair = all[i].args.iter().find(|(k, _)| k == key);
            pair.map(|(_, value)| value.as_str())
        };
        assert_eq!(all.len(), 3);
        assert_eq!(asked(0, "IP"), Some("10.1.0.5"));
        assert_eq!(asked(0, "MAC"), Some("0a:58:0a:01:00:05"));
        assert_eq!((asked(1, "IP"), asked(2, "IP")), (None, None));
        assert_eq!(asked(1, "MAC"), Some("0a:58:0a:01:00:05"));
        assert_eq!(asked(2, "MAC"), None);
    }

    #[test]
    fn the_guest_keeps_its_address_where_the_link_can_have_another() {
        let own = Mac::new([2, 0, 0, 0, 0, 7]);
        let mut links = [record("eth0", 5), record("net1", 1)];
        assert_eq!(adopt(&mut links, &[own, own]), ["net1"]);
        assert_eq!(links[0].mac, own);
        assert_eq!(links[1].mac, Mac::new([2, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn an_address_that_no_nic_has_is_refused() {
        assert!(macs(&[known("0a:58:0a:01:00:05", &[])]).is_ok());
        for odd in ["", "01:00:00:00:00:01", "00:00:00:00:00:00", "x"] {
            assert!(macs(&[known(odd, &[])]).is_err(), "{odd}");
        }
    }
}

//! Addresses that a guest is to have whatever plugins say. One that continues from saved memory has
//! its NICs already: hardware addresses, and leases that it believes in. One that boots may have a
//! hardware address of its owner's choice.
//!
//! Invariant: the IP addresses are those that plugins give. The first request names the guest's own
//! addresses, those of all families and NICs, in the ways that the bridge and host-local
//! plugins understand; a network that cannot give them gives others.
//! Failure: a hardware address that is none is refused. A link that cannot carry a foreign one
//! keeps its own: a guest that boots is refused then; frames of one that is restored are dropped
//! until it uses that address, which is logged.

use std::net::IpAddr;
use std::path::Path;

use netns::Mac;
use netns::bridge_setup::LinkRecord;
use serde_json::json;
use tapmanager::wire::{AddRequest, KnownNic};

use super::attachment;

/// The attachments for CNI plugins, the preferred one first; the next one is tried when a plugin refuses the one
/// before.
pub(crate) fn attachments(request: &AddRequest, netns: &Path) -> Vec<cni::Attachment> {
    let plain = attachment(request, netns);
    let (mac, first) = match request.known_nics.first() {
        Some(nic) => (&nic.mac, nic.addresses.as_slice()),
        None if request.mac.is_empty() => return vec![plain],
        None => (&request.mac, [].as_slice()),
    };
    let nics = request.known_nics.iter();
    let every: Vec<IpAddr> = nics.flat_map(|nic| nic.addresses.clone()).collect();
    let mut candidates = vec![every.as_slice(), first, first.get(..1).unwrap_or_default()];
    candidates.dedup();
    candidates.retain(|candidate| !candidate.is_empty());
    let with = |addresses: &[IpAddr]| {
        let mut wanted = plain.clone();
        wanted.args.push(("MAC".to_owned(), mac.clone()));
        if let Some(primary) = first.first().filter(|_| !addresses.is_empty()) {
            wanted.args.push(("IP".to_owned(), primary.to_string()));
        }
        if addresses.len() > 1 {
            let all: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
            wanted.capabilities.insert(cni::IPS.to_owned(), json!(all));
        }
        wanted
    };
    let mut all: Vec<_> = candidates.into_iter().map(with).collect();
    all.extend([with(&[]), plain.clone()]);
    all
}

/// The hardware addresses of the guest's NICs, in order, as far as they are not the plugins'.
pub(crate) fn macs(request: &AddRequest) -> Result<Vec<Mac>, String> {
    let parse = |text: &String| {
        let mac = text.parse::<Mac>().map_err(|e| e.to_string())?;
        let octets = mac.bytes();
        if octets[0] & 1 == 1 || octets == [0; 6] {
            return Err(format!("{mac} is no address of a NIC"));
        }
        Ok(mac)
    };
    let known = &request.known_nics;
    let requested = Some(&request.mac).filter(|mac| known.is_empty() && !mac.is_empty());
    let known = known.iter().map(|nic: &KnownNic| &nic.mac);
    known.chain(requested).map(parse).collect()
}

/// Gives the guest's NICs these addresses; returns the links that cannot carry them.
pub(crate) fn adopt(links: &mut [LinkRecord], macs: &[Mac]) -> Vec<String> {
    let mut unconfigurable = Vec::new();
    for (record, mac) in links.iter_mut().zip(macs) {
        if record.mac == *mac {
            continue;
        }
        if record.port_mac == record.mac {
            unconfigurable.push(record.link.clone());
        } else {
            record.mac = *mac;
        }
    }
    unconfigurable
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
    fn a_booted_guest_requests_no_address() {
        let request = AddRequest::default();
        let all = attachments(&request, Path::new("/n"));
        assert_eq!(all, [attachment(&request, Path::new("/n"))]);
    }

    #[test]
    fn a_resumed_guest_requests_its_addresses_then_fewer() {
        let request = AddRequest {
            known_nics: vec![known("0a:58:0a:01:00:05", &["10.1.0.5", "fd00::5"])],
            ..AddRequest::default()
        };
        let all = attachments(&request, Path::new("/n"));
        let requested = |i: usize, key: &str| {
            let pair = all[i].args.iter().find(|(k, _)| k == key);
            pair.map(|(_, value)| value.as_str())
        };
        assert_eq!(all.len(), 4);
        for attempt in 0..3 {
            assert_eq!(requested(attempt, "MAC"), Some("0a:58:0a:01:00:05"));
        }
        assert_eq!(requested(0, "IP"), Some("10.1.0.5"));
        assert_eq!(
            all[0].capabilities.get("ips"),
            Some(&json!(["10.1.0.5", "fd00::5"]))
        );
        assert_eq!(requested(1, "IP"), Some("10.1.0.5"));
        assert_eq!((requested(2, "IP"), requested(3, "IP")), (None, None));
        assert_eq!(requested(3, "MAC"), None);
        assert!(all[1..].iter().all(|all| all.capabilities.is_empty()));
    }

    #[test]
    fn addresses_are_requested_for_all_nics_then_for_the_first() {
        let request = AddRequest {
            known_nics: vec![
                known("0a:58:0a:01:00:05", &["10.1.0.5", "fd00::5"]),
                known("0a:58:0a:02:00:07", &["10.2.0.7"]),
            ],
            ..AddRequest::default()
        };
        let all = attachments(&request, Path::new("/n"));
        let lists: Vec<_> = all.iter().map(|one| one.capabilities.get("ips")).collect();
        let every = json!(["10.1.0.5", "fd00::5", "10.2.0.7"]);
        let first = json!(["10.1.0.5", "fd00::5"]);
        assert_eq!(lists, [Some(&every), Some(&first), None, None, None]);
    }

    #[test]
    fn a_chosen_address_is_requested_and_a_resumed_guest_keeps_its_own() {
        let mut request = AddRequest {
            mac: "52:54:00:12:34:56".to_owned(),
            ..AddRequest::default()
        };
        let all = attachments(&request, Path::new("/n"));
        let requested = |attachment: &cni::Attachment| {
            let pair = attachment.args.iter().find(|(k, _)| k == "MAC");
            pair.map(|(_, value)| value.clone())
        };
        assert_eq!(
            all.iter().map(requested).collect::<Vec<_>>(),
            [Some(request.mac.clone()), None]
        );
        assert_eq!(macs(&request).unwrap()[0].to_string(), request.mac);
        request.known_nics = vec![known("0a:58:0a:01:00:05", &[])];
        let macs = macs(&request).unwrap();
        assert_eq!(macs, ["0a:58:0a:01:00:05".parse().unwrap()]);
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
        let with = |mac: &str| AddRequest {
            known_nics: vec![known(mac, &[])],
            ..AddRequest::default()
        };
        let choice = |mac: &str| AddRequest {
            mac: mac.to_owned(),
            ..AddRequest::default()
        };
        assert!(macs(&with("0a:58:0a:01:00:05")).is_ok());
        assert_eq!(macs(&choice("")), Ok(Vec::new()));
        for odd in ["01:00:00:00:00:01", "00:00:00:00:00:00", "x"] {
            assert!(macs(&with(odd)).is_err(), "{odd}");
            assert!(macs(&choice(odd)).is_err(), "{odd}");
        }
        assert!(macs(&with("")).is_err());
    }
}

//! Network configurations, by the vectors of `tests/fixtures/virtlet-networks.yaml`.
//!
//! Invariant: each vector has the outcome of one format at least.
//! Failure: the vector and the format that differ.

use podspec::{Layout, NetworkVersion};
use serde::Deserialize;
use serde_json::Value;
use tapmanager::wire::Network;

use super::super::network_config;
use super::{network, nic};

const VECTORS: &str = include_str!("../../../../../tests/fixtures/virtlet-networks.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    about: String,
    nics: Option<Vec<Link>>,
    #[serde(default)]
    servers: Vec<String>,
    #[serde(default)]
    searches: Vec<String>,
    #[serde(default)]
    dhcp: bool,
    v1: Option<Value>,
    v2: Option<Value>,
    openstack: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    link: String,
    mac: String,
    mtu: u32,
    addresses: Vec<String>,
    routes: Vec<(String, Option<String>)>,
}

impl Vector {
    fn network(&self) -> Option<Network> {
        let nics = self.nics.as_ref()?.iter().map(|of| {
            let addresses: Vec<_> = of.addresses.iter().map(String::as_str).collect();
            let routes = of.routes.iter();
            let routes: Vec<_> = routes
                .map(|(dst, gw)| (dst.as_str(), gw.as_deref()))
                .collect();
            let mut nic = nic(&of.link, &addresses, &routes);
            of.mac.clone_into(&mut nic.mac);
            nic.mtu = of.mtu;
            nic
        });
        let mut network = network(nics.collect());
        network.dns.servers.clone_from(&self.servers);
        network.dns.searches.clone_from(&self.searches);
        Some(network)
    }
}

#[test]
fn every_network_has_its_configuration_in_each_format() {
    let vectors: Vec<Vector> = serde_saphyr::from_str(VECTORS).unwrap();
    assert!(vectors.len() >= 9, "{}", vectors.len());
    for vector in vectors {
        let network = vector.network();
        let formats = [
            (&vector.v1, Layout::NoCloud, NetworkVersion::V1),
            (&vector.v2, Layout::NoCloud, NetworkVersion::V2),
            (&vector.openstack, Layout::ConfigDrive, NetworkVersion::V2),
        ];
        let about = &vector.about;
        assert!(formats.iter().any(|of| of.0.is_some()), "{about}");
        for (expected, layout, version) in formats {
            let made = network_config(network.as_ref(), layout, (version, vector.dhcp));
            if let Some(expected) = expected {
                assert_eq!(&made, expected, "{about}: {layout:?}, {version:?}");
            }
        }
    }
}

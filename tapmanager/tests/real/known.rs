//! Guests that continue from saved memory: they have their addresses already.
//!
//! Invariant: the hardware address is the guest's own in any case; the IP address is, when it is
//! free.
//! Failure: the address that was given instead.

use serde_json::json;
use tapmanager::wire::{AddRequest, KnownNic, Network};

use crate::node::{Node, pod, real_plugins};

const MAC: &str = "0a:58:0a:09:08:07";

fn resumed(id: &str, address: &str) -> AddRequest {
    AddRequest {
        known_nics: vec![KnownNic {
            mac: MAC.to_owned(),
            addresses: vec![address.parse().unwrap()],
        }],
        ..pod(id)
    }
}

fn addresses(network: &Network) -> (String, String) {
    let nic = &network.nics[0];
    (nic.mac.clone(), nic.addresses[0].net.addr().to_string())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_resumed_guest_gets_its_addresses_back_and_without_them_others() {
    let node = Node::start().await;
    let first = node.client().add(pod("first")).await.unwrap();
    let (_, address) = addresses(&first);
    node.client().del("first").await.unwrap();

    let again = node.client().add(resumed("again", &address)).await.unwrap();
    assert_eq!(addresses(&again), (MAC.to_owned(), address.clone()));

    // Another host has the address by now.
    let other = node.client().add(resumed("other", &address)).await.unwrap();
    let (mac, given) = addresses(&other);
    assert_eq!(mac, MAC);
    assert_ne!(given, address);
    node.logged("CNI ADD repeated without the known address")
        .await;
    for id in ["again", "other"] {
        node.client().check(id).await.unwrap();
        node.client().del(id).await.unwrap();
    }
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_resumed_guest_gets_its_addresses_of_both_families_back() {
    let mut node = Node::new().await;
    let mut network = real_plugins(node.scratch.path());
    network["plugins"][0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.88.7.0/24"}], [{"subnet": "fd00:88:7::/64"}]]);
    node.configure(&network).await;
    node.launch().await;
    let all =
        |network: &Network| -> Vec<String> { network.ips().map(|ip| ip.to_string()).collect() };
    let first = node.client().add(pod("first")).await.unwrap();
    let given = all(&first);
    assert_eq!(given.len(), 2, "{given:?}");
    node.client().del("first").await.unwrap();
    // Another pod is created and removed: the next addresses would be others.
    node.client().add(pod("other")).await.unwrap();

    let known = |id: &str, nics: &[&[String]]| AddRequest {
        known_nics: nics
            .iter()
            .zip([MAC, "0a:58:0a:09:08:08"])
            .map(|(addresses, mac)| KnownNic {
                mac: mac.to_owned(),
                addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            })
            .collect(),
        ..pod(id)
    };
    let again = node.client().add(known("again", &[&given])).await.unwrap();
    assert_eq!(all(&again), given);
    node.client().check("again").await.unwrap();
    node.client().del("again").await.unwrap();

    // An address of a NIC that this network does not make costs the others nothing.
    let strange = ["10.9.9.9".to_owned()];
    let two = known("two", &[&given, &strange]);
    let two = node.client().add(two).await.unwrap();
    assert_eq!(all(&two), given);
    node.logged("CNI ADD repeated without the known address")
        .await;
    for id in ["two", "other"] {
        node.client().del(id).await.unwrap();
    }
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_the_hardware_address_that_its_owner_chose() {
    let node = Node::start().await;
    let chosen = |id: &str| AddRequest {
        mac: MAC.to_owned(),
        ..pod(id)
    };
    let network = node.client().add(chosen("one")).await.unwrap();
    assert_eq!(addresses(&network).0, MAC);
    // The plugin's own end has it, too, before it is the guest's: what plugins check agrees.
    let printed = network.cni_result["interfaces"].to_string();
    assert!(printed.contains(MAC), "{printed}");
    assert_eq!(node.client().add(chosen("one")).await.unwrap(), network);
    node.client().check("one").await.unwrap();
    node.client().del("one").await.unwrap();
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_plugin_without_the_mac_capability_does_not_change_the_mac_address() {
    let mut node = Node::new().await;
    let mut network = real_plugins(node.scratch.path());
    network["plugins"][0]["type"] = json!("ptp");
    node.configure(&network).await;
    node.launch().await;
    let network = node.client().add(resumed("one", "10.9.8.7")).await.unwrap();
    assert_eq!(addresses(&network).0, MAC);
    node.client().check("one").await.unwrap();
    node.client().del("one").await.unwrap();
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

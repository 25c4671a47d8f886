//! What guests may claim, as the program sets it up.
//!
//! Invariant: the guests here have whatever address they like; what gets out shows on the node.
//! Failure: the rules in force, or the program's log.

use netns::Namespace;

use crate::guest::run;
use crate::network::boot;
use crate::node::{Node, pod};

/// Calls the node from an unassigned address; the shell succeeds when the node does not answer.
const UNHEARD: &str = "ip addr replace 10.88.7.99/24 dev nic0; \
                       ! busybox ping -c 1 -W 1 -I 10.88.7.99 10.88.7.1";

#[tokio::test]
#[ignore = "needs root"]
async fn frames_pass_only_from_the_guests_own_address_also_after_a_restart() {
    let mut node = Node::start().await;
    let network = node.client().add(pod("one")).await.unwrap();
    let guest = boot(&node, &network, "guest").await;
    guest.lease("").await;
    guest.run(UNHEARD).await;
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    let namespace = Namespace::open(&network.netns).unwrap().unwrap();
    let rules = run(&namespace, "nft list ruleset").await;

    node.kill().await;
    guest.run(UNHEARD).await;
    run(&namespace, "nft flush ruleset").await;
    node.launch().await;
    node.logged("recovery from the journal completed").await;
    assert_eq!(run(&namespace, "nft list ruleset").await, rules);
    guest.run(UNHEARD).await;
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    let neighbours = run(&node.ns, "ip neigh").await;
    assert!(!neighbours.contains("10.88.7.99"), "{neighbours}");
    drop((guest, namespace));
    node.client().del("one").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn frames_of_a_routing_guest_pass_from_any_address_also_after_a_restart() {
    let mut node = Node::start().await;
    let mut request = pod("router");
    request.allow_spoofing = true;
    let network = node.client().add(request).await.unwrap();
    let guest = boot(&node, &network, "guest").await;
    guest.lease("").await;
    let listener = "ip addr replace 10.88.7.99/24 dev nic0; \
                 busybox ping -c 1 -W 15 -I 10.88.7.99 10.88.7.1";
    guest.run(listener).await;
    node.kill().await;
    node.launch().await;
    guest.run(listener).await;
    drop(guest);
    node.client().del("router").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

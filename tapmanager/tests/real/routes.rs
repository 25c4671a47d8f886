//! How the node reaches guests, with real plugins and routes.
//!
//! Invariant: node, pods and the world beyond the node are namespaces of the test's own.
//! Failure: the addresses that were reached, or the program's log.

use serde_json::json;

use crate::guest::run;
use crate::kinds::{chain, host_local, no_pod_is_left, node_with_parent};
use crate::node::{Node, pod};

/// Adds a pod; returns its addresses that the node reaches, each with the link.
async fn reached(node: &Node) -> Vec<(String, Option<String>)> {
    if let Err(error) = node.client().add(pod("one")).await {
        panic!("{error:?}\n{}", node.log());
    }
    let routes = node.client().routes("one").await.unwrap();
    let routes = routes.into_iter();
    routes
        .map(|route| (route.address.to_string(), route.link))
        .collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_bridge_or_the_link_of_a_pod_leads_to_its_own_address_alone() {
    let mut node = Node::new().await;
    let ipam = host_local(&node, &json!({"subnet": "10.67.0.0/24"}));
    // The second link has addresses that its author has chosen.
    node.plugin(
        "second",
        "case $CNI_COMMAND in \
         ADD) ip link add net1 type veth peer name far1 || exit 1; \
              ip link set far1 up; ip link set net1 netns $CNI_NETNS || exit 1; \
              nsenter --net=$CNI_NETNS sh -ec 'ip link set net1 up; \
              ip addr add 169.254.169.254/32 dev net1; ip addr add 10.67.0.1/32 dev net1' || exit 1; \
              sed 's/.*\"prevResult\"://; s/,\"type\":.*//' ;; \
         DEL) ip link del far1 2>/dev/null; true ;; esac",
    )
    .await;
    let bridge = json!({"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipam": ipam});
    node.configure(&chain(&json!([bridge, {"type": "second"}])))
        .await;
    node.launch().await;
    let expected = ("10.67.0.2".to_owned(), Some("cbr0".to_owned()));
    assert_eq!(reached(&node).await, [expected]);
    node.client().del("one").await.unwrap();

    node.configure(&chain(&json!([{"type": "ptp", "ipam": ipam}])))
        .await;
    let routed = reached(&node).await;
    let [(address, Some(link))] = routed.as_slice() else {
        panic!("{routed:?}");
    };
    assert!(
        address.starts_with("10.67.0.") && link.starts_with("veth"),
        "{link}"
    );
    no_pod_is_left(&node, &["one"]).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_address_that_the_node_reaches_elsewhere_is_not_the_pods() {
    let outside = node_with_parent().await;
    let mut node = outside.0;
    run(&node.ns, "ip addr add 10.66.0.7/24 dev wan0").await;
    // The author of the pod has given it the address of another node.
    let ipam = json!({"type": "static", "addresses": [{"address": "10.66.0.1/24"}]});
    let plugin = json!({"type": "bridge", "bridge": "cbr1", "ipam": ipam});
    node.configure(&chain(&json!([plugin]))).await;
    node.launch().await;
    assert_eq!(reached(&node).await, []);
    no_pod_is_left(&node, &["one"]).await;
}

//! Finds requests of a pod that a node can never satisfy.
//!
//! Invariant: pure; only what does not depend on the other pods of the node is compared, so that
//! waiting does not help.
//! Failure: none; an amount that cannot be read is not compared.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::reconcile::vm::act::pod::EPHEMERAL_STORAGE;
use crate::reconcile::vm::prerequisites::{bytes, thousandths};

const MIB: i128 = 1 << 20;

/// Each thing that the node lacks, as text.
pub(crate) fn lacks(pod: &Pod, node: &Node) -> Vec<String> {
    let mut all = Vec::new();
    let status = node.status.as_ref();
    let has = status
        .and_then(|s| s.allocatable.clone())
        .unwrap_or_default();
    let cpu = requested(pod, "cpu", thousandths);
    if let Some(has) = has
        .get("cpu")
        .and_then(thousandths)
        .filter(|has| *has < cpu)
    {
        all.push(format!(
            "it requests {cpu}m CPU, the node has {has}m in all"
        ));
    }
    let memory = requested(pod, "memory", bytes).div_euclid(MIB);
    let there = has.get("memory").and_then(bytes).map(|has| has / MIB);
    if let Some(has) = there.filter(|has| *has < memory) {
        all.push(format!(
            "it requests {memory}Mi of memory, the node has {has}Mi in all"
        ));
    }
    let disk = requested(pod, EPHEMERAL_STORAGE, bytes).div_euclid(MIB);
    let there = has.get(EPHEMERAL_STORAGE).and_then(bytes);
    if let Some(has) = there.map(|has| has / MIB).filter(|has| *has < disk) {
        all.push(format!(
            "it requests {disk}Mi of ephemeral storage, the node has {has}Mi in all"
        ));
    }
    let selector = pod.spec.as_ref().and_then(|s| s.node_selector.as_ref());
    for (key, value) in selector.into_iter().flatten() {
        if node.labels().get(key) != Some(value) {
            all.push(format!("the node has no label {key}={value}"));
        }
    }
    all
}

/// What the scheduler counts for the pod.
fn requested(pod: &Pod, name: &str, amount: fn(&Quantity) -> Option<i128>) -> i128 {
    let Some(spec) = &pod.spec else {
        return 0;
    };
    let of = |list: &BTreeMap<String, Quantity>| list.get(name).and_then(amount).unwrap_or(0);
    let containers = spec.containers.iter();
    let requests = containers.filter_map(|c| c.resources.as_ref()?.requests.as_ref());
    requests.chain(&spec.overhead).map(of).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str, memory: &str, disk: &str) -> Pod {
        serde_json::from_value(json!({
            "spec": {
                "nodeSelector": { "disk": "fast", "kubernetes.io/os": "linux" },
                "overhead": { "cpu": "250m", "memory": "64Mi" },
                "containers": [{ "name": "vm", "resources": { "requests": {
                    "cpu": cpu, "memory": memory, "ephemeral-storage": disk,
                } } }],
            },
        }))
        .unwrap()
    }

    fn node(labels: &serde_json::Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "status": { "allocatable": {
                "cpu": "2", "memory": "4194304Ki", "ephemeral-storage": "21474836480",
            } },
        }))
        .unwrap()
    }

    #[test]
    fn a_node_that_has_room_when_it_is_empty_lacks_nothing() {
        let labels = json!({ "disk": "fast", "kubernetes.io/os": "linux" });
        let found = lacks(&pod("1750m", "4032Mi", "20Gi"), &node(&labels));
        assert!(found.is_empty(), "{found:?}");
        let unknown = lacks(&Pod::default(), &Node::default());
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn each_thing_that_a_node_lacks_is_named() {
        let labels = json!({ "disk": "slow", "kubernetes.io/os": "linux" });
        let found = lacks(&pod("1751m", "4033Mi", "20481Mi"), &node(&labels));
        assert_eq!(
            found,
            [
                "it requests 2001m CPU, the node has 2000m in all",
                "it requests 4097Mi of memory, the node has 4096Mi in all",
                "it requests 20481Mi of ephemeral storage, the node has 20480Mi in all",
                "the node has no label disk=fast",
            ]
        );
    }
}

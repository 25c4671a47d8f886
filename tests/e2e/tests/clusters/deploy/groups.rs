//! A group within a group, with the rights that `deploy/` gives the controller.
//!
//! Invariant: the inner group gets its power state from the outer one, and the machine from the inner one, so
//! that a right that is missing stops the machine or a status.
//! Failure: the machine or the group as it was last seen.

use anyhow::{Result, ensure};
use e2e::machines::condition;
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

use super::READY;

const OUTER: &str = "outer";
const INNER: &str = "inner";

/// The machine `on` is powered off and on again by its groups, which are deleted then.
pub(super) async fn a_group_within_a_group_powers_a_machine(cluster: &Cluster) -> Result<()> {
    let group = |name: &str, member: Value, spec: Value| {
        let mut group = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineGroup",
            "metadata": { "name": name },
            "spec": { "bootOrder": [{ "members": [member] }] },
        });
        if let Some(all) = group["spec"].as_object_mut()
            && let Some(more) = spec.as_object()
        {
            all.extend(more.clone());
        }
        group
    };
    let inner = json!({ "kind": "VirtualMachineGroup", "name": INNER });
    cluster.apply(&group(OUTER, inner, json!({})))?;
    let machine = json!({ "name": "on" });
    cluster.apply(&group(INNER, machine, json!({ "groupName": OUTER })))?;
    cluster.patch_vm("on", &json!({ "groupName": INNER }))?;
    for (state, word) in [("PoweredOff", "Stopped"), ("PoweredOn", "Running")] {
        let change = json!({ "spec": { "powerState": state } }).to_string();
        cluster.kubectl(&["patch", "vmg", OUTER, "--type=merge", "-p", &change])?;
        cluster.await_word("on", word, READY).await?;
        for name in [OUTER, INNER] {
            await_ready(cluster, name).await?;
        }
    }
    for name in [OUTER, INNER] {
        cluster.delete(&format!("vmg/{name}"), READY)?;
    }
    cluster.patch_vm("on", &json!({ "groupName": null }))
}

async fn await_ready(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(READY, "the status of the group", || async {
        let group = cluster.get_json(&["vmg", name])?;
        ensure!(condition(&group, "Ready")["status"] == "True", "{group}");
        Ok(())
    })
    .await
}

//! What autoscalers of nodes read on a Node that has disks of machines.
//!
//! Invariant: the agent has the rights of `deploy/agent`; its policy is in force.
//! Failure: the annotations of the Node, and the agent's log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use crds::names::{DO_NOT_DISRUPT, KEPT_FROM_AUTOSCALERS, SCALE_DOWN_DISABLED};
use crds::node_facts::NodeFacts;
use e2e::{Agent, Control, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeapi::v1::Disk;
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);
const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// Disks without a record that can be read.
const LOST: [&str; 2] = [
    "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b2a",
    "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b3a",
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_node_is_kept_from_autoscalers_while_it_has_the_disk_of_a_machine_that_is_off()
-> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let (mut agent, mut daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
    let nodes: Api<Node> = Api::all(control.client()?);
    // An administrator decided about Karpenter before.
    let own = json!({ "metadata": { "annotations": { DO_NOT_DISRUPT: "false", "other": "x" } } });
    let own = Patch::Merge(own);
    let node = nodes.patch("n1", &PatchParams::default(), &own).await?;
    let before = node.annotations().clone();
    daemon.set_disk(&Disk {
        vm_uid: UID.to_owned(),
        vm_name: "default/off".to_owned(),
        complete: true,
        ..Disk::default()
    });
    agent.start()?;
    let mut kept = before.clone();
    kept.insert(SCALE_DOWN_DISABLED.to_owned(), "true".to_owned());
    kept.insert(
        KEPT_FROM_AUTOSCALERS.to_owned(),
        SCALE_DOWN_DISABLED.to_owned(),
    );
    await_annotations(&nodes, &kept).await?;
    let leases: Api<Lease> = Api::namespaced(control.client()?, crds::names::NAMESPACE);
    await_count(&leases, 1).await?;

    // While the daemon is away, and after a restart of the agent, nothing is concluded.
    daemon.stop()?;
    agent.kill()?;
    agent.start()?;
    eventually(SOON, "an agent that finds no daemon", || async {
        let log = agent.log();
        ensure!(log.contains("node not kept from autoscalers"), "{log}");
        Ok(())
    })
    .await?;
    ensure!(*nodes.get("n1").await?.annotations() == kept);

    // What is left has no record that can be read.
    daemon.remove_disk(UID);
    for vm in LOST {
        daemon.set_disk(&Disk {
            vm_uid: vm.to_owned(),
            unreadable: "the database does not know it".to_owned(),
            ..Disk::default()
        });
    }
    daemon.start()?;
    await_count(&leases, 2).await?;
    ensure!(*nodes.get("n1").await?.annotations() == kept);

    for vm in LOST {
        daemon.remove_disk(vm);
    }
    await_annotations(&nodes, &before).await?;
    agent.kill()?;
    control.down()
}

async fn await_count(leases: &Api<Lease>, wanted: u32) -> Result<()> {
    eventually(SOON, "the number of disks", || async {
        let facts = NodeFacts::of_lease(&leases.get("vmlet-node-n1").await?);
        let disks = facts.and_then(|facts| facts.disks);
        ensure!(disks == Some(wanted), "{disks:?}");
        Ok(())
    })
    .await
}

async fn await_annotations(nodes: &Api<Node>, wanted: &BTreeMap<String, String>) -> Result<()> {
    eventually(SOON, "annotations of the Node", || async {
        let node = nodes.get("n1").await?;
        let found = node.annotations();
        ensure!(found == wanted, "{found:?}, not {wanted:?}");
        Ok(())
    })
    .await
}

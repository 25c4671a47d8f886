//! Disks whose machine no longer exists, between a real API server and a daemon that the test
//! plays.
//!
//! Invariant: a disk of a machine, one that a machine adopted, and one that a container has stay,
//! whatever happens.
//! Failure: the disks that are left, and the agent's log.

use std::time::Duration;

use anyhow::{Error, Result, ensure};
use e2e::{Agent, Control, Effect, NodeServer, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeapi::v1::Disk;
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);
const GONE: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const ADOPTED: &str = "1d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const BUSY: &str = "2d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const NAMELESS: &str = "3d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn disk(uid: &str, name: &str) -> Disk {
    Disk {
        vm_uid: uid.to_owned(),
        vm_name: name.to_owned(),
        complete: true,
        ..Disk::default()
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_without_a_machine_is_reported_and_removed_and_no_other() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let mut agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    let mut daemon = NodeServer::new(&agent.node_socket());
    daemon.start()?;
    let objects = control.objects("default")?;
    let spec = json!({ "imageName": "debian", "runStrategy": "Halted" });
    for name in ["own", "adopter"] {
        let vm = json!({ "metadata": { "name": name }, "spec": spec });
        let made = objects.create("VirtualMachine", &vm, Effect::Real).await?;
        let made = made.map_err(Error::msg)?;
        if name == "own" {
            let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
            daemon.set_disk(&disk(uid, "default/own"));
        }
    }
    let adopted = json!({ "status": { "diskUID": ADOPTED } });
    let patched = objects.patch("VirtualMachine", "adopter/status", &adopted, Effect::Real);
    patched.await?.map_err(Error::msg)?;
    daemon.set_disk(&disk(ADOPTED, "default/adopter"));
    daemon.set_disk(&disk(NAMELESS, ""));
    daemon.set_disk(&Disk {
        in_use_by: "c1".to_owned(),
        ..disk(BUSY, "default/busy")
    });
    daemon.set_disk(&disk(GONE, "default/gone"));

    // Reported, and kept: that is the default.
    agent.limit("orphan_interval", "1s")?;
    agent.limit("orphan_confirm", "2s")?;
    agent.start()?;
    let events: Api<Event> = Api::namespaced(control.client()?, "default");
    let of_disks = ListParams::default().fields("reason=OrphanedDisk");
    eventually(SOON, "the report", || async {
        let found = events.list(&of_disks).await?.items;
        ensure!(found.len() == 1, "{found:?}");
        let note = found[0].note.clone().unwrap_or_default();
        ensure!(
            note.contains("default/gone") && note.contains("it stays"),
            "{note}"
        );
        Ok(())
    })
    .await?;
    let leases: Api<Lease> = Api::namespaced(control.client()?, crds::names::NAMESPACE);
    let lease = leases.get("vmlet-node-n1").await?;
    let annotations = lease.metadata.annotations.unwrap_or_default();
    let record = annotations.get(crds::names::ORPHANED_DISKS);
    ensure!(record.is_some_and(|text| text.contains(GONE)), "{record:?}");
    ensure!(daemon.disks().len() == 5, "{:?}", daemon.disks());

    // With another setting it is removed, counted from when it was first found.
    agent.kill()?;
    agent.limit("orphan_remove_after", "3s")?;
    agent.start()?;
    eventually(SOON, "the removal", || async {
        let left = daemon.disks();
        ensure!(!left.contains(&GONE.to_owned()), "{left:?}");
        Ok(())
    })
    .await?;
    let left = daemon.disks();
    ensure!(left.len() == 4, "{left:?}");
    eventually(SOON, "no record", || async {
        let lease = leases.get("vmlet-node-n1").await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        let record = annotations.get(crds::names::ORPHANED_DISKS);
        ensure!(record.is_none(), "{record:?}");
        Ok(())
    })
    .await?;
    agent.kill()?;
    control.down()
}

//! Disks whose machine no longer exists, between a real API server and a daemon that the test
//! plays.
//!
//! Invariant: a disk of a machine, one that a machine adopted or is to adopt, one that a container has, and one that
//! is not known to be of this cluster stay, whatever happens.
//! Failure: the disks that are left, and the agent's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::{Agent, Control, Effect, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeapi::v1::Disk;
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);
const GONE: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const ADOPTED: &str = "1d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const BUSY: &str = "2d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const ADOPTING: &str = "4d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const FOREIGN: &str = "5d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const UNKNOWN: &str = "6d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
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
    let (mut agent, daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
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
    let annotations = json!({ crds::names::ADOPT_DISK: "" });
    let vm = json!({ "metadata": { "name": "heir", "annotations": annotations }, "spec": spec });
    let made = objects.create("VirtualMachine", &vm, Effect::Real).await?;
    made.map_err(Error::msg)?;
    let namespaces: Api<Namespace> = Api::all(control.client()?);
    let cluster = namespaces.get("kube-system").await?.metadata.uid;
    let cluster = cluster.context("kube-system has no UID")?;
    let of_this_cluster = |uid: &str, name: &str| Disk {
        cluster_uid: cluster.clone(),
        ..disk(uid, name)
    };
    daemon.set_disk(&of_this_cluster(ADOPTING, "default/heir"));
    daemon.set_disk(&of_this_cluster(NAMELESS, ""));
    daemon.set_disk(&Disk {
        in_use_by: "c1".to_owned(),
        ..of_this_cluster(BUSY, "default/busy")
    });
    daemon.set_disk(&of_this_cluster(GONE, "default/gone"));

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
    ensure!(daemon.disks().len() == 6, "{:?}", daemon.disks());

    // After the loss of a cluster's data no disk has a machine.
    daemon.set_disk(&Disk {
        cluster_uid: "6f0f2d8e-5a1b-4c77-9d3e-766d6c657401".to_owned(),
        ..disk(FOREIGN, "default/foreign")
    });
    daemon.set_disk(&disk(UNKNOWN, "default/unknown"));

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
    // They are suspects for as long, and reported.
    eventually(SOON, "the reports about disks of others", || async {
        let found = events.list(&of_disks).await?.items;
        let notes = found.iter().filter_map(|event| event.note.as_deref());
        let notes: Vec<_> = notes.collect();
        for words in ["is of another cluster", "has no manifest"] {
            ensure!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
        }
        Ok(())
    })
    .await?;
    // Two more of its rounds, which a disk of this cluster would not outlive.
    let last = "7d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
    daemon.set_disk(&of_this_cluster(last, "default/last"));
    eventually(SOON, "the removal of one that came later", || async {
        let left = daemon.disks();
        ensure!(!left.contains(&last.to_owned()), "{left:?}");
        Ok(())
    })
    .await?;
    let left = daemon.disks();
    ensure!(left.len() == 7, "{left:?}");
    for uid in [FOREIGN, UNKNOWN, ADOPTING, ADOPTED, BUSY, NAMELESS] {
        ensure!(left.contains(&uid.to_owned()), "{uid}: {left:?}");
    }
    agent.kill()?;
    control.down()
}

//! Manifests of machines, between a real API server and a daemon that the test plays.
//!
//! Invariant: a disk gets the manifest of the machine that has it, and of no other; an agent with the
//! rights of `deploy/agent` can do all of it.
//! Failure: the manifest that is there, or the agent's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use crds::backup::MachineManifest;
use e2e::{Agent, Control, Effect, NodeServer, Objects, Who, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use nodeapi::v1::Disk;
use serde_json::{Value, json};

use crate::protected::denied;

const SOON: Duration = Duration::from_secs(120);
const EARLIER: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn disk(uid: &str, name: &str) -> Disk {
    Disk {
        vm_uid: uid.to_owned(),
        vm_name: name.to_owned(),
        complete: true,
        ..Disk::default()
    }
}

/// A machine with a disk on node `n1`; returns its UID.
async fn machine(objects: &Objects, name: &str) -> Result<String> {
    let spec = json!({ "imageName": "debian", "className": "small", "runStrategy": "Halted" });
    let vm = json!({ "metadata": { "name": name }, "spec": spec });
    let made = objects.create("VirtualMachine", &vm, Effect::Real).await?;
    let made = made.map_err(Error::msg)?;
    let uid = made["metadata"]["uid"]
        .as_str()
        .context("no UID")?
        .to_owned();
    let status = json!({ "status": {
        "nodeName": "n1", "uniqueID": format!("n1/{uid}"), "biosUUID": uid, "instanceUUID": uid,
    } });
    change(objects, &format!("{name}/status"), &status).await?;
    Ok(uid)
}

async fn change(objects: &Objects, name: &str, change: &Value) -> Result<()> {
    let patched = objects.patch("VirtualMachine", name, change, Effect::Real);
    patched.await?.map_err(Error::msg)?;
    Ok(())
}

fn manifest(daemon: &NodeServer, uid: &str) -> Result<MachineManifest> {
    let (text, _) = daemon.manifest(uid).context("no manifest")?;
    Ok(MachineManifest::from_json(&text)?)
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_manifest_follows_its_machine_and_a_failure_shows_on_the_lease() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let (mut agent, daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
    let objects = control.objects("default")?;
    let uid = machine(&objects, "own").await?;
    daemon.set_disk(&disk(&uid, "default/own"));
    // Another machine had the name before.
    daemon.set_disk(&disk(EARLIER, "default/own"));
    agent.limit("manifest_interval", "1s")?;
    agent.start()?;
    eventually(SOON, "the manifest", || async {
        let manifest = manifest(&daemon, &uid)?;
        ensure!(manifest.spec["imageName"] == "debian", "{manifest:?}");
        ensure!(manifest.record.disk == uid, "{manifest:?}");
        Ok(())
    })
    .await?;

    let label = json!({ "metadata": { "labels": { "team": "blue" } } });
    change(&objects, "own", &label).await?;
    eventually(SOON, "the manifest with the label", || async {
        let manifest = manifest(&daemon, &uid)?;
        ensure!(manifest.labels.contains_key("team"), "{manifest:?}");
        Ok(())
    })
    .await?;
    let sent = daemon.manifest(&uid).map(|(_, times)| times);
    let other = machine(&objects, "other").await?;
    daemon.set_disk(&disk(&other, "default/other"));
    eventually(SOON, "the manifest of another machine", || async {
        manifest(&daemon, &other).map(drop)
    })
    .await?;
    let again = daemon.manifest(&uid).map(|(_, times)| times);
    ensure!(again == sent, "sent again: {again:?}, {sent:?}");
    ensure!(daemon.manifest(EARLIER).is_none());

    daemon.refuse_manifests(Some("no space left"));
    let label = json!({ "metadata": { "labels": { "team": "red" } } });
    change(&objects, "own", &label).await?;
    let leases: Api<Lease> = Api::namespaced(control.client()?, crds::names::NAMESPACE);
    let reported = || async {
        let lease = leases.get("vmlet-node-n1").await?;
        let mut annotations = lease.metadata.annotations.unwrap_or_default();
        anyhow::Ok(annotations.remove(crds::names::BACKUP_FAILURES))
    };
    eventually(SOON, "the report", || async {
        let text = reported().await?.context("nothing is reported")?;
        let is_meant = text.contains(&uid) && text.contains("no space left");
        ensure!(is_meant && !text.contains(EARLIER), "{text}");
        Ok(())
    })
    .await?;
    daemon.refuse_manifests(None);
    eventually(SOON, "the end of the report", || async {
        let text = reported().await?;
        ensure!(text.is_none(), "{text:?}");
        Ok(())
    })
    .await?;
    ensure!(manifest(&daemon, &uid)?.labels["team"] == "red");
    agent.kill()?;
    control.down()
}

/// A user may delete what the controller records, and neither set nor change it; to take over a disk is for
/// privileged users.
pub(super) async fn records_are_written_by_the_controller_and_deleted_by_anyone(
    control: &Control,
) -> Result<()> {
    let namespace = "records";
    control.namespace(namespace).await?;
    let tenant = Who::user("tenant");
    let controller = Who::service_account("vmlet-system", "vmlet-controller");
    for who in [&tenant, &controller] {
        control.grant(who).await?;
    }
    let tenant = control.objects_as(&tenant, namespace)?;
    let controller = control.objects_as(&controller, namespace)?;
    let words = "written by the controller";
    // A copy of a machine has the records of the other one, which have no effect.
    let record = json!({ crds::names::DISK_RECORD: "{}" });
    let spec = json!({ "imageName": "debian", "running": true });
    let vm = json!({ "metadata": { "name": "m", "annotations": record }, "spec": spec });
    let made = tenant.create("VirtualMachine", &vm, Effect::Real).await?;
    made.map_err(Error::msg)?;
    for key in [
        crds::names::DISK_RECORD,
        crds::names::UPGRADED_TO_FEATURE,
        crds::names::CREATED_AT_BUILD,
    ] {
        let patch = |value: Value| json!({ "metadata": { "annotations": { key: value } } });
        change(&tenant, "m", &patch(Value::Null)).await?;
        let set = patch(json!("1"));
        let answer = tenant.patch("VirtualMachine", "m", &set, Effect::Real);
        denied(answer.await?, words);
        change(&controller, "m", &set).await?;
        let changed = patch(json!("2"));
        let answer = tenant.patch("VirtualMachine", "m", &changed, Effect::Real);
        denied(answer.await?, words);
        change(&tenant, "m", &patch(Value::Null)).await?;
    }
    let adopts = json!({ "metadata": { "annotations": { crds::names::ADOPT_DISK: "" } } });
    let answer = tenant.patch("VirtualMachine", "m", &adopts, Effect::Real);
    denied(answer.await?, "in a domain that ends in .protected");
    Ok(())
}

//! `vmletctl uninstall`, the policy that keeps our kinds until it allows their removal, and the one
//! that keeps machines from being created from then on.
//!
//! Invariant: no controller and no agent runs: what they would report is written by the test.
//! Failure: the command's own output.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Answer, Control, Effect, eventually};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::vmletctl::Ctl;

const NODE: &str = "n1";
const MACHINES: &str = "virtualmachines.vmlet.dev";
const VM: &str = "VirtualMachine";
const TASK: &str = "VirtualMachineTask";
/// What a refusal says is to be done.
const CANCEL: &str = "vmletctl uninstall --cancel";
const SOON: Duration = Duration::from_secs(60);

/// The lease of the node, as an agent with this many disks renews it.
fn lease(disks: u32) -> Value {
    let facts = json!({ "agentVersion": "9.9.9", "disks": disks });
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": format!("vmlet-node-{NODE}"), "namespace": "vmlet-system",
            "labels": { "vmlet.dev/node-lease": "true" },
            "annotations": { "vmlet.dev/node-facts": facts.to_string() },
        },
        "spec": {
            "holderIdentity": NODE, "leaseDurationSeconds": 40,
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string(),
        },
    })
}

/// A machine that is off and has its disk on the node, a task, and a pod of a user.
fn prepare(control: &Control, ctl: &Ctl) -> Result<()> {
    let cluster = control.cluster();
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    cluster.kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }))?;
    ctl.ok("create vm off --image debian --memory 64Mi --run-strategy Halted --apply")?;
    let kept = json!({ "metadata": { "finalizers": ["vmlet.dev/virtualmachine"] } });
    cluster.kubectl(&[
        "patch",
        "vm",
        "off",
        "--type=merge",
        "-p",
        &kept.to_string(),
    ])?;
    let status = json!({ "status": { "printableStatus": "Stopped", "nodeName": NODE } });
    let status = status.to_string();
    let sub = ["--subresource=status", "--type=merge", "-p", &status];
    cluster.kubectl(&[&["patch", "vm", "off"][..], &sub].concat())?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": { "name": "work", "namespace": "default" },
        "spec": { "nodeName": NODE, "vmName": "off", "vmUID": "0f0f0f0f-0000-4000-8000-000000000001", "kind": "Reset" },
    }))?;
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "plain", "namespace": "default" },
        "spec": { "runtimeClassName": "vmlet", "containers": [{ "name": "vm", "image": "vmlet.dev/hello" }] },
    }))?;
    cluster.apply(&lease(2))
}

fn deletion_is_refused(control: &Control) -> Result<()> {
    let answer = control
        .cluster()
        .kubectl(&["delete", "crd", MACHINES, "--wait=false"]);
    let words = format!("{answer:?}");
    ensure!(words.contains("run vmletctl uninstall"), "{words}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_kinds_are_deleted_only_after_nothing_is_left() -> Result<()> {
    let control = Control::up().await?;
    let ctl = Ctl::new(&control)?;
    control.namespace("vmlet-system").await?;
    prepare(&control, &ctl)?;
    deletion_is_refused(&control)?;

    for line in [
        "uninstall --check",
        "uninstall",
        "uninstall --check --node n1",
    ] {
        let output = ctl.run(line)?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.code() == Some(1), "{line}: {text}");
        for words in [
            "default/off (Stopped), disk on node n1",
            "default/work (Reset) on node n1\n",
            "disks on nodes: 1\n  n1: 2",
        ] {
            ensure!(text.contains(words), "{line}: {words:?} in {text}");
        }
        // It was never bound, so that it is on no node.
        ensure!(
            text.contains("default/plain\n") != line.contains("--node"),
            "{line}: {text}"
        );
    }
    deletion_is_refused(&control)?;

    // A machine on a node whose agent is gone says why its deletion waits.
    let cluster = control.cluster();
    let name = format!("vmlet-node-{NODE}");
    cluster.kubectl(&["delete", "lease", "-n", "vmlet-system", &name])?;
    let output = ctl.run("uninstall --check")?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(text.contains("no agent that reports"), "{text}");

    // What controller, agents and kubelet would do.
    let free = json!({ "metadata": { "finalizers": null } }).to_string();
    cluster.kubectl(&["delete", "vm", "off", "--wait=false"])?;
    cluster.kubectl(&["patch", "vm", "off", "--type=merge", "-p", &free])?;
    cluster.kubectl(&["delete", "vmtask", "work"])?;
    cluster.kubectl(&["delete", "pod", "plain", "--force", "--grace-period=0"])?;
    cluster.apply(&lease(1))?;
    let output = ctl.run("uninstall --check")?;
    ensure!(
        output.status.code() == Some(1),
        "a disk is left: {output:?}"
    );
    let kept = ctl.ok("uninstall --check --keep-disks")?;
    ensure!(
        kept.contains("n1: 1") && kept.contains("Nothing is left"),
        "{kept}"
    );
    cluster.apply(&lease(0))?;
    ctl.ok("uninstall --check")?;
    deletion_is_refused(&control)?;
    let allowed = ctl.ok("uninstall")?;
    ensure!(allowed.contains("kubectl delete -k"), "{allowed}");
    cluster.kubectl(&["delete", "crd", MACHINES])?;
    // Also when a part of the kinds is gone.
    ctl.ok("uninstall --check")?;
    control.down()
}

/// Whether a machine can be created.
async fn made(control: &Control) -> Result<Answer> {
    let machine = json!({
        "metadata": { "name": "new" }, "spec": { "imageName": "debian", "running": true },
    });
    let objects = control.objects("default")?;
    objects.create(VM, &machine, Effect::DryRun).await
}

/// Waits for what the API server sees of an annotation a moment later.
async fn await_answer(control: &Control, refusal: Option<&str>) -> Result<()> {
    eventually(SOON, "the policy", || async {
        let answer = made(control).await?;
        let is_as_wanted = match refusal {
            Some(words) => answer.as_ref().is_err_and(|found| found.contains(words)),
            None => answer.is_ok(),
        };
        ensure!(is_as_wanted, "{answer:?}");
        Ok(())
    })
    .await
}

/// Work on a machine that is there, however it came there, and the making of a disk.
async fn only_the_task_that_makes_a_disk_is_refused(control: &Control) -> Result<()> {
    let objects = control.objects("default")?;
    for kind in ["Provision", "DeleteDisk", "GuestShutdown", "InspectImage"] {
        let task = json!({ "metadata": { "name": "work" }, "spec": {
            "nodeName": NODE, "vmName": "off", "vmUID": "0f0f0f0f-0000-4000-8000-000000000001", "kind": kind,
        } });
        let answer = objects.create(TASK, &task, Effect::DryRun).await?;
        let is_refused = answer.as_ref().is_err_and(|found| found.contains(CANCEL));
        ensure!(is_refused == (kind == "Provision"), "{kind}: {answer:?}");
        ensure!(is_refused || answer.is_ok(), "{kind}: {answer:?}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn no_machine_is_created_while_the_removal_of_the_kinds_is_allowed() -> Result<()> {
    let control = Control::up().await?;
    let ctl = Ctl::new(&control)?;
    let none = ctl.ok("uninstall --cancel")?;
    ensure!(none.contains("was not allowed"), "{none}");
    await_answer(&control, None).await?;

    ctl.ok("uninstall")?;
    await_answer(&control, Some(CANCEL)).await?;
    let refused = ctl.refused("create vm new --image debian --memory 64Mi --apply")?;
    ensure!(refused.contains(CANCEL), "{refused}");
    only_the_task_that_makes_a_disk_is_refused(&control).await?;
    let check = ctl.ok("uninstall --check")?;
    ensure!(check.contains(CANCEL), "{check}");
    // Again changes nothing.
    ctl.ok("uninstall")?;
    await_answer(&control, Some(CANCEL)).await?;

    let back = ctl.ok("uninstall --cancel")?;
    ensure!(back.contains("no longer allowed"), "{back}");
    deletion_is_refused(&control)?;
    await_answer(&control, None).await?;
    ctl.ok("create vm new --image debian --memory 64Mi --apply")?;

    // A permission that stands beside a machine, as one that was given by hand, is taken back.
    let cluster = control.cluster();
    cluster.kubectl(&["annotate", "crd", MACHINES, "vmlet.dev/removal=allowed"])?;
    let output = ctl.run("uninstall")?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.code() == Some(1), "{text}");
    ensure!(text.contains("no longer allowed"), "{text}");
    deletion_is_refused(&control)?;

    // Without the kind nothing can be created, and a new one has no permission from before.
    cluster.kubectl(&["delete", "vm", "new"])?;
    ctl.ok("uninstall")?;
    cluster.kubectl(&["delete", "crd", MACHINES])?;
    let answer = made(&control).await?;
    ensure!(answer.is_err(), "{answer:?}");
    control.install_kinds().await?;
    await_answer(&control, None).await?;
    control.down()
}

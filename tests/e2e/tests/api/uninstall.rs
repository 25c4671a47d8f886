//! `vmletctl uninstall`, and the policy that keeps our kinds until it allows their removal.
//!
//! Invariant: no controller and no agent runs: what they would report is written by the test.
//! Failure: the command's own output.

use std::path::Path;

use anyhow::{Result, ensure};
use e2e::Control;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::vmletctl::Ctl;

const NODE: &str = "n1";
const MACHINES: &str = "virtualmachines.vmlet.dev";

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

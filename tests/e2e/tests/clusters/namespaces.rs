//! A namespace is deleted while its machines are in different states. It enforces Pod Security
//! `restricted`, which all pods of machines pass.
//!
//! Invariant: nothing can be created in a namespace that is being deleted, so that its machines end
//! without new objects there.
//! Failure: what is left of the namespace, and what its condition says.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use e2e::machines::{class, image, machine};
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "ending";
/// Machines, their desired states at first, and what they show when the namespace is deleted.
const MACHINES: [(&str, &str, &str); 3] = [
    ("runs", "PoweredOn", "Running"),
    ("off", "PoweredOff", "Stopped"),
    ("sleeps", "Suspended", "Suspended"),
];

pub(super) async fn a_namespace_goes_with_its_machines(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "namespace", NAMESPACE])?;
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", NAMESPACE, restricted])?;
    for object in [class("tiny", "128Mi"), image(cluster.stack().image()?)] {
        cluster.apply(&here(object))?;
    }
    for (name, ..) in MACHINES {
        let object = machine(name, &json!({ "powerState": "PoweredOn" }));
        cluster.apply(&here(object))?;
    }
    for (name, state, word) in MACHINES {
        await_word(cluster, name, "Running").await?;
        let patch = json!({ "spec": { "powerState": state } }).to_string();
        cluster.kubectl(&in_namespace(&[
            "patch",
            "vm",
            name,
            "--type=merge",
            "-p",
            &patch,
        ]))?;
        await_word(cluster, name, word).await?;
    }
    // Its disk is being made, or is about to be.
    cluster.apply(&here(machine(
        "begins",
        &json!({ "powerState": "PoweredOn" }),
    )))?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    eventually(DOWN, "the end of the namespace", || async {
        let get = [
            "get",
            "namespace",
            NAMESPACE,
            "--ignore-not-found",
            "-o",
            "json",
        ];
        let found = cluster.kubectl(&get)?;
        if !found.is_empty() {
            let kinds = "vm,vmtask,pod";
            let left = cluster.kubectl(&in_namespace(&["get", kinds, "-o", "name"]))?;
            bail!("{left}\n{found}");
        }
        Ok(())
    })
    .await?;
    let disks = std::fs::read_dir(cluster.stack().dir().join("state/disks"))?;
    let disks: Vec<_> = disks.flatten().map(|disk| disk.path()).collect();
    ensure!(disks.is_empty(), "disks are left: {disks:?}");
    eventually(DOWN, "the end of the tasks", || async {
        let left = cluster.kubectl(&["get", "vmtask", "-A", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

fn here(mut object: Value) -> Value {
    object["metadata"]["namespace"] = json!(NAMESPACE);
    object
}

fn in_namespace<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["-n", NAMESPACE], words].concat()
}

async fn await_word(cluster: &Cluster, name: &str, word: &str) -> Result<()> {
    eventually(UP, &format!("{name} is {word}"), || async {
        let shown = "jsonpath={.status.printableStatus}";
        let shown = cluster.kubectl(&in_namespace(&["get", "vm", name, "-o", shown]))?;
        ensure!(shown == word, "{shown}");
        Ok(())
    })
    .await
}

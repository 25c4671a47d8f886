//! `vmletctl recover` against a real API server, with the disks of a node from a file.
//!
//! Invariant: a machine is made again only if it is known which disk it had.
//! Failure: what the command printed.

use anyhow::{Result, ensure};
use e2e::Control;
use e2e::machines::{class, image};
use serde_json::{Value, json};

use crate::vmletctl::Ctl;

const OLD: &str = "6f0f2d8e-5a1b-4c77-9d3e-766d6c657401";
const NEW: &str = "7f0f2d8e-5a1b-4c77-9d3e-766d6c657401";

/// A case of a test that has an API server. Of two disks of one machine none is taken before the user says which.
pub(super) fn two_disks_of_one_machine(control: &Control, ctl: &Ctl) -> Result<()> {
    let cluster = control.cluster();
    cluster.apply(&class("tiny", "64Mi"))?;
    cluster.apply(&image("registry.example/guest:1"))?;
    let file = control.stack().dir().join("kept-disks.jsonl");
    let lines = [disk(OLD, "twice"), disk(NEW, "twice"), disk(OLD, "once")];
    let lines = lines.map(|disk| format!("{disk}\n"));
    std::fs::write(&file, lines.concat())?;
    let recover = |options: &str| {
        let file = file.display();
        ctl.run(&format!("recover --node n1 --disks {file} {options}"))
    };
    let all = recover("--all")?;
    let text = String::from_utf8_lossy(&all.stdout);
    ensure!(all.status.code() == Some(1), "{all:?}");
    ensure!(
        text.matches("the node has 2 disks of this machine: choose one with --disk UID")
            .count()
            == 2,
        "{text}"
    );
    let made = || cluster.kubectl(&["get", "vm", "-o", "name"]);
    ensure!(
        made()?.lines().any(|name| name.ends_with("/once")),
        "{text}"
    );
    ensure!(!made()?.contains("twice"), "{text}");
    let chosen = recover(&format!("twice --disk {NEW}"))?;
    ensure!(chosen.status.success(), "{chosen:?}");
    let vm = cluster.vm("twice")?;
    let record = &vm["metadata"]["annotations"]["vmlet.dev/disk-record"];
    ensure!(
        record.as_str().is_some_and(|record| record.contains(NEW)),
        "{vm}"
    );
    for name in ["once", "twice"] {
        cluster.kubectl(&["delete", "vm", name])?;
    }
    Ok(())
}

/// A disk of the machine, with the manifest that the node kept.
fn disk(uid: &str, name: &str) -> Value {
    let manifest = json!({
        "version": 1, "uid": uid, "namespace": "default", "name": name,
        "labels": {}, "annotations": {},
        "spec": { "className": "tiny", "imageName": "guest", "powerState": "PoweredOff" },
        "record": {
            "node": "n1", "disk": uid, "biosUUID": uid, "instanceUUID": uid, "image": "guest",
        },
    });
    json!({
        "uid": uid, "name": format!("default/{name}"), "complete": true, "manifest": manifest.to_string(),
    })
}

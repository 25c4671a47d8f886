//! `snapshots`: the snapshots of a virtual machine, as a tree.
//!
//! Invariant: each snapshot is in one row, below the one that it descends from; the one that the disk
//! descends from has an asterisk.
//! Failure: the cluster's; a snapshot that cannot be read is named on standard error.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crds::conditions::{SNAPSHOT_CREATED, SNAPSHOT_READY};
use crds::guard::Guarded;
use crds::{VirtualMachine, VirtualMachineSnapshot};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::cluster::{ClusterArgs, Names, listed};
use crate::table;

/// Machine whose snapshots to list.
#[derive(Debug, Args)]
pub(crate) struct SnapshotsArgs {
    /// Name of the virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SnapshotsArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    let found = cluster.find(machine).await?;
    let api: Api<Guarded<VirtualMachineSnapshot>> = cluster.api();
    let mut all = listed::readable(&api, &ListParams::default()).await?;
    all.retain(|one| one.spec.vm_name == machine);
    if all.is_empty() {
        eprintln!("{machine} has no snapshots; `vmletctl snapshot {machine}` takes one");
        return Ok(ExitCode::SUCCESS);
    }
    super::super::print(&render(&found.vm, all, Timestamp::now()))?;
    Ok(ExitCode::SUCCESS)
}

fn render(vm: &VirtualMachine, mut all: Vec<VirtualMachineSnapshot>, now: Timestamp) -> String {
    all.sort_by_cached_key(|one| (one.creation_timestamp().map(|at| at.0), one.name_any()));
    let mut left: BTreeSet<usize> = (0..all.len()).collect();
    let mut rows = Vec::new();
    let is_root = |one: &VirtualMachineSnapshot| {
        let parent = parent(one);
        parent.is_none_or(|uid| all.iter().all(|other| other.uid().as_deref() != Some(uid)))
    };
    let roots: Vec<_> = (0..all.len()).filter(|at| is_root(&all[*at])).collect();
    // Objects that others wrote could name each other: each is shown once all the same.
    for root in roots.into_iter().chain(0..all.len()) {
        let mut open = vec![(root, 0)];
        while let Some((at, depth)) = open.pop() {
            if !left.remove(&at) {
                continue;
            }
            rows.push(row(vm, &all[at], depth, now));
            let uid = all[at].uid();
            let below = (0..all.len()).rev();
            let below =
                below.filter(|other| uid.is_some() && parent(&all[*other]) == uid.as_deref());
            open.extend(below.map(|other| (other, depth + 1)));
        }
    }
    table::render(["NAME", "READY", "POWER", "USED", "AGE", "MESSAGE"], &rows)
}

fn parent(snapshot: &VirtualMachineSnapshot) -> Option<&str> {
    let parent = snapshot.status.as_ref()?.parent.as_ref()?;
    parent.uid.as_deref()
}

fn row(
    vm: &VirtualMachine,
    snapshot: &VirtualMachineSnapshot,
    depth: usize,
    now: Timestamp,
) -> [String; 6] {
    let status = snapshot.status.clone().unwrap_or_default();
    let current = vm.status.as_ref();
    let current = current.and_then(|status| status.current_snapshot.as_ref()?.uid.clone());
    let mark = if current.is_some() && current == snapshot.uid() {
        " *"
    } else {
        ""
    };
    let ready = snapshot.condition(SNAPSHOT_READY);
    let kinds = [SNAPSHOT_READY, SNAPSHOT_CREATED];
    let mut messages = kinds.iter().filter_map(|kind| snapshot.condition(kind));
    let message = messages.find(|one| !one.message.is_empty());
    let used = status.storage.and_then(|storage| storage.used);
    let power = status.power_state.filter(|_| snapshot.is_created());
    let since = snapshot.creation_timestamp().map(|made| {
        let age = now.duration_since(made.0);
        table::age(Duration::try_from(age).unwrap_or_default())
    });
    [
        format!("{}{}{mark}", "  ".repeat(depth), snapshot.name_any()),
        ready
            .map_or("Unknown", |ready| ready.status.as_str())
            .to_owned(),
        power.map_or(String::new(), |power| format!("{power:?}")),
        used.map_or(String::new(), |used| used.0),
        since.unwrap_or_default(),
        message.map_or(String::new(), |one| one.message.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(name: &str, parent: Option<&str>, ready: &str, message: &str) -> Value {
        let parent = parent.map(|uid| json!({ "type": "Managed", "name": uid, "uid": uid }));
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": ready, "reason": "R", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        json!({
            "metadata": { "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "vmName": "vm" },
            "status": {
                "parent": parent, "powerState": "PoweredOn", "storage": { "used": "3Mi" },
                "conditions": [condition(SNAPSHOT_CREATED), condition(SNAPSHOT_READY)],
            },
        })
    }

    fn shown(all: Value) -> String {
        let current = json!({ "type": "Managed", "name": "c", "uid": "c" });
        let vm = json!({
            "metadata": { "name": "vm" }, "spec": {}, "status": { "currentSnapshot": current },
        });
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let vm = serde_json::from_value(vm).unwrap();
        render(&vm, serde_json::from_value(all).unwrap(), now)
    }

    #[test]
    fn a_tree_is_below_its_roots() {
        let all = json!([
            snapshot("b", Some("a"), "True", ""),
            snapshot("a", None, "True", ""),
            snapshot("c", Some("b"), "True", ""),
            snapshot("d", Some("a"), "True", ""),
            snapshot("e", None, "False", "it waits"),
        ]);
        insta::assert_snapshot!(shown(all), @r"
        NAME     READY  POWER      USED  AGE  MESSAGE
        a        True   PoweredOn  3Mi   60s
          b      True   PoweredOn  3Mi   60s
            c *  True   PoweredOn  3Mi   60s
          d      True   PoweredOn  3Mi   60s
        e        False             3Mi   60s  it waits
        ");
    }

    #[test]
    fn what_names_itself_is_shown_once() {
        let text = shown(json!([
            snapshot("a", Some("b"), "True", ""),
            snapshot("b", Some("a"), "True", ""),
        ]));
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}

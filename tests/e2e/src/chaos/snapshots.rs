//! Snapshots of the machines of a run: taken, reverted to, deleted.
//!
//! Invariant: a machine reverts only to a snapshot that is ready, and is to be then what the manifest of the
//! snapshot says, which must be something that it was to be before.
//! Failure: a manifest that the machine never had; else the last report of the API server.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::clones::taken;
use super::desired::{DesiredState, Mode};
use super::machines::{Machines, Revert, TAKEN, name};
use super::objects::text;
use super::operation::Outcome;
use crate::machines::condition;
use crate::{Cluster, eventually};

/// Why an operation is skipped.
pub(super) const NOTHING: &str = "no machine has such a snapshot";
/// The same.
pub(super) const SUSPENDED: &str = "every machine is suspended";
const KIND: &str = "vmsnap";

/// Takes a snapshot of the first machine from `choice` on that has a disk which can have one.
pub(super) async fn take(
    cluster: &Cluster,
    machines: &Machines,
    choice: usize,
    snapshot: &str,
) -> Result<Outcome> {
    let Some(machine) = fit(machines, choice) else {
        return Ok(Outcome::Skipped(SUSPENDED.to_owned()));
    };
    let object = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": snapshot },
        "spec": { "vmName": name(machine) },
    });
    eventually(TAKEN, "the API server accepts a snapshot", || async {
        cluster.apply(&object)
    })
    .await?;
    Ok(Outcome::Requested(format!(
        "{snapshot} of {}",
        name(machine)
    )))
}

/// The first machine from `choice` on that has a disk which can be copied.
pub(super) fn fit(machines: &Machines, choice: usize) -> Option<usize> {
    let has = |machine: &usize, is_fit: fn(Mode) -> bool| {
        let desired = machines.settled(*machine);
        desired.is_some_and(|desired| is_fit(desired.mode))
    };
    // One that runs boots after a revert, and shows the state of its disk.
    let on = machines.from(choice).find(|one| has(one, Mode::is_on));
    on.or_else(|| {
        let mut all = machines.from(choice);
        all.find(|one| has(one, |mode| mode != Mode::Suspended))
    })
}

/// Lets the first machine from `choice` on that has a snapshot return to its newest one.
pub(super) async fn revert(
    cluster: &Cluster,
    machines: &mut Machines,
    choice: usize,
) -> Result<Outcome> {
    let all = list(cluster, KIND).await?;
    for machine in machines.from(choice) {
        // Until it is resumed or powered off, a suspended machine does not revert.
        let settled = machines.settled(machine);
        if settled.is_none_or(|desired| desired.mode == Mode::Suspended) {
            continue;
        }
        let mut own = all.iter().filter(|one| is_ready(one, machine));
        let Some(snapshot) = own.next_back() else {
            continue;
        };
        let snapshot_name = text(&snapshot["metadata"]["name"]);
        let status = &snapshot["status"];
        let vm = name(machine);
        let present = eventually(TAKEN, "the API server shows a machine", || async {
            cluster.vm(&vm)
        });
        // The snapshots of an earlier machine of the name may still be there.
        if present.await?["metadata"]["uid"] != status["diskUID"] {
            continue;
        }
        let to = DesiredState::read(&status["manifest"]["spec"])
            .with_context(|| format!("the manifest of {snapshot_name}"))?;
        ensure!(
            machines.was(machine, to),
            "the manifest of {snapshot_name} says {to:?}, which {vm} never was to be"
        );
        let taken = taken(snapshot)?;
        let requested = Timestamp::now();
        if let Some(refusal) = request(cluster, &vm, snapshot_name).await? {
            return Ok(Outcome::Skipped(refusal));
        }
        machines.revert(Revert {
            machine,
            to,
            taken,
            requested,
        });
        return Ok(Outcome::Requested(format!(
            "{vm} to {snapshot_name}, {to:?}"
        )));
    }
    Ok(Outcome::Skipped(NOTHING.to_owned()))
}

/// Requests a revert; the words of an API server that refuses it.
async fn request(cluster: &Cluster, vm: &str, snapshot: &str) -> Result<Option<String>> {
    let patch = json!({ "spec": { "currentSnapshotName": snapshot } }).to_string();
    let words = ["patch", "vm", vm, "--type=merge", "-p", &patch];
    eventually(TAKEN, "the API server accepts a revert", || async {
        match cluster.kubectl(&words) {
            Err(error) if is_refusal(&error) => Ok(Some(format!("{vm}: {error:#}"))),
            written => written.map(|_| None),
        }
    })
    .await
}

/// The newest snapshot of the first machine from `choice` on that has one.
pub(super) async fn newest(
    cluster: &Cluster,
    machines: &Machines,
    choice: usize,
) -> Result<Option<Value>> {
    let all = list(cluster, KIND).await?;
    let found = machines.from(choice).find_map(|machine| {
        machines.settled(machine)?;
        let mut own = all.iter().filter(|one| is_ready(one, machine));
        own.next_back()
    });
    Ok(found.cloned())
}

/// Deletes a snapshot that no machine returns to, from number `choice` on, but that of the name `kept`.
pub(super) async fn delete(
    cluster: &Cluster,
    machines: &Machines,
    choice: usize,
    kept: Option<&str>,
) -> Result<Outcome> {
    let all = list(cluster, KIND).await?;
    let mut fit = machines.from(choice).filter_map(|machine| {
        machines.settled(machine)?;
        let mut own = all.iter().filter(|one| is_ready(one, machine));
        own.find(|one| kept != one["metadata"]["name"].as_str())
    });
    let Some(snapshot) = fit.next() else {
        return Ok(Outcome::Skipped(NOTHING.to_owned()));
    };
    let snapshot = text(&snapshot["metadata"]["name"]);
    let words = [
        "delete",
        "vmsnap",
        snapshot,
        "--wait=false",
        "--ignore-not-found",
    ];
    eventually(TAKEN, "the API server accepts a deletion", || async {
        cluster.kubectl(&words)
    })
    .await?;
    Ok(Outcome::Requested(snapshot.to_owned()))
}

/// All snapshots, or backups, the oldest first.
pub(super) async fn list(cluster: &Cluster, kind: &str) -> Result<Vec<Value>> {
    let mut list = eventually(TAKEN, "the API server lists objects", || async {
        cluster.get_json(&[kind])
    })
    .await?;
    let mut all = list["items"].take();
    let all = all.as_array_mut().context("items")?;
    let mut all = std::mem::take(all);
    let time = |one: &Value| {
        text(&one["status"]["creationTime"])
            .parse::<Timestamp>()
            .ok()
    };
    all.sort_by_key(time);
    Ok(all)
}

/// The API server has decided, in contrast to one that is away.
fn is_refusal(error: &anyhow::Error) -> bool {
    let words = format!("{error:#}");
    [
        "is invalid",
        "denied the request",
        "(Forbidden)",
        "(NotFound)",
    ]
    .iter()
    .any(|refusal| words.contains(refusal))
}

fn is_ready(snapshot: &Value, machine: usize) -> bool {
    snapshot["spec"]["vmName"] == name(machine).as_str()
        && snapshot["metadata"]["deletionTimestamp"].is_null()
        && condition(snapshot, "VirtualMachineSnapshotReady")["status"] == "True"
}

//! Where machines are placed: by the scheduler, with their own labels, affinity and requests, from
//! before their disks are made until their pods run.
//!
//! Invariant: a machine that is to be on counts on its node all the time, so that no node is chosen
//! for more machines than it can hold.
//! Failure: the step is named; machines, pods and tasks are shown.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, machine};
use e2e::{Cluster, Options, always, eventually};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
const GONE: Duration = Duration::from_secs(300);
const PLACED: &str = "VirtualMachineConditionPlacementReady";

#[tokio::test]
#[ignore = "needs root"]
async fn machines_keep_apart_and_hold_their_places_until_they_run() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    cluster.machine_basics()?;
    apart(&cluster).await.context("anti-affinity")?;
    room(&cluster).await.context("room for two of three")?;
    held(&cluster).await.context("held back")?;
    cluster.await_clean().await?;
    cluster.down()
}

/// Three machines of which no two may share a node, made together, on two nodes.
async fn apart(cluster: &Cluster) -> Result<()> {
    let names = ["apart-1", "apart-2", "apart-3"];
    let alone = json!({
        "runStrategy": "Always",
        "template": { "metadata": { "labels": { "app": "apart" } } },
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": { "app": "apart" } },
        }] } },
    });
    make(cluster, &names.map(|name| machine(name, &alone)))?;
    let left = two_run_apart(cluster, &names, "anti-affinity").await?;
    // The place of one that is deleted is for the one that waits.
    let gone = names.into_iter().find(|name| *name != left);
    cluster.delete(&format!("vm/{}", gone.context("another")?), GONE)?;
    cluster.await_word(left, "Running", UP).await?;
    remove_all(cluster)
}

/// Machines of which a node has room for one; the first was placed while it was to be off.
async fn room(cluster: &Cluster) -> Result<()> {
    let node = cluster.get_json(&["node", "node1"])?;
    let memory = node["status"]["allocatable"]["memory"].as_str();
    let memory = memory.and_then(|text| text.strip_suffix("Ki"));
    let memory: u64 = memory.context("not in Ki")?.parse()?;
    let mut large = class("large", "128Mi");
    large["spec"]["policies"]["resources"]["requests"]["memory"] =
        json!(format!("{}Ki", memory / 5 * 3));
    cluster.apply(&large)?;
    let of = |spec: &str| json!({ "className": "large", "powerState": spec });
    cluster.apply(&machine("late", &of("PoweredOff")))?;
    cluster.await_word("late", "Stopped", UP).await?;
    await_no_placeholder(cluster, "late").await?;
    let home = cluster.vm("late")?["status"]["nodeName"].clone();

    let names = ["room-1", "room-2", "room-3"];
    make(cluster, &names.map(|name| machine(name, &of("PoweredOn"))))?;
    let waits = two_run_apart(cluster, &names, "Insufficient memory").await?;
    let node = placeholder(cluster, waits)?.map(|pod| pod["spec"]["nodeName"].clone());
    ensure!(
        node == Some(Value::Null),
        "the placeholder of {waits} is bound to {node:?}, which is full"
    );
    cluster.delete(&format!("vm/{waits}"), GONE)?;

    cluster.patch_vm("late", &json!({ "powerState": "PoweredOn" }))?;
    let words = format!(
        "the root disk is on node {}",
        home.as_str().context("home")?
    );
    await_obstacle(cluster, "late", "Unschedulable", &words).await?;
    await_obstacle(cluster, "late", "Unschedulable", "Insufficient memory").await?;
    for name in names.into_iter().filter(|name| *name != waits) {
        if cluster.vm(name)?["status"]["nodeName"] == home {
            cluster.delete(&format!("vm/{name}"), GONE)?;
        }
    }
    cluster.await_word("late", "Running", UP).await?;
    remove_all(cluster)
}

/// A machine that a check holds back has its place, but is no machine yet.
async fn held(cluster: &Cluster) -> Result<()> {
    let check = "poweron.check.vmlet.dev/test";
    let mut held = machine("held", &json!({ "runStrategy": "Always" }));
    held["metadata"]["annotations"] = json!({ check: "" });
    cluster.apply(&held)?;
    let vm = cluster
        .await_vm("held", "its disk", UP, |vm| {
            let created = condition(vm, "VirtualMachineCreated")?;
            ensure!(created["status"] == "True", "{created}");
            Ok(vm.clone())
        })
        .await?;
    let uid = vm["metadata"]["uid"].as_str().context("UID")?;
    let placeholder = format!("held-placeholder-of-virtual-machine-{uid}");
    let pod = cluster.get_json(&["pod", &placeholder])?;
    ensure!(pod["status"]["phase"] == "Running", "{pod}");
    ensure!(pod["spec"]["nodeName"] == vm["status"]["nodeName"], "{pod}");
    let conditions = pod["status"]["conditions"].as_array().context("none")?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    ensure!(
        ready.is_some_and(|ready| ready["status"] == "False"),
        "{pod}"
    );
    cluster.kubectl(&["annotate", "vm", "held", &format!("{check}-")])?;
    cluster.await_word("held", "Running", UP).await?;
    await_no_placeholder(cluster, "held").await?;
    remove_all(cluster)
}

fn make(cluster: &Cluster, machines: &[Value]) -> Result<()> {
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": machines }))
}

/// Two of three run on different nodes; returns the third, whose condition states why it does not.
async fn two_run_apart<'a>(cluster: &Cluster, names: &[&'a str; 3], why: &str) -> Result<&'a str> {
    let left = eventually(UP, "two of three machines", || async {
        let mut nodes = BTreeSet::new();
        let mut left = None;
        for name in names {
            let vm = cluster.vm(name)?;
            let word = &vm["status"]["printableStatus"];
            let node = &vm["status"]["nodeName"];
            match word.as_str() {
                Some("Running") => {
                    let node = node.as_str().context("no node")?.to_owned();
                    always(nodes.insert(node), || format!("two on one node: {names:?}"))?;
                }
                Some("ErrorUnschedulable") => left = Some(*name),
                _ => {}
            }
        }
        ensure!(nodes.len() == 2, "on {nodes:?}");
        left.context("none says that it cannot be placed")
    })
    .await?;
    await_obstacle(cluster, left, "NotReady", why).await?;
    Ok(left)
}

async fn await_obstacle(cluster: &Cluster, name: &str, reason: &str, words: &str) -> Result<()> {
    cluster
        .await_vm(name, words, UP, |vm| {
            let found = condition(vm, PLACED)?;
            ensure!(
                found["status"] == "False" && found["reason"] == reason,
                "{found}"
            );
            let message = found["message"].as_str().unwrap_or_default();
            ensure!(message.contains(words), "{message}");
            Ok(())
        })
        .await
}

fn condition(vm: &Value, kind: &str) -> Result<Value> {
    let all = vm["status"]["conditions"].as_array();
    let mut all = all.into_iter().flatten();
    let found = all.find(|one| one["type"] == kind);
    found.cloned().with_context(|| format!("no {kind}"))
}

async fn await_no_placeholder(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(GONE, "no placeholder", || async {
        let found = placeholder(cluster, name)?;
        ensure!(found.is_none(), "{found:?}");
        Ok(())
    })
    .await
}

/// The pod that holds the place of a machine.
fn placeholder(cluster: &Cluster, name: &str) -> Result<Option<Value>> {
    let all = cluster.get_json(&["pods", "-l", "vmlet.dev/role=provision"])?;
    let mut all = all["items"].as_array().context("items")?.iter();
    let is_its = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == name;
    Ok(all.find(is_its).cloned())
}

fn remove_all(cluster: &Cluster) -> Result<()> {
    let seconds = format!("--timeout={}s", GONE.as_secs());
    cluster
        .kubectl(&["delete", "vm", "--all", &seconds])
        .map(drop)
}

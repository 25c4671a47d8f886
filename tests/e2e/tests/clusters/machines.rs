//! Machines follow their desired states: each run strategy and power state, with guests that power
//! off, crash or are deleted, and with a node that is drained.
//!
//! Invariant: the disk counts every boot, so that a recreated machine would show; the pod's UID
//! distinguishes one instance from the next.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

#![allow(clippy::print_stdout, reason = "the numbers are part of the result")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::causes::{History, Tally};
use e2e::machines::{class, machine};
use e2e::{Cluster, Guest, cases, eventually, program, ticks};
use serde_json::{Value, json};

use super::{class_edits, groups, guest_reboot, left_disk, node_probes, saved_devices};

const SEED: &str = "power-seed";
const KEY: &str = "ssh-ed25519 AAAA a";
const HUSH: &str = "hunter2";
const HOST: &str = "power-1";
const MAC: &str = "52:54:00:12:34:5a";
const GIB: u64 = 1 << 30;
const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
/// A start, which ends when the guest has reported its facts: four writes until the machine runs,
/// one that is left to circumstances, and two more, when the guest has an address and when its
/// agent answers.
const START: Budget = Budget {
    acts: &[("create pods", 1)],
    statuses: 6,
    others: 10,
};
/// A machine that has no disk yet, its first start included.
const MAKE: Budget = Budget {
    acts: &[
        ("create pods", 2),
        ("create virtualmachinetasks", 1),
        ("delete pods", 1),
        ("patch pods", 1),
        ("patch pods/status", 1),
        ("patch virtualmachines", 2),
    ],
    statuses: 10,
    others: 18,
};

/// What the controller may write.
struct Budget {
    /// What it does, exactly, beside the statuses.
    acts: &'static [(&'static str, usize)],
    /// Most statuses, as long as others write no more often than usual.
    statuses: usize,
    /// How often others write on a quick machine.
    others: usize,
}

/// One after the other, because some count the disks of the node, or what is written about the
/// only machine.
#[tokio::test]
#[ignore = "needs root"]
async fn machines_have_the_states_that_their_owners_desire() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cases!(
        &cluster,
        [
            power,
            resize,
            class_edits::adopted,
            drain,
            guest_reboot::a_guest_reboots_in_its_pod_or_is_reset_without_delaying_other_changes,
            always,
            rerun_on_failure,
            manual,
            once,
            groups::a_group_powers_its_tiers_in_order_and_off_in_reverse,
            node_probes::the_node_makes_the_probes_that_kubelet_does_not_make,
            left_disk::a_machine_goes_without_its_disk_where_no_agent_deletes_it,
        ]
    );
    cluster.await_clean().await?;
    cluster.down()
}

/// A guest that powers itself off, and an emulator that dies, are both answered by a new instance.
async fn always(cluster: &Cluster) -> Result<()> {
    let name = "always";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Always" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    cluster.await_boots(name, &[1], UP).await?;
    await_sign_of_life(cluster, name).await?;
    cluster.power_off_inside(name)?;
    let second = await_other_instance(cluster, name, &first).await?;
    cluster.await_boots(name, &[2], UP).await?;
    cluster.kill_emulator(name)?;
    await_other_instance(cluster, name, &second).await?;
    cluster.await_boots(name, &[3], UP).await?;
    delete(cluster, name).await
}

/// Without a probe a machine is ready once its guest has an address or an agent.
async fn await_sign_of_life(cluster: &Cluster, name: &str) -> Result<()> {
    cluster
        .await_vm(name, "Ready", UP, |vm| {
            let conditions = vm["status"]["conditions"].as_array();
            let conditions = conditions.context("no conditions")?;
            let is_true = |kind: &str| {
                let mut all = conditions.iter();
                all.any(|one| one["type"] == kind && one["status"] == "True")
            };
            ensure!(is_true("Ready"), "{conditions:?}");
            ensure!(vm["status"]["ready"] == true, "{}", vm["status"]);
            let has_agent = is_true("VirtualMachineGuestAgent");
            let address = &vm["status"]["network"]["primaryIP4"];
            ensure!(has_agent || address.is_string(), "{}", vm["status"]);
            Ok(())
        })
        .await
}

/// Powered off by its guest it stays off; killed, or deleted by another user, it restarts.
async fn rerun_on_failure(cluster: &Cluster) -> Result<()> {
    let name = "rerun";
    cluster.apply(&machine(name, &json!({ "runStrategy": "RerunOnFailure" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    cluster.await_boots(name, &[1], UP).await?;
    cluster.kill_emulator(name)?;
    let second = await_other_instance(cluster, name, &first).await?;
    cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
    await_other_instance(cluster, name, &second).await?;
    cluster.await_agent(name, UP).await?;
    cluster.power_off_inside(name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    // It would restart at once if it restarted at all: a request for it is what starts it.
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    delete(cluster, name).await
}

/// Nothing happens by itself.
async fn manual(cluster: &Cluster) -> Result<()> {
    let name = "manual";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Manual" })))?;
    cluster.await_word(name, "Stopped", UP).await?;
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    cluster.await_agent(name, UP).await?;
    vmletctl(cluster, &["restart", name])?;
    let second = await_other_instance(cluster, name, &first).await?;
    ensure!(first != second, "a restart is another instance");
    cluster.await_agent(name, UP).await?;
    cluster.power_off_inside(name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_agent(name, UP).await?;
    // A guest that ignores ACPI has minutes, unless a user forces the stop.
    Guest::in_pod(cluster.stack(), name)?.become_unresponsive()?;
    vmletctl(cluster, &["stop", name])?;
    cluster.await_word(name, "Stopping", DOWN).await?;
    vmletctl(cluster, &["stop", name, "--force"])?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    let end = &cluster.vm(name)?["status"]["instance"];
    ensure!(end["exitCode"] == 137, "it was not killed: {end}");
    delete(cluster, name).await
}

/// One run, whatever becomes of its pod; without a network, which its commands do not need.
async fn once(cluster: &Cluster) -> Result<()> {
    let name = "once";
    let spec = json!({ "runStrategy": "Once", "network": { "disabled": true } });
    cluster.apply(&machine(name, &spec))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_agent(name, UP).await?;
    let nics = Guest::in_pod(cluster.stack(), name)?.run(&["ls", "/sys/class/net"])?;
    ensure!(nics == "lo", "it has {nics:?}");
    let vm = cluster.vm(name)?;
    no_word_of_a_network(&vm)?;
    ensure!(vm["status"]["network"].is_null(), "{}", vm["status"]);
    cluster.power_off_inside(name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    let refused = vmletctl(cluster, &["start", name]);
    ensure!(refused.is_err(), "a second run was not refused");
    delete(cluster, name).await
}

/// Off and on again; asleep and awake again.
async fn power(cluster: &Cluster) -> Result<()> {
    let name = "power";
    secret(cluster, "first")?;
    let history = History::begin(cluster)?;
    let made = history.mark()?;
    let spec = json!({
        "powerState": "PoweredOn",
        "network": { "hostName": HOST, "interfaces": [{ "name": "eth0", "macAddr": MAC }] },
        "bootstrap": { "cloudInit": { "userData": { "name": SEED }, "sshKeys": [KEY] } },
    });
    cluster.apply(&machine(name, &spec))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster
        .await_vm(name, "an address", UP, |vm| {
            let address = &vm["status"]["network"]["primaryIP4"];
            ensure!(address.is_string(), "{address}");
            Ok(())
        })
        .await?;
    cluster.await_boots(name, &[1], UP).await?;
    cluster.await_agent(name, UP).await?;
    check_writes(&history, "made and started", made, &MAKE).await?;
    let identity = seed(cluster, name, "first")?;
    no_word_of_a_network(&cluster.vm(name)?)?;
    is_named_and_reachable(cluster, name).await?;
    Guest::in_pod(cluster.stack(), name)?.run(&["sh", "-c", "echo kept >/boot/note && sync"])?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    let started = history.mark()?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_boots(name, &[2], UP).await?;
    cluster.await_agent(name, UP).await?;
    check_writes(&history, "started", started, &START).await?;
    drop(history);
    let note = Guest::in_pod(cluster.stack(), name)?.run(&["cat", "/boot/note"])?;
    ensure!(note == "kept", "the disk says {note:?}");
    let again = seed(cluster, name, "first")?;
    ensure!(
        again == identity,
        "{identity}, then {again}: another first boot"
    );
    secret(cluster, "second")?;

    Guest::in_pod(cluster.stack(), name)?.run(&["sh", "-c", "echo 7 >/run/memory"])?;
    let before = last_tick(cluster, name).await?;
    cluster.patch_vm(name, &json!({ "powerState": "Suspended" }))?;
    cluster.await_word(name, "Suspended", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    saved_devices::edit(cluster, name)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    let after = eventually(UP, "a tick after the sleep", || async {
        let log = cluster.kubectl(&["logs", name])?;
        ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
        ticks(&log).pop().context("no tick")
    })
    .await?;
    ensure!(after.count > before.count, "{before:?}, then {after:?}");
    cluster.await_agent(name, UP).await?;
    is_named_and_reachable(cluster, name).await?;
    let memory = Guest::in_pod(cluster.stack(), name)?.run(&["cat", "/run/memory"])?;
    ensure!(memory == "7", "its memory says {memory:?}");
    // A guest that continues does so with the disks that it knows.
    Guest::in_pod(cluster.stack(), name)?.run(&["sh", "-c", "echo 3 >/proc/sys/vm/drop_caches"])?;
    seed(cluster, name, "first")?;
    for program in ["vmlet", "vmlet-agent", "vmlet-controller"] {
        let log = cluster.stack().log(program);
        ensure!(!log.contains(HUSH), "{program} tells the secret");
    }
    saved_devices::take_effect(cluster, name).await?;
    delete(cluster, name).await?;
    saved_devices::forget(cluster)
}

/// The network settings of a machine are applied, and no condition contradicts them.
fn no_word_of_a_network(vm: &Value) -> Result<()> {
    if let Ok(unsupported) = condition(vm, "UnsupportedFeatures") {
        let message = unsupported["message"].as_str().unwrap_or_default();
        let is_named = ["bootstrap", "network"].iter().any(|w| message.contains(w));
        ensure!(!is_named, "{message}");
    }
    Ok(())
}

/// The guest has the name and the hardware address that its owner chose, and its neighbour has
/// learnt the latter.
async fn is_named_and_reachable(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(UP, "the guest's name and answer", || async {
        let guest = Guest::in_pod(cluster.stack(), name)?;
        let reported = guest.run(&["sh", "-c", "hostname; cat /sys/class/net/eth0/address"])?;
        ensure!(reported == format!("{HOST}\n{MAC}"), "it is {reported:?}");
        let gateway = "ip route show default | sed 's/.*via //; s/ .*//'";
        let gateway = guest.run(&["sh", "-c", gateway])?;
        guest
            .run(&["ping", "-c", "1", "-W", "2", &gateway])
            .map(drop)
    })
    .await
}

/// Checks what the controller has written about the only machine since a mark.
async fn check_writes(
    history: &History<'_>,
    what: &str,
    mark: usize,
    budget: &Budget,
) -> Result<()> {
    let acts = budget.acts.iter();
    let acts = acts
        .map(|(act, count)| ((*act).to_owned(), *count))
        .collect();
    // The log and the watch may be behind what the machine reports.
    let writes = eventually(DOWN, what, || async {
        history.check_versions()?;
        let writes = history.since(mark)?;
        let tally = Tally::from_writes(&writes);
        ensure!(tally.acts == acts, "{tally:?} instead of {acts:?}");
        Ok(writes)
    })
    .await?;
    let tally = Tally::from_writes(&writes);
    let statuses = tally.statuses;
    let others = tally.others;
    println!("{what}: {statuses} statuses by the controller, {others} writes by others");
    writes.iter().for_each(|write| println!("  {write}"));
    // What others say on top of the usual may be worth a status each.
    let most = budget.statuses + others.saturating_sub(budget.others);
    ensure!(
        (1..=most).contains(&statuses),
        "{statuses} statuses: {writes:#?}"
    );
    Ok(())
}

/// The Secret that the machine's user data come from.
fn secret(cluster: &Cluster, word: &str) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": SEED },
        "stringData": { "user-data": format!("#cloud-config\n# {HUSH} {word}\n") },
    }))
}

/// Checks what the guest finds on its seed disk, and returns the identity that it has for
/// cloud-init.
fn seed(cluster: &Cluster, name: &str, word: &str) -> Result<String> {
    let guest = Guest::in_pod(cluster.stack(), name)?;
    let user_data = guest.run(&["cat", "/run/seed/user-data"])?;
    ensure!(
        user_data.trim() == format!("#cloud-config\n# {HUSH} {word}"),
        "{user_data}"
    );
    let meta_data: Value = serde_json::from_str(&guest.run(&["cat", "/run/seed/meta-data"])?)?;
    ensure!(meta_data["public-keys"] == json!([KEY]), "{meta_data}");
    ensure!(meta_data["local-hostname"] == HOST, "{meta_data}");
    let identity = meta_data["instance-id"].as_str().context("no identity")?;
    Ok(identity.to_owned())
}

/// While it runs another class waits; it comes with the next start, on the disk as it was, which
/// may be larger by then.
async fn resize(cluster: &Cluster) -> Result<()> {
    let name = "resize";
    cluster.apply(&class("big", "160Mi"))?;
    cluster.apply(&machine(name, &json!({ "running": true })))?;
    cluster.await_word(name, "Running", UP).await?;
    let uid = cluster.pod_uid(name)?;
    let memory = memory_inside(cluster, name).await?;
    Guest::in_pod(cluster.stack(), name)?.run(&["sh", "-c", "echo kept >/boot/note && sync"])?;
    let disk = disk_inside(cluster, name).await?;
    ensure!(disk < GIB, "{disk} bytes at first");
    let larger = json!({ "className": "big", "bootDiskCapacity": "1Gi" });
    cluster.patch_vm(name, &larger)?;
    cluster
        .await_vm(name, "the change waits", DOWN, |vm| {
            let reason = condition(vm, "VirtualMachineClassConfigurationSynced")?["reason"].clone();
            ensure!(reason == "ClassNameChanged", "{reason}");
            Ok(())
        })
        .await?;
    ensure!(cluster.pod_uid(name)? == uid, "it was restarted");
    cluster.patch_vm(name, &json!({ "running": false }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.patch_vm(name, &json!({ "running": true }))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_boots(name, &[2], UP).await?;
    let larger = memory_inside(cluster, name).await?;
    ensure!(larger > memory, "{memory} kB, then {larger} kB");
    let note = Guest::in_pod(cluster.stack(), name)?.run(&["cat", "/boot/note"])?;
    ensure!(note == "kept", "the disk says {note:?}");
    let disk = disk_inside(cluster, name).await?;
    ensure!(disk == GIB, "{disk} bytes");
    delete(cluster, name).await
}

/// An evicted machine returns as soon as its node takes pods again.
async fn drain(cluster: &Cluster) -> Result<()> {
    let name = "drained";
    cluster.apply(&machine(name, &json!({ "runStrategy": "RerunOnFailure" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    cluster.await_boots(name, &[1], UP).await?;
    cluster.kubectl(&[
        "drain",
        "node1",
        "--pod-selector",
        &format!("app={name}"),
        "--force",
        "--timeout=180s",
    ])?;
    cluster.await_word(name, "ErrorUnschedulable", DOWN).await?;
    cluster.kubectl(&["uncordon", "node1"])?;
    await_other_instance(cluster, name, &first).await?;
    cluster.await_boots(name, &[2], UP).await?;
    delete(cluster, name).await
}

async fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.delete(&format!("vm/{name}"), DOWN)?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    let disks = cluster.stack().dir().join("state/disks");
    let left: Vec<_> = std::fs::read_dir(&disks)
        .with_context(|| disks.display().to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    ensure!(left.is_empty(), "disks without an owner: {left:?}");
    Ok(())
}

/// Waits until a pod with another UID is the running machine.
async fn await_other_instance(cluster: &Cluster, name: &str, old: &str) -> Result<String> {
    let uid = cluster
        .await_vm(name, "another instance", UP, |vm| {
            let uid = vm["status"]["instance"]["uid"].as_str().unwrap_or_default();
            ensure!(!uid.is_empty() && uid != old, "still {uid:?}");
            ensure!(vm["status"]["printableStatus"] == "Running", "not running");
            Ok(uid.to_owned())
        })
        .await?;
    Ok(uid)
}

async fn last_tick(cluster: &Cluster, name: &str) -> Result<e2e::Tick> {
    eventually(UP, "a tick", || async {
        let log = cluster.kubectl(&["logs", name])?;
        ticks(&log).pop().context("no tick")
    })
    .await
}

/// Size of the root disk as the guest sees it, in bytes.
async fn disk_inside(cluster: &Cluster, name: &str) -> Result<u64> {
    let script = "read disk </run/rootdisk; cat /sys/class/block/${disk#/dev/}/size";
    let sectors = cluster.run_inside(name, &["sh", "-c", script], UP).await?;
    Ok(sectors.trim().parse::<u64>()? * 512)
}

async fn memory_inside(cluster: &Cluster, name: &str) -> Result<u64> {
    cluster.await_agent(name, UP).await?;
    let line = Guest::in_pod(cluster.stack(), name)?.run(&["grep", "MemTotal", "/proc/meminfo"])?;
    let number = line.split_whitespace().nth(1).context("MemTotal")?;
    Ok(number.parse()?)
}

fn vmletctl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.stack().command("vmletctl");
    let output = program::output(command.args(arguments))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(
        output.status.success(),
        "vmletctl {arguments:?}: {}",
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

pub(super) fn condition<'a>(vm: &'a Value, kind: &str) -> Result<&'a Value> {
    vm["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["type"] == kind))
        .with_context(|| format!("no condition {kind}"))
}

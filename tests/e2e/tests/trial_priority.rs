//! Which machine the real controller serves first, against a real API server and without any node.
//!
//! `VMLET_E2E_MACHINES=10000` makes the herd larger than the usual 1,000.
//!
//! Invariant: order is read from the controller's own log of what it queued and what it dispatched; nothing depends
//! on how quick the machine is.
//! Failure: the part of the log that shows the wrong order, or the end of the controller's log.

#![allow(clippy::print_stdout, reason = "the numbers are part of the result")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crds::VirtualMachine;
use crds::conditions::{CREATED, DISK_PROMOTION_SYNCED};
use crds::names::PAUSED;
use e2e::{Control, Controller, Line, eventually, machines};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(900);
/// Requests at a time while the herd is made.
const AT_ONCE: usize = 16;
/// How many passes a storm is old when a user comes.
const EARLY: usize = 20;
const WORKERS: usize = 2;
const PORT: u16 = 19630;
/// A machine that runs and has no address.
const LONE: &str = "alone";

/// P1 to P5 of the acceptance scenarios.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn what_a_user_waits_for_goes_before_a_restart_storm_and_before_routine_work() -> Result<()> {
    let count = match std::env::var("VMLET_E2E_MACHINES") {
        Ok(count) => count.parse().context("VMLET_E2E_MACHINES")?,
        Err(_) => 1_000,
    };
    let control = Control::up().await?;
    control.cluster().apply(&machines::class("tiny", "64Mi"))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    make_herd(&vms, count).await?;
    let workers = WORKERS.to_string();
    let config = control.stack().dir().join("resync.toml");
    std::fs::write(&config, "[runner]\nresync_secs = 30\n")?;
    let config = config.to_string_lossy();
    let flags = ["--workers", &workers, "--config", &config];
    let controller = control.controller("controller", PORT, &flags).await?;
    let story = async {
        restart_storm(&controller, &vms, count).await?;
        routine(&control, &controller, &vms, count).await?;
        address(&controller, &vms).await
    };
    story.await.with_context(|| controller.tail())?;
    let status = controller.stop().await?;
    ensure!(status.success(), "{status}");
    control.down()
}

/// P5: everything that is there waits its turn; what a user does meanwhile does not.
async fn restart_storm(
    controller: &Controller,
    vms: &Api<VirtualMachine>,
    count: usize,
) -> Result<()> {
    let begun = Instant::now();
    eventually(PATIENCE, "the storm", || async {
        let seen = dispatched(&controller.lines()?).count();
        ensure!(seen >= EARLY, "{seen} dispatches");
        Ok(())
    })
    .await?;
    create(vms, "in-the-storm", &json!({ "powerState": "PoweredOff" })).await?;
    // The herd is served in the order of the list, and this is its last one.
    let last = name(count - 1);
    power_on(vms, &last).await?;
    at_once(controller, "in-the-storm", 100).await?;
    at_once(controller, &last, 99).await?;
    let lines = controller.lines()?;
    let user = lines
        .iter()
        .position(|l| l.outcome == "dispatched" && l.key == key(&last));
    let before = dispatched(&lines[..user.unwrap_or_default()]).count();
    ensure!(before < count, "the storm was over after {before} passes");
    let initial = lines.iter().filter(|line| line.outcome == "queued");
    let others: Vec<_> = initial.take(count).filter(|l| l.priority != -1).collect();
    ensure!(others.is_empty(), "not at -1: {others:?}");
    eventually(PATIENCE, "all are served", || async {
        let lines = controller.lines()?;
        let keys: BTreeSet<_> = dispatched(&lines).map(|line| &line.key).collect();
        ensure!(keys.len() > count, "{} of {count}", keys.len());
        Ok(())
    })
    .await?;
    println!("user's changes: dispatched after {before} of {count} machines");
    report("restart storm", controller, begun.elapsed()).await
}

/// P1 and P2: an edit that concerns everybody, and a user who makes a machine and powers one on.
async fn routine(
    control: &Control,
    controller: &Controller,
    vms: &Api<VirtualMachine>,
    count: usize,
) -> Result<()> {
    let begun = Instant::now();
    // What the storm left to do is routine, too.
    control.cluster().apply(&machines::class("tiny", "96Mi"))?;
    create(vms, "in-routine", &json!({ "powerState": "PoweredOff" })).await?;
    let waiting = name(count / 2);
    power_on(vms, &waiting).await?;
    at_once(controller, "in-routine", 100).await?;
    at_once(controller, &waiting, 99).await?;
    let lines = controller.lines()?;
    let woken = lines
        .iter()
        .filter(|l| l.outcome == "queued" && l.priority == -2);
    let woken: BTreeSet<_> = woken.map(|line| &line.key).collect();
    ensure!(woken.len() >= count / 2, "only {} at -2", woken.len());
    report("edit of the class", controller, begun.elapsed()).await
}

/// P3 and P4: a machine that runs waits for an address of either family, unless a resync is all that happened.
async fn address(controller: &Controller, vms: &Api<VirtualMachine>) -> Result<()> {
    let mut vm = machines::machine(LONE, &json!({ "powerState": "PoweredOn" }));
    // The controller leaves it as the test says that it is.
    vm["metadata"]["annotations"] = json!({ PAUSED: "" });
    vms.create(&PostParams::default(), &serde_json::from_value(vm)?)
        .await?;
    set_status(vms, LONE, &status("PoweredOn", &json!({}))).await?;
    queued(controller, LONE, 97).await?;
    let seen = controller.lines()?.len();
    eventually(PATIENCE, "a resync", || async {
        let lines = controller.lines()?.split_off(seen);
        let mut own = lines.iter().filter(|line| line.key == key(LONE));
        ensure!(own.any(|line| line.outcome == "queued" && line.priority == -2));
        Ok(())
    })
    .await?;
    for (address, priority) in [
        (json!({ "primaryIP6": "fd00::9" }), -2),
        (json!({ "primaryIP6": null }), 97),
        (json!({ "primaryIP4": "10.0.0.9" }), -2),
    ] {
        set_status(vms, LONE, &json!({ "network": address })).await?;
        queued(controller, LONE, priority).await?;
    }
    Ok(())
}

/// Machines that exist and are off, as a controller that is started anew finds them.
async fn make_herd(vms: &Api<VirtualMachine>, count: usize) -> Result<()> {
    let begun = Instant::now();
    let mut making = JoinSet::new();
    for lane in 0..AT_ONCE {
        let vms = vms.clone();
        making.spawn(async move {
            for index in (lane..count).step_by(AT_ONCE) {
                let name = name(index);
                create(&vms, &name, &json!({ "powerState": "PoweredOff" })).await?;
                set_status(&vms, &name, &status("PoweredOff", &json!({}))).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(made) = making.join_next().await {
        made??;
    }
    println!("{count} machines: made in {:.1?}", begun.elapsed());
    Ok(())
}

async fn create(vms: &Api<VirtualMachine>, name: &str, wish: &Value) -> Result<()> {
    let vm = serde_json::from_value(machines::machine(name, wish))?;
    let made = vms.create(&PostParams::default(), &vm).await;
    made.map(drop).with_context(|| format!("create {name}"))
}

async fn power_on(vms: &Api<VirtualMachine>, name: &str) -> Result<()> {
    let wish = Patch::Merge(json!({ "spec": { "powerState": "PoweredOn" } }));
    vms.patch(name, &PatchParams::default(), &wish).await?;
    Ok(())
}

fn status(power: &str, network: &Value) -> Value {
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "True", "reason": "True", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    json!({
        "powerState": power,
        "network": network,
        "conditions": [condition(CREATED), condition(DISK_PROMOTION_SYNCED)],
    })
}

async fn set_status(vms: &Api<VirtualMachine>, name: &str, status: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    let set = vms
        .patch_status(name, &PatchParams::default(), &patch)
        .await;
    set.map(drop).with_context(|| format!("status of {name}"))
}

fn name(index: usize) -> String {
    format!("herd-{index:06}")
}

fn key(name: &str) -> String {
    format!("default/{name}")
}

fn dispatched(lines: &[Line]) -> impl Iterator<Item = &Line> {
    lines.iter().filter(|line| line.outcome == "dispatched")
}

/// Waits until the machine was queued with this priority, and nothing else was queued for it since.
async fn queued(controller: &Controller, name: &str, priority: i64) -> Result<()> {
    eventually(PATIENCE, "the priority", || async {
        let lines = controller.lines()?;
        let mut own = lines
            .iter()
            .filter(|l| l.key == key(name) && l.outcome == "queued");
        let last = own.next_back().context("never queued")?;
        ensure!(last.priority == priority, "{last:?}, not {priority}");
        Ok(())
    })
    .await
}

/// Waits until the machine was dispatched with this priority, and checks that no more passes of lower priority began
/// in between than were handed out already.
async fn at_once(controller: &Controller, name: &str, priority: i64) -> Result<()> {
    let is = |line: &Line, outcome: &str| {
        line.key == key(name) && line.outcome == outcome && line.priority == priority
    };
    let between = eventually(PATIENCE, "a dispatch", || async {
        let mut lines = controller.lines()?;
        let queued = lines.iter().position(|line| is(line, "queued"));
        let mut lines = lines.split_off(queued.context("not queued")?);
        let at = lines.iter().position(|line| is(line, "dispatched"));
        lines.truncate(at.context("not dispatched")?);
        Ok(lines)
    })
    .await
    .with_context(|| format!("{name} at {priority}"))?;
    let before = dispatched(&between).filter(|line| line.priority < priority);
    let before = before.count();
    if before > WORKERS {
        bail!("{before} passes between: {between:#?}");
    }
    Ok(())
}

async fn report(what: &str, controller: &Controller, took: Duration) -> Result<()> {
    let page = controller.page("/metrics").await?;
    let sum = |name: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(name));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    let (seconds, resident) = controller.usage()?;
    let passes = sum("vmlet_workqueue_dispatches_total{");
    let failed = sum("vmlet_controller_reconcile_errors_total{");
    let requests = sum("vmlet_api_requests_total{");
    println!(
        "{what}: {took:.1?}; since its start the controller made {passes} passes ({failed} failed) with \
         {requests} requests in {seconds} s of CPU, {resident} KiB resident"
    );
    Ok(())
}

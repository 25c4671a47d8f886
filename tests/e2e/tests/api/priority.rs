//! The order in which the real controller serves machines, against a real API server without nodes.
//!
//! `VMLET_E2E_MACHINES=10000` makes the herd larger than usual. The table at the end states what
//! the controller spent.
//!
//! Invariant: order is read from the controller's own log of what it queued and what it dispatched;
//! nothing depends on how quick the machine is.
//! Failure: the part of the log that shows the wrong order, or the end of the controller's log.

#![allow(clippy::print_stdout, reason = "the numbers are part of the result")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crds::VirtualMachine;
use crds::conditions::{CREATED, DISK_PROMOTION_SYNCED};
use crds::names::PAUSED;
use e2e::{Control, Controller, Line, Spent, eventually, machines};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(900);
/// Number of machines, unless the environment sets it.
const USUAL: usize = 150;
/// Machines that users make in each part; as many others are powered on.
const CHANGES: usize = 5;
/// Writes for the two machines of such a pair, less than any herd would make.
const MOST_WRITES: f64 = 12.0;
/// Nothing more is to be expected when nothing has happened for so long.
const QUIET: Duration = Duration::from_secs(3);
/// Requests at a time while the herd is made.
const AT_ONCE: usize = 16;
/// How many passes a storm is old when a user comes.
const EARLY: usize = 20;
const WORKERS: usize = 2;
const NODE: &str = "n1";
/// A machine that runs and has no address.
const LONE: &str = "alone";

/// P1 to P5 of the acceptance scenarios.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn what_a_user_waits_for_goes_before_a_restart_storm_and_before_routine_work() -> Result<()> {
    let count = match std::env::var("VMLET_E2E_MACHINES") {
        Ok(count) => count.parse().context("VMLET_E2E_MACHINES")?,
        Err(_) => USUAL,
    };
    let control = Control::up().await?;
    control.cluster().apply(&machines::class("tiny", "64Mi"))?;
    control
        .cluster()
        .apply(&machines::image("registry.example/guest:1"))?;
    make_node(&control).await?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    make_herd(&vms, count).await?;
    let config = control.stack().dir().join("resync.toml");
    // Longer than it takes to serve all.
    let resync = 30 + count / 100;
    std::fs::write(&config, format!("[runner]\nresync = \"{resync}s\"\n"))?;
    let workers = WORKERS.to_string();
    // There is no other leader, and the test suspends the controller for as long as it needs.
    let flags = ["--lease-enabled", "false", "--runner-workers", &workers];
    let mut table = vec![Spent::heading()];
    let controller = control.controller("controller", &flags).await?;
    let story = async {
        table.push(storm(&controller, &vms, count, 0).await?.row());
        table.push(routine(&control, &controller, &vms, count).await?.row());
        anyhow::Ok(())
    };
    story.await.with_context(|| controller.tail())?;
    let status = controller.stop().await?;
    ensure!(status.success(), "{status}");
    let config = config.to_string_lossy();
    let flags = [&flags[..], &["--config", &config]].concat();
    let before = control.stack().writes()?.len();
    let one = vms.get(&name(0)).await?.status;
    let controller = control.controller("again", &flags).await?;
    let story = async {
        let spent = storm(&controller, &vms, count, 1).await?;
        table.push(spent.row());
        let writes = spent.requests(&["PATCH", "POST", "DELETE"]);
        let most = MOST_WRITES * CHANGES as f64;
        if writes > most {
            let all = control.stack().writes_of_ours("default", before)?;
            let some: Vec<_> = all.iter().take(40).map(ToString::to_string).collect();
            let now = vms.get(&name(0)).await?.status;
            bail!(
                "{writes} writes for settled machines: {some:#?}\n{}\nis now\n{}",
                json!(one),
                json!(now)
            );
        }
        address(&controller, &vms).await
    };
    story.await.with_context(|| controller.tail())?;
    let status = controller.stop().await?;
    ensure!(status.success(), "{status}");
    println!("{count} machines, {WORKERS} workers\n{}", table.join("\n"));
    control.down()
}

/// P5: everything that is there waits its turn; what a user does meanwhile does not.
async fn storm(
    controller: &Controller,
    vms: &Api<VirtualMachine>,
    count: usize,
    restart: usize,
) -> Result<Spent> {
    let what = ["first-start", "restart"][restart];
    let start = controller.mark().await?;
    eventually(TIMEOUT, "the storm", || async {
        let seen = controller.with_lines(|lines| dispatched(lines).count())?;
        ensure!(seen >= EARLY, "{seen} dispatches");
        Ok(())
    })
    .await?;
    // Machines with nothing to do are served faster than a user can ask. While there is something
    // to do, users come in the middle of the storm, however fast either is.
    let is_slow = restart == 0;
    if is_slow {
        controller.signal(Signal::SIGSTOP)?;
    }
    // The herd is served in the order of the list, and these are its last ones.
    let (changes, early) =
        users(controller, vms, what, |n| count - 1 - restart * CHANGES - n).await?;
    ensure!(
        !is_slow || early < count,
        "the storm was over after {early} passes"
    );
    controller.with_lines(|lines| {
        let initial = lines.iter().filter(|line| line.outcome == "queued");
        let others: Vec<_> = initial.take(count).filter(|l| l.priority != -1).collect();
        ensure!(others.is_empty(), "not at -1: {others:?}");
        Ok(())
    })??;
    eventually(TIMEOUT, "all are served", || async {
        let served = controller.with_lines(|lines| {
            let keys: BTreeSet<_> = dispatched(lines).map(|line| &line.key).collect();
            keys.len()
        })?;
        ensure!(served >= count + CHANGES, "{served} of {count}");
        Ok(())
    })
    .await?;
    println!("{what}: the first change was dispatched after {early} of {count} machines");
    settled(controller).await?;
    controller.spent(what, &start, changes).await
}

/// P1 and P2: an edit that affects all machines, and users who make machines and power some on.
async fn routine(
    control: &Control,
    controller: &Controller,
    vms: &Api<VirtualMachine>,
    count: usize,
) -> Result<Spent> {
    let start = controller.mark().await?;
    let seen = controller.with_lines(<[Line]>::len)?;
    control.cluster().apply(&machines::class("tiny", "96Mi"))?;
    let (changes, _) = users(controller, vms, "routine", |n| count / 2 + n).await?;
    settled(controller).await?;
    let woken = controller.with_lines(|lines| {
        let routine = |l: &&Line| l.outcome == "queued" && l.priority == -2;
        let keys: BTreeSet<_> = lines[seen..]
            .iter()
            .filter(routine)
            .map(|l| &l.key)
            .collect();
        keys.len()
    })?;
    ensure!(woken >= count / 2, "only {woken} at -2");
    controller.spent("edit of the class", &start, changes).await
}

/// Users make machines and power others of the herd on, one after the other. How long each change
/// waited, and how many passes there were before the first was served.
async fn users(
    controller: &Controller,
    vms: &Api<VirtualMachine>,
    what: &str,
    which: impl Fn(usize) -> usize,
) -> Result<(Vec<Duration>, usize)> {
    let mut changes = Vec::new();
    for n in 0..CHANGES {
        let new = format!("{what}-{n}");
        create(vms, &new, &json!({ "powerState": "PoweredOff" })).await?;
        let old = name(which(n));
        power_on(vms, &old).await?;
        changes.extend([(new, 100), (old, 99)]);
    }
    // It receives them now if it was stopped.
    controller.signal(Signal::SIGCONT)?;
    let mut waits = Vec::new();
    let mut first = None;
    for (name, priority) in &changes {
        let (wait, before) = at_once(controller, name, *priority).await?;
        waits.push(wait);
        first.get_or_insert(before);
    }
    Ok((waits, first.unwrap_or_default()))
}

/// Waits until nothing is queued or in work, and nothing more comes for a while.
async fn settled(controller: &Controller) -> Result<()> {
    let seen = std::sync::Mutex::new((0, Instant::now()));
    eventually(TIMEOUT, "the controller is done", || async {
        let lines = controller.with_lines(<[Line]>::len)?;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.0 != lines {
            *seen = (lines, Instant::now());
        }
        ensure!(seen.1.elapsed() > QUIET, "{lines} lines, and more come");
        Ok(())
    })
    .await
}

/// P3 and P4: a machine that runs waits for an address of either family, unless a resync is all
/// that happened.
async fn address(controller: &Controller, vms: &Api<VirtualMachine>) -> Result<()> {
    let mut vm = machines::machine(LONE, &json!({ "powerState": "PoweredOn" }));
    // The controller leaves it in the state that the test sets.
    vm["metadata"]["annotations"] = json!({ PAUSED: "" });
    vms.create(&PostParams::default(), &serde_json::from_value(vm)?)
        .await?;
    let seen = controller.with_lines(<[Line]>::len)?;
    set_status(vms, LONE, &status("PoweredOn")).await?;
    queued(controller, seen, 97).await?;
    let seen = controller.with_lines(<[Line]>::len)?;
    eventually(TIMEOUT, "a resync", || async {
        let came = controller.with_lines(|lines| {
            let mut own = lines[seen..].iter().filter(|line| line.key == key(LONE));
            own.any(|line| line.outcome == "queued" && line.priority == -2)
        })?;
        ensure!(came);
        Ok(())
    })
    .await?;
    for (address, priority) in [
        (json!({ "primaryIP6": "fd00::9" }), -2),
        (json!({ "primaryIP6": null }), 97),
        (json!({ "primaryIP4": "10.0.0.9" }), -2),
    ] {
        let seen = controller.with_lines(<[Line]>::len)?;
        set_status(vms, LONE, &json!({ "network": address })).await?;
        queued(controller, seen, priority).await?;
    }
    // Without a network no machine waits for an address.
    let seen = controller.with_lines(<[Line]>::len)?;
    set_status(vms, LONE, &json!({ "network": { "primaryIP4": null } })).await?;
    queued(controller, seen, 97).await?;
    let seen = controller.with_lines(<[Line]>::len)?;
    let off = Patch::Merge(json!({ "spec": { "network": { "disabled": true } } }));
    vms.patch(LONE, &PatchParams::default(), &off).await?;
    queued(controller, seen, -2).await
}

/// Machines that exist and are off, as a controller that is started again finds them.
async fn make_herd(vms: &Api<VirtualMachine>, count: usize) -> Result<()> {
    let begun = Instant::now();
    let mut making = JoinSet::new();
    for lane in 0..AT_ONCE {
        let vms = vms.clone();
        making.spawn(async move {
            for index in (lane..count).step_by(AT_ONCE) {
                let name = name(index);
                create(&vms, &name, &json!({ "powerState": "PoweredOff" })).await?;
                set_status(&vms, &name, &status("PoweredOff")).await?;
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

/// A node that is ready and does nothing: what is started there stays so.
async fn make_node(control: &Control) -> Result<()> {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    let apply = ["apply", "-f", &runtime.to_string_lossy()];
    control.cluster().kubectl(&apply)?;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    control.cluster().apply(&node)?;
    let ready = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "Test", "message": "",
    }]}});
    let nodes = Api::<Node>::all(control.client()?);
    let set = nodes
        .patch_status(NODE, &PatchParams::default(), &Patch::Merge(ready))
        .await;
    set.map(drop).context("status of the node")
}

async fn create(vms: &Api<VirtualMachine>, name: &str, spec: &Value) -> Result<()> {
    let vm = serde_json::from_value(machines::machine(name, spec))?;
    let made = vms.create(&PostParams::default(), &vm).await;
    made.map(drop).with_context(|| format!("create {name}"))
}

async fn power_on(vms: &Api<VirtualMachine>, name: &str) -> Result<()> {
    let spec = Patch::Merge(json!({ "spec": { "powerState": "PoweredOn" } }));
    vms.patch(name, &PatchParams::default(), &spec).await?;
    Ok(())
}

/// What the controller reports of a machine in this power state, without any network.
fn status(power: &str) -> Value {
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "True", "reason": "True", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    json!({
        "powerState": power,
        "nodeName": NODE,
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

/// Waits until the lone machine was queued with this priority after the first `seen` lines, and
/// with no other one since. A resync may come at any moment, and counts only when it is what is
/// waited for.
async fn queued(controller: &Controller, seen: usize, priority: i64) -> Result<()> {
    const RESYNC: i64 = -2;
    eventually(TIMEOUT, "the priority", || async {
        let mut since = controller.with_lines(|lines| lines[seen..].to_vec())?;
        since.retain(|line| line.key == key(LONE) && line.outcome == "queued");
        let mut changes = since.iter().filter(|line| line.priority != RESYNC);
        let is = match (priority, changes.next_back()) {
            (RESYNC, None) => !since.is_empty(),
            (_, last) => last.is_some_and(|line| line.priority == priority),
        };
        ensure!(is, "{since:?}, not {priority}");
        Ok(())
    })
    .await
}

/// Waits until the machine was dispatched with this priority, and checks that no more passes of
/// lower priority began in between than were handed out already: a change waits for one worker at
/// most. How long that was, and how many passes there were before it.
async fn at_once(controller: &Controller, name: &str, priority: i64) -> Result<(Duration, usize)> {
    let is = |line: &Line, outcome: &str| {
        line.key == key(name) && line.outcome == outcome && line.priority == priority
    };
    let (between, before) = eventually(TIMEOUT, "a dispatch", || async {
        controller.with_lines(|lines| {
            let queued = lines.iter().position(|line| is(line, "queued"));
            let (before, after) = lines.split_at(queued.context("not queued")?);
            let at = after.iter().position(|line| is(line, "dispatched"));
            let between = &after[..=at.context("not dispatched")?];
            Ok((between.to_vec(), dispatched(before).count()))
        })?
    })
    .await
    .with_context(|| format!("{name} at {priority}"))?;
    let lower = dispatched(&between).filter(|line| line.priority < priority);
    let lower = lower.count();
    ensure!(lower <= WORKERS, "{lower} passes between: {between:#?}");
    let ends = [between.first(), between.last()].map(|line| line.and_then(|line| line.at));
    let [Some(queued), Some(dispatched)] = ends else {
        bail!("lines without a time: {between:?}");
    };
    let wait = dispatched.duration_since(queued).unsigned_abs();
    Ok((wait, before))
}

//! kill -9 at every crash point of the node API.
//!
//! Invariant: each point belongs to one of the tests, which fails where nothing reaches the point. A task that was
//! taken ends as it would have, a guest that was saved continues where it was, and in the end nothing is left.
//! Failure: the test names the crash point, and what was refused, lost or left.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{PodOptions, Stack, await_text, eventually, provision, ticks, uid};
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};

const TIMEOUT: Duration = Duration::from_secs(180);
/// How long a daemon whose request failed may take to be dead.
const DEATH: Duration = Duration::from_secs(30);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const CLONE: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b2a";
/// The numbers of the snapshots; tasks have lower ones.
const SNAPSHOT: u32 = 1_000_000;
const OTHER: u32 = 1_000_001;
const NEWEST: u32 = 1_000_002;
/// With memory.
const REMEMBERED: u32 = 1_000_003;

/// What only lives have in which something of it is killed.
const COPIES: [&str; 2] = ["node.snapshot.", "node.clone."];
const SLEEP: [&str; 4] = [
    "node.save.",
    "node.resume.",
    "node.memory.",
    "node.snapshot.",
];
const FREEZE: [&str; 1] = ["node.freeze."];
const ONLINE: [&str; 3] = [
    "node.promote.pulls",
    "node.promote.copies",
    "node.promote.pulled",
];

/// Whether a crash point is one of those.
fn is_of(point: &str, beginnings: &[&str]) -> bool {
    beginnings
        .iter()
        .any(|beginning| point.starts_with(beginning))
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_task_that_was_killed_anywhere_ends_well() -> Result<()> {
    let mut points = crash_points()?;
    points.retain(|point| !is_of(point, &COPIES));
    kill_at_each(&points).await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_snapshot_or_a_clone_that_was_killed_anywhere_ends_well() -> Result<()> {
    let mut points = crash_points()?;
    points.retain(|point| is_of(point, &COPIES));
    kill_at_each(&points).await
}

async fn kill_at_each(points: &BTreeSet<String>) -> Result<()> {
    ensure!(
        points.len() > 15,
        "the sources have crash points: {points:?}"
    );
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let image = stack.image()?.to_owned();
    cri.pull(&image).await?;
    for (number, point) in (1u32..).zip(points) {
        stack.arm(point)?;
        if point == "node.snapshot.doubted" {
            // Only a snapshot that was cut short before its switch is in doubt.
            stack.arm("node.snapshot.layer")?;
        }
        live(&stack, &image, point, number * 100)
            .await
            .with_context(|| format!("killed at {point}"))?;
        eventually(TIMEOUT, "a death", || async {
            ensure!(!stack.is_armed(point), "nothing reached {point}");
            Ok(())
        })
        .await?;
        revive(&stack).await?;
        stack
            .await_clean()
            .await
            .with_context(|| format!("killed at {point}"))?;
    }
    stack.down()
}

/// Disk, pod, end, and what the crash point is of: snapshots and a clone, suspend and resume; each step repeated after
/// the daemon is back.
async fn live(stack: &Stack, image: &str, point: &str, first: u32) -> Result<()> {
    let is_copied = is_of(point, &COPIES);
    let sleeps = is_of(point, &SLEEP);
    // What a guest has in memory shows only once it counts.
    let counts = sleeps && !is_copied;
    let name = |part: &str| format!("{part}-{}", point.replace('.', "-"));
    let end = |n: u32, kind: Kind| {
        let uid = uid(first + n);
        step(stack, async move || {
            let node = stack.node().await?;
            let ended = node.end(&uid, VM, kind.clone(), TIMEOUT);
            tokio::select! {
                ended = ended => ended,
                dead = death(stack, TIMEOUT) => dead.and_then(|()| bail!("the daemon died")),
            }
        })
    };
    let task_of = |vm: &'static str, n: u32, kind: Kind| {
        let uid = uid(first + n);
        step(stack, async move || {
            let node = stack.node().await?;
            let done = node.done(&uid, vm, kind.clone(), TIMEOUT);
            tokio::select! {
                done = done => done,
                dead = death(stack, TIMEOUT) => dead.and_then(|()| bail!("the daemon died")),
            }
        })
    };
    let task = |n: u32, kind: Kind| task_of(VM, n, kind);
    let forget = |n: u32| {
        let uid = uid(first + n);
        step(stack, async move || {
            Ok(stack.node().await?.forget(&uid).await?)
        })
    };
    task(1, provision(image)).await.context("provision")?;
    step(stack, async || {
        let request = v1::CancelTaskRequest {
            uid: uid(first + 1),
        };
        Ok(stack.node().await?.node.cancel_task(request).await?)
    })
    .await
    .context("cancel")?;

    let before = machine(stack, &name("a"), false);
    start(stack, &before, image).await.context("first start")?;
    let mut last = 0;
    if counts {
        revive(stack).await?;
        await_text(&before.log(0), "VMLET-TICK 2 ", TIMEOUT).await?;
    }
    if is_copied {
        task(5, snapshot(SNAPSHOT, 0)).await.context("snapshot")?;
        task_of(CLONE, 10, cloned()).await.context("clone")?;
        let deleted = Kind::DeleteDisk(v1::DeleteDisk {});
        task_of(CLONE, 11, deleted).await.context("delete clone")?;
        // Whether the guest freezes depends on how far it has booted: without an agent it is not requested to.
        let is_of_freeze = point == "node.snapshot.freezes";
        eventually(TIMEOUT, "a quiesced snapshot", || async {
            end(6, snapshot(OTHER, 10)).await?;
            if is_of_freeze && stack.is_armed(point) {
                forget(6).await?;
                bail!("the agent of the guest does not answer yet");
            }
            Ok(())
        })
        .await?;
        // The guest's own layer is merged into the one of the snapshot.
        task(12, snapshot(NEWEST, 0)).await.context("newest")?;
        let deleted = Kind::DeleteSnapshot(v1::DeleteSnapshot { uid: uid(NEWEST) });
        task(13, deleted).await.context("deletion while it runs")?;
        let remembered = task(15, remembered(REMEMBERED));
        remembered.await.context("snapshot with memory")?;
    }
    if is_of(point, &FREEZE) {
        // This guest has no file system that it could freeze: its refusal is an end, too.
        end(19, frozen()).await.context("freeze")?;
    }
    if sleeps {
        let saved = eventually(TIMEOUT, "a save", || async {
            let saved = end(2, Kind::Save(v1::Save {})).await?;
            if saved.transient {
                forget(2).await?;
                bail!("{saved:?}");
            }
            Ok(saved)
        })
        .await?;
        ensure!(saved.state() == State::Success, "{saved:?}");
        if counts {
            let log = std::fs::read_to_string(before.log(0))?;
            last = ticks(&log).last().context("it counted")?.count;
        }
    }
    remove(stack, &before.name).await.context("first removal")?;

    if sleeps {
        let after = machine(stack, &name("b"), true);
        start(stack, &after, image).await.context("second start")?;
        if counts {
            let tick = eventually(TIMEOUT, "a tick", || async {
                // It may have ended after it had answered.
                revive(stack).await?;
                let log = std::fs::read_to_string(after.log(0))?;
                ticks(&log).first().copied().context("no tick yet")
            })
            .await?;
            ensure!(tick.count > last, "it went back: {last}, {tick:?}");
            let log = std::fs::read_to_string(after.log(0))?;
            ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
        }
        remove(stack, &after.name).await.context("second removal")?;
    }
    if is_copied {
        let with_memory = task(16, reverted(REMEMBERED, true));
        with_memory.await.context("revert with memory")?;
        let discarded = Kind::Restore(v1::Restore { discard: true });
        task(17, discarded).await.context("discard")?;
        task(7, reverted(SNAPSHOT, false)).await.context("revert")?;
        for (n, snapshot) in [(8, SNAPSHOT), (9, OTHER), (18, REMEMBERED)] {
            let deleted = Kind::DeleteSnapshot(v1::DeleteSnapshot { uid: uid(snapshot) });
            task(n, deleted).await.context("deletion of a snapshot")?;
        }
    }
    if is_of(point, &ONLINE) {
        let third = machine(stack, &name("c"), false);
        start(stack, &third, image).await.context("third start")?;
        let promoted = eventually(TIMEOUT, "a promotion of a machine that runs", || async {
            let promoted = end(14, Kind::Promote(v1::Promote { online: true })).await?;
            if promoted.transient {
                forget(14).await?;
                bail!("{promoted:?}");
            }
            Ok(promoted)
        })
        .await?;
        ensure!(promoted.state() == State::Success, "{promoted:?}");
        remove(stack, &third.name).await.context("third removal")?;
    }
    task(4, Kind::Promote(v1::Promote { online: false }))
        .await
        .context("promotion")?;
    task(3, Kind::DeleteDisk(v1::DeleteDisk {}))
        .await
        .context("delete")?;
    for n in 1..=19 {
        forget(n).await?;
    }
    step(stack, async || {
        let node = stack.node().await?;
        ensure!(node.disks().await?.is_empty() && node.tasks().await?.is_empty());
        Ok(())
    })
    .await
}

fn snapshot(number: u32, quiesce_seconds: u32) -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: uid(number),
        quiesce_seconds,
        memory: false,
    })
}

/// A snapshot of a machine that runs, with its memory.
fn remembered(number: u32) -> Kind {
    Kind::Snapshot(v1::Snapshot {
        uid: uid(number),
        quiesce_seconds: 0,
        memory: true,
    })
}

/// A freeze that ends by itself.
fn frozen() -> Kind {
    Kind::Freeze(v1::Freeze {
        uid: uid(OTHER),
        seconds: 10,
    })
}

fn reverted(number: u32, memory: bool) -> Kind {
    Kind::Revert(v1::Revert {
        uid: uid(number),
        memory,
    })
}

fn cloned() -> Kind {
    Kind::CloneDisk(v1::CloneDisk {
        source_vm_uid: VM.to_owned(),
        snapshot_uid: uid(SNAPSHOT),
        size_bytes: 0,
        vm_name: "default/clone".to_owned(),
    })
}

fn machine(stack: &Stack, name: &str, restore: bool) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let mut set = |key: &str, value: &str| pod.annotations.insert(key.into(), value.into());
    set("vmlet.dev/vm-disk", VM);
    set("vmlet.dev/restore", &restore.to_string());
    pod
}

async fn start(stack: &Stack, pod: &PodOptions, image: &str) -> Result<()> {
    let sandbox = step(stack, async || {
        Ok(stack.cri().await?.run(pod.sandbox()).await?)
    })
    .await?;
    let container = step(stack, async || {
        let cri = stack.cri().await?;
        Ok(Box::pin(cri.create(&sandbox, pod.container(image, 0), pod.sandbox())).await?)
    })
    .await?;
    step(stack, async || {
        Ok(stack.cri().await?.start(&container).await?)
    })
    .await
}

async fn remove(stack: &Stack, pod: &str) -> Result<()> {
    step(stack, async || {
        let cri = stack.cri().await?;
        for sandbox in cri.sandboxes().await? {
            if sandbox.metadata.is_some_and(|m| m.name == pod) {
                cri.stop_pod(&sandbox.id).await?;
                cri.remove_pod(&sandbox.id).await?;
            }
        }
        Ok(())
    })
    .await
}

/// Repeats an attempt for as long as it fails because the daemon ended, which is started again.
async fn step<T>(stack: &Stack, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    loop {
        let outcome = attempt().await;
        let dead = match &outcome {
            Ok(_) => !stack.is_alive("vmlet"),
            Err(_) => death(stack, DEATH).await.is_ok(),
        };
        if dead {
            revive(stack).await?;
        }
        match outcome {
            Err(_) if dead => {}
            outcome => return outcome,
        }
    }
}

async fn death(stack: &Stack, within: Duration) -> Result<()> {
    eventually(within, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await
}

/// Starts a daemon that is dead, again if it ends at a crash point before it is ready.
async fn revive(stack: &Stack) -> Result<()> {
    while !stack.is_alive("vmlet") {
        stack.restart("vmlet")?;
        let ready = async { stack.cri().await?.await_ready().await };
        let end = death(stack, TIMEOUT);
        tokio::select! {
            ready = ready => match ready {
                Err(_) if !stack.is_alive("vmlet") => {}
                ready => return ready,
            },
            end = end => end?,
        }
    }
    Ok(())
}

/// The names of all crash points of the node API in the sources.
fn crash_points() -> Result<BTreeSet<String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut points = BTreeSet::new();
    for folder in ["node", "disk", "vm"] {
        collect(&source.join(folder), &mut points)?;
    }
    Ok(points)
}

fn collect(folder: &Path, points: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, points)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let calls = text.split("faultpoint::point(\"node.").skip(1);
            let names = calls.filter_map(|call| Some(call.split_once('"')?.0));
            points.extend(names.map(|name| format!("node.{name}")));
        }
    }
    Ok(())
}

//! Chaos: machines whose wishes change at random, while programs die at random; at the end every machine
//! must be as its object says, and no disk may ever have had two machines.
//!
//! Invariant: the same seed makes the same choices in the same order.
//! Failure: names the machine or the finding; seed and counts are printed first, so that it can be repeated.

mod machines;
mod witness;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::sys::signal::Signal;

use self::machines::{Machines, Wish};
use self::witness::Witness;
use crate::Cluster;

/// Who dies. Those of the control plane that are ours to test against, and all of ours but the tapmanager,
/// whose death `cluster_restarts` covers.
const PROGRAMS: [&str; 5] = [
    "vmlet-controller",
    "vmlet-agent",
    "vmlet",
    "vmlet-criproxy",
    "kube-apiserver",
];
/// After the last blow all machines become as wished within this time; most boot in a few seconds, but
/// kubelet and the controller may stand in a back-off.
const SETTLED: Duration = Duration::from_secs(420);

/// What to do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How long programs die and wishes change.
    pub duration: Duration,
    /// Of the choices.
    pub seed: u64,
    /// How many machines.
    pub machines: usize,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Choices made.
    pub rounds: u32,
    /// Deaths by program.
    pub deaths: BTreeMap<&'static str, u32>,
    /// Wishes changed, by wish.
    pub wishes: BTreeMap<&'static str, u32>,
    /// Boots that the machines' disks counted.
    pub boots: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = |counts: &BTreeMap<&str, u32>| {
            let words: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            words.join(", ")
        };
        writeln!(f, "rounds: {}", self.rounds)?;
        writeln!(f, "killed: {}", counts(&self.deaths))?;
        writeln!(f, "wishes: {}", counts(&self.wishes))?;
        write!(f, "boots: {}", self.boots)
    }
}

/// Does it, on a cluster that has a controller and an agent.
pub async fn run(cluster: &Cluster, plan: Plan) -> Result<Report> {
    let mut rng = Rng::with_seed(plan.seed);
    let mut report = Report::default();
    let mut machines = Machines::create(cluster, plan.machines).await?;
    let witness = Witness::new(cluster.stack());
    let end = Instant::now() + plan.duration;
    while Instant::now() < end {
        report.rounds += 1;
        let program = PROGRAMS[rng.usize(..PROGRAMS.len())];
        // Wishes first: what the blow interrupts is their fulfilment.
        for _ in 0..rng.usize(1..=2) {
            let name = machines.pick(&mut rng);
            let wish = Wish::any(&mut rng);
            machines.wish(cluster, &name, wish).await?;
            *report.wishes.entry(wish.word()).or_default() += 1;
        }
        pause(&mut rng, 0..3000).await;
        cluster
            .stack()
            .kill(program, Signal::SIGKILL)
            .await
            .with_context(|| format!("kill {program}"))?;
        *report.deaths.entry(program).or_default() += 1;
        pause(&mut rng, 0..4000).await;
        cluster
            .stack()
            .restart(program)
            .with_context(|| format!("restart {program}"))?;
        witness.look()?;
        pause(&mut rng, 0..6000).await;
    }
    machines.await_wishes(cluster, SETTLED).await?;
    report.boots = witness.verdict()?;
    machines.delete(cluster, SETTLED).await?;
    let tasks = cluster.kubectl(&["get", "virtualmachinetasks", "-A", "-o", "name"])?;
    let unfinished: Vec<&str> = tasks.lines().collect();
    ensure!(
        machines::ended(cluster).await?,
        "tasks that never ended: {unfinished:?}"
    );
    let disks = cluster.stack().dir().join("state/disks");
    let left: Vec<_> = std::fs::read_dir(&disks)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    ensure!(left.is_empty(), "disks that nobody owns: {left:?}");
    cluster.await_clean().await?;
    Ok(report)
}

/// Chaos is in the choice of the moment; nothing is awaited here on purpose.
async fn pause(rng: &mut Rng, millis: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rng.u64(millis))).await;
}

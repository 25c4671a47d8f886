//! Chaos: the desired states of machines change at random, while programs are killed at random; at
//! the end every machine must be as its object specifies, no disk may ever have had two machines,
//! and nothing may be left.
//!
//! Invariant: the same seed makes the same choices in the same order; each is printed before it is
//! made.
//! Failure: names the machine or the finding; what programs and objects said is kept in
//! `target/chaos/SEED`.

mod evidence;
mod machines;
mod programs;
mod report;
mod script;
mod verdict;
mod witness;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::machines::Machines;
pub use self::report::Report;
use self::script::{Round, Script};
use self::witness::Witness;
use crate::{Cluster, eventually};

/// Making and starting all of them takes a while on a small host.
const RUNNING: Duration = Duration::from_secs(900);
/// After the last kill all machines reach their desired state within this time; mostly that is
/// seconds, but kubelet and the controller may stand in a back-off of five minutes.
const SETTLED: Duration = Duration::from_secs(600);
/// The daemon forgets a task once its object no longer exists.
const FORGOTTEN: Duration = Duration::from_secs(180);

/// What to do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How long programs are killed and desired states change.
    pub duration: Duration,
    /// Of the choices.
    pub seed: u64,
    /// How many machines.
    pub machines: usize,
}

/// Does it, on a cluster that has a controller and an agent.
///
/// # Errors
///
/// The first finding, and where the evidence is.
pub async fn run(cluster: &Cluster, plan: Plan) -> Result<Report> {
    match play(cluster, plan).await {
        Ok(report) => Ok(report),
        Err(error) => {
            let kept = evidence::keep(cluster, plan.seed);
            Err(error.context(format!("seed {}; {kept}", plan.seed)))
        }
    }
}

async fn play(cluster: &Cluster, plan: Plan) -> Result<Report> {
    let mut script = Script::new(plan.seed, plan.machines);
    let mut report = Report::new(plan);
    let mut machines = Machines::create(cluster, plan.machines)?;
    let witness = Witness::new(cluster.stack());
    verdict::settle(cluster, &mut machines, RUNNING)
        .await
        .context("before the first blow")?;
    // Each disk has counted a boot by then, however slow the host is.
    verdict::guests_live(cluster, &machines)
        .await
        .context("before the first blow")?;
    report.ended("all running");
    let begin = Instant::now();
    while begin.elapsed() < plan.duration && !witness.has_found() {
        let round = script.round();
        report.announce(begin.elapsed(), &round);
        report.lost_leases += play_round(cluster, &mut machines, &round).await?;
    }
    if witness.has_found() {
        witness.verdict(&machines.creations())?;
        bail!("the witness left early");
    }
    report.ended("rounds");
    verdict::settle(cluster, &mut machines, SETTLED).await?;
    report.ended("desired states reached");
    verdict::guests_live(cluster, &machines).await?;
    report.testimony = witness.verdict(&machines.creations())?;
    let boots = report.testimony.boots;
    ensure!(
        boots >= plan.machines,
        "the witness saw {boots} boots of {} machines",
        plan.machines
    );
    report.ended("guests live");
    let keep = || evidence::keep(cluster, plan.seed);
    machines.delete(cluster, SETTLED, keep).await?;
    report.ended("deleted");
    nothing_is_left(cluster).await?;
    report.ended("nothing left");
    Ok(report)
}

/// Changes first: the kill interrupts their effects.
async fn play_round(cluster: &Cluster, machines: &mut Machines, round: &Round) -> Result<u32> {
    machines.write_pending(cluster).await?;
    for change in &round.changes {
        machines.change(cluster, *change).await?;
    }
    // Chaos is in the choice of the moment; nothing is awaited in these pauses on purpose.
    tokio::time::sleep(round.before).await;
    let lost = programs::blow(cluster.stack(), round).await?;
    tokio::time::sleep(round.after).await;
    Ok(lost)
}

/// Disks, pods, domains, namespaces, links, leases, tasks in the daemon.
async fn nothing_is_left(cluster: &Cluster) -> Result<()> {
    eventually(FORGOTTEN, "a daemon without tasks", || async {
        let tasks = cluster.stack().node().await?.tasks().await?;
        ensure!(tasks.is_empty(), "tasks without an object: {tasks:?}");
        Ok(())
    })
    .await?;
    cluster.await_clean().await
}

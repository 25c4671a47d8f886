//! Chaos: the desired states of machines change at random, snapshots are taken and reverted to, backups are made and
//! restored, disks become independent of their images, a group and a replica set change, images are evicted, disks
//! and images are transferred, while programs are killed at random; at the end every machine must be as its object
//! specifies, no disk may ever have had two machines or a state that it must not have, and nothing may be left.
//!
//! Invariant: the same seed makes the same choices in the same order; each is printed before it is
//! made.
//! Failure: names every machine and finding; what programs and objects said is kept in
//! `target/chaos/SEED`.

mod backups;
mod boots;
mod clones;
mod desired;
mod differences;
mod evidence;
mod machines;
mod nodes;
mod objects;
mod operation;
mod programs;
mod report;
mod run;
mod script;
mod sets;
mod snapshots;
mod transfers;
mod verdict;
mod witness;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use self::report::Report;
use self::run::Run;
use self::script::{Round, Script};
use self::witness::Witness;
use crate::{Cluster, eventually};

/// A run of this length makes some of everything, whatever the host: what it did not do is a finding.
const LONG: Duration = Duration::from_secs(15 * 60);
/// The fewest machines: a group and a replica set have four of them.
pub const FEWEST: usize = 6;
/// What the deadlines are chosen for; with more machines they are longer.
const USUAL: usize = 8;
/// Making and starting all of them takes a while on a small host.
const RUNNING: Duration = Duration::from_secs(900);
/// After the last kill all machines reach their desired state within this time; mostly that is
/// seconds, but kubelet and the controller may stand in a back-off of five minutes.
const SETTLED: Duration = Duration::from_secs(600);
/// When the disk of a machine that runs becomes independent of its image, while programs are killed.
const ONLINE: &str = "[machines]\nonline_promotion_after = \"15s\"\n";
/// The daemon forgets a task once its object no longer exists.
const FORGOTTEN: Duration = Duration::from_secs(180);

/// What to do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How long programs are killed and desired states change.
    pub duration: Duration,
    /// Of the choices.
    pub seed: u64,
    /// How many machines, at least [`FEWEST`].
    pub machines: usize,
    /// How many nodes the cluster has.
    pub nodes: u8,
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
    ensure!(plan.machines >= FEWEST, "chaos needs {FEWEST} machines");
    let single = run::single(plan.machines);
    let mut script = Script::new(plan.seed, single, cluster.nodes().count());
    let mut report = Report::new(plan);
    let mut run = Run::create(cluster, plan.machines)?;
    let witness = Witness::new(cluster);
    verdict::settle(cluster, &mut run, plan.patience(RUNNING))
        .await
        .context("before the first blow")?;
    // Each disk has counted a boot by then, however slow the host is.
    verdict::guests_live(cluster, &run)
        .await
        .context("before the first blow")?;
    report.ended("all running");
    promote_online(cluster, &mut run)?;
    let begin = Instant::now();
    while begin.elapsed() < plan.duration && !witness.has_found() {
        let round = script.round();
        report.announce(begin.elapsed(), &round);
        play_round(cluster, &mut run, &round, &mut report).await?;
    }
    if witness.has_found() {
        witness.verdict(&run.histories())?;
        bail!("the witness left early");
    }
    report.ended("rounds");
    judge(cluster, &mut run, witness, &mut report).await?;
    let boots = report.testimony.boots;
    ensure!(
        boots >= plan.machines - sets::REPLICAS,
        "the witness saw {boots} boots of {} machines",
        plan.machines
    );
    let missing = report.missing();
    ensure!(
        plan.duration < LONG || missing.is_empty(),
        "not once in all this time: {missing:?}"
    );
    let keep = || evidence::keep(cluster, plan.seed);
    run.delete(cluster, plan.patience(SETTLED), keep).await?;
    report.ended("deleted");
    nothing_is_left(cluster).await?;
    report.ended("nothing left");
    Ok(report)
}

impl Plan {
    /// A deadline that was chosen for [`USUAL`] machines, for all of them.
    fn patience(&self, within: Duration) -> Duration {
        let machines = u32::try_from(self.machines.max(USUAL)).unwrap_or(u32::MAX);
        let usual = u32::try_from(USUAL).unwrap_or(u32::MAX);
        within.saturating_mul(machines) / usual
    }
}

/// From now on disks of machines that run become independent of their images.
fn promote_online(cluster: &Cluster, run: &mut Run) -> Result<()> {
    let stack = cluster.stack();
    std::fs::write(stack.dir().join("controller.toml"), ONLINE)?;
    stack.restart("vmlet-controller")?;
    run.promotes_online = true;
    Ok(())
}

/// Changes and the operation first: the kill interrupts their effects.
async fn play_round(
    cluster: &Cluster,
    run: &mut Run,
    round: &Round,
    report: &mut Report,
) -> Result<()> {
    run.machines.write_pending(cluster).await?;
    for change in &round.changes {
        run.machines.change(cluster, *change).await?;
    }
    for operation in run.due(round.operation) {
        let outcome = run.play(cluster, operation).await?;
        report.played(operation, &outcome);
    }
    // Chaos is in the choice of the moment; nothing is awaited in these pauses on purpose.
    tokio::time::sleep(round.before).await;
    report.lost_leases += programs::blow(cluster, round).await?;
    tokio::time::sleep(round.after).await;
    Ok(())
}

/// Collects every finding, so that one does not hide another.
async fn judge(
    cluster: &Cluster,
    run: &mut Run,
    witness: Witness,
    report: &mut Report,
) -> Result<()> {
    run.backups.suspend(cluster).await?;
    let mut findings = run.transfers.finish().await;
    report.transfers = run.transfers.complete();
    report.ended("transfers");
    let mut lives = verdict::settle(cluster, run, report.patience(SETTLED)).await;
    report.ended("desired states reached");
    if lives.is_ok() {
        lives = verdict::guests_live(cluster, run).await;
        report.results = verdict::results(cluster, run).await?;
    }
    findings.extend(lives.err().map(|error| format!("{error:#}")));
    match witness.verdict(&run.histories()) {
        Ok(testimony) => report.testimony = testimony,
        Err(error) => findings.push(format!("{error:#}")),
    }
    report.ended("guests live");
    ensure!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings.join("\n")
    );
    Ok(())
}

/// Disks, pods, domains, namespaces, links, leases, tasks in the daemons, caches of the image, files of backups.
async fn nothing_is_left(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        eventually(FORGOTTEN, "a daemon without tasks", || async {
            let tasks = node.node().await?.tasks().await?;
            ensure!(tasks.is_empty(), "tasks without an object: {tasks:?}");
            Ok(())
        })
        .await?;
    }
    let left = files_of_backups(cluster)?;
    ensure!(left.is_empty(), "left in the target of backups: {left:?}");
    cluster.kubectl(&["delete", "vmimage", "guest"])?;
    eventually(FORGOTTEN, "no cache without its image", || async {
        let caches = cluster.kubectl(&["get", "vmicache", "-A", "-o", "name"])?;
        ensure!(caches.is_empty(), "{caches}");
        Ok(())
    })
    .await?;
    cluster.await_clean().await
}

/// What the target of backups has, below the directories of machines.
fn files_of_backups(cluster: &Cluster) -> Result<Vec<PathBuf>> {
    let target = cluster.stack().dir().join("backups");
    let mut left = Vec::new();
    for machine in std::fs::read_dir(&target)? {
        let machine = machine?.path();
        if !machine.is_dir() {
            left.push(machine);
            continue;
        }
        for entry in std::fs::read_dir(machine)? {
            left.push(entry?.path());
        }
    }
    Ok(left)
}

//! Awaits the desired states of a run, and that its guests live.
//!
//! Invariant: looking changes nothing.
//! Failure: each [difference](super::differences) in a line, with the object's own status.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use nodeapi::v1::Disk;
use serde_json::Value;

use super::backups::SCHEDULED;
use super::desired::Promotion;
use super::differences::differences;
use super::nodes::Nodes;
use super::objects::{Objects, text};
use super::programs;
use super::run::Run;
use crate::Cluster;
use crate::guest::ticks;
use crate::machines::condition;
use crate::wait::scaled;

/// Between two looks: each costs some processes.
const EVERY: Duration = Duration::from_secs(2);
/// Of what is printed while it is awaited, in characters.
const BEGINNING: usize = 120;
/// The maximum wait: back-offs end after up to five minutes.
const LONG_BACK_OFF: Duration = Duration::from_secs(20);
/// A guest that runs prints a line every second; one that boots among nine others on a busy host,
/// in a while.
const SIGN_OF_LIFE: Duration = Duration::from_secs(600);

/// Waits until every machine is in its desired state. Machines with a long back-off get another
/// desired state, which ends it: how long one waits is nothing that chaos could prove.
pub(super) async fn settle(cluster: &Cluster, run: &mut Run, within: Duration) -> Result<()> {
    let within = scaled(within)?;
    let begun = Instant::now();
    let mut last = Vec::new();
    let mut pause = tokio::time::interval(EVERY);
    loop {
        pause.tick().await;
        programs::supervise(cluster)?;
        run.machines.write_pending(cluster).await?;
        // Also an API server that has just returned may not answer at once.
        let wrong = match observe(cluster, run).await {
            Ok(seen) if seen.wrong.is_empty() => return Ok(()),
            Ok(seen) => {
                for name in &seen.waiting {
                    run.machines.end_back_off(cluster, name).await?;
                }
                seen.wrong
            }
            Err(error) => vec![format!("{error:#}")],
        };
        let now: Vec<String> = wrong.iter().map(|one| beginning(one)).collect();
        if now != last {
            let at = begun.elapsed().as_secs();
            eprintln!("chaos: {at:>4} s, not yet:\n    {}", now.join("\n    "));
            last = now;
        }
        let wrong = wrong.join("\n");
        ensure!(
            begun.elapsed() < within,
            "not in the desired state within {within:?}:\n{wrong}"
        );
    }
}

/// Waits until every running guest has written a new line; every machine must have stayed in its
/// desired state.
pub(super) async fn guests_live(cluster: &Cluster, run: &Run) -> Result<()> {
    let deadline = Instant::now() + scaled(SIGN_OF_LIFE)?;
    let mut pause = tokio::time::interval(EVERY);
    let before = last_ticks(cluster)?;
    loop {
        pause.tick().await;
        let now = last_ticks(cluster)?;
        let silent: Vec<_> = before.iter().filter(|tick| now.contains(*tick)).collect();
        if silent.is_empty() {
            break;
        }
        let is_over = Instant::now() > deadline;
        ensure!(!is_over, "guests that say nothing: {silent:?}");
    }
    let wrong = observe(cluster, run).await?.wrong.join("\n");
    ensure!(
        wrong.is_empty(),
        "did not stay in the desired state:\n{wrong}"
    );
    Ok(())
}

/// What a look found.
struct Look {
    /// Everything that is not as it should be.
    wrong: Vec<String>,
    /// Machines with a long back-off.
    waiting: Vec<String>,
}

async fn observe(cluster: &Cluster, run: &Run) -> Result<Look> {
    let seen = Objects::read(cluster)?;
    let nodes = Nodes::read(cluster).await?;
    let waiting = seen.starts_after(Timestamp::now() + LONG_BACK_OFF);
    Ok(Look {
        wrong: differences(&run.expected(), &seen, &nodes),
        waiting: waiting.map(ToOwned::to_owned).collect(),
    })
}

/// What became of operations whose end no client awaits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Results {
    /// Disks of machines that run and have become independent of their images.
    pub(super) promoted_online: usize,
    /// Complete backups, and those of them that a schedule has made.
    pub(super) backups: usize,
    pub(super) scheduled: usize,
}

/// What there is in the end.
pub(super) async fn results(cluster: &Cluster, run: &Run) -> Result<Results> {
    let seen = Objects::read(cluster)?;
    let nodes = Nodes::read(cluster).await?;
    let expected = run.expected();
    let is_promoted = |disk: &&Disk| {
        let machines = seen.machines.iter();
        let mut of_disk = machines.filter(|(_, vm)| text(&vm["metadata"]["uid"]) == disk.vm_uid);
        of_disk.any(|(name, vm)| {
            let desired = expected.machines.get(name);
            let is_online = desired.is_some_and(|desired| desired.promotion == Promotion::Online);
            let synced = condition(vm, "VirtualMachineDiskPromotionSynced");
            is_online && synced["reason"] == "Promoted" && !disk.linked
        })
    };
    let complete =
        |backup: &&Value| condition(backup, "VirtualMachineBackupCompleted")["status"] == "True";
    let scheduled = |backup: &&Value| !backup["metadata"]["labels"][SCHEDULED].is_null();
    let backups = seen.backups.iter().filter(complete);
    Ok(Results {
        promoted_online: nodes.listed.iter().filter(is_promoted).count(),
        scheduled: backups.clone().filter(scheduled).count(),
        backups: backups.count(),
    })
}

/// The last tick in the log of each machine that runs, by the UID of its pod.
fn last_ticks(cluster: &Cluster) -> Result<Vec<(String, Option<u64>)>> {
    let objects = Objects::read(cluster)?;
    let running = objects
        .machines
        .iter()
        .filter(|(_, vm)| text(&vm["status"]["printableStatus"]) == "Running");
    let logs: Vec<_> = cluster
        .nodes()
        .map(|node| node.dir().join("logs/pods"))
        .collect();
    Ok(running
        .map(|(name, vm)| {
            let uid = text(&vm["status"]["instance"]["uid"]);
            let pod = format!("default_{name}_{uid}/vm");
            // On the node of the pod.
            let newest = logs.iter().find_map(|logs| newest_log(&logs.join(&pod)));
            let reported = newest.map(fs::read).and_then(Result::ok);
            let reported = reported.unwrap_or_default();
            let reported = ticks(&String::from_utf8_lossy(&reported));
            (uid.to_owned(), reported.last().map(|tick| tick.count))
        })
        .collect())
}

/// Enough of a difference to distinguish it from others.
fn beginning(difference: &str) -> String {
    difference.chars().take(BEGINNING).collect()
}

/// That of the last container: kubelet makes another one when the first could not be started.
fn newest_log(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = files.filter_map(|file| {
        let name = file.file_name();
        name.to_str()?.strip_suffix(".log")?.parse::<u32>().ok()
    });
    numbers.max().map(|last| folder.join(format!("{last}.log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_the_last_container_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest_log(folder.path()), None);
        for name in ["0.log", "10.log", "9.log", "9.log.20261122-213041"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(
            newest_log(folder.path()),
            Some(folder.path().join("10.log"))
        );
    }
}

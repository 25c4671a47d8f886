//! Checks that objects, node and guests match the desired states of the machines.
//!
//! Invariant: looking changes nothing.
//! Failure: each difference in a line, with the object's own status.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;

use super::machines::Machines;
use super::programs;
use super::script::{DesiredState, Mode};
use crate::Cluster;
use crate::guest::ticks;
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
pub(super) async fn settle(
    cluster: &Cluster,
    machines: &mut Machines,
    within: Duration,
) -> Result<()> {
    let (begun, within) = (Instant::now(), scaled(within)?);
    let mut last = Vec::new();
    let mut pause = tokio::time::interval(EVERY);
    loop {
        pause.tick().await;
        programs::supervise(cluster.stack())?;
        machines.write_pending(cluster).await?;
        // Also an API server that has just returned may not answer at once.
        let wrong = match observe(cluster, machines) {
            Ok((wrong, _)) if wrong.is_empty() => return Ok(()),
            Ok((wrong, seen)) => {
                for name in seen.long_back_offs() {
                    machines.end_back_off(cluster, name).await?;
                }
                wrong
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
pub(super) async fn guests_live(cluster: &Cluster, machines: &Machines) -> Result<()> {
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
    let wrong = observe(cluster, machines)?.0.join("\n");
    ensure!(
        wrong.is_empty(),
        "did not stay in the desired state:\n{wrong}"
    );
    Ok(())
}

/// Everything that is not as it should be, and the objects that show it.
fn observe(cluster: &Cluster, machines: &Machines) -> Result<(Vec<String>, Objects)> {
    let seen = Objects::read(cluster)?;
    Ok((differences(cluster, machines, &seen)?, seen))
}

fn differences(cluster: &Cluster, machines: &Machines, seen: &Objects) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    if !machines.are_up_to_date() {
        wrong.push("an object of a deleted machine is still there".to_owned());
    }
    let (mut domains, mut disks, mut pods) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut may_keep_pod = BTreeSet::new();
    let root = cluster.stack().dir().join("state/disks");
    for (name, desired) in machines.desired_states() {
        let Some(vm) = seen.machines.get(&name) else {
            if desired.mode != Mode::Gone {
                wrong.push(format!("{name} does not exist"));
            }
            continue;
        };
        let status = &vm["status"];
        let word = text(&status["printableStatus"]);
        let has_memory = root
            .join(text(&vm["metadata"]["uid"]))
            .join("memory.save")
            .exists();
        if !fulfils(word, has_memory, desired)
            || status["desiredGeneration"] != vm["metadata"]["generation"]
        {
            wrong.push(format!(
                "{name}: {word}, saved memory {has_memory}, desired {desired:?}: {vm}"
            ));
        }
        disks.insert(text(&vm["metadata"]["uid"]).to_owned());
        match (word, desired.mode) {
            ("Running", _) => {
                domains.insert(text(&status["instanceUUID"]).to_owned());
                pods.insert(name);
            }
            (_, Mode::Manual | Mode::Once) => {
                may_keep_pod.insert(name);
            }
            _ => {}
        }
    }
    let found: BTreeSet<_> = seen.pods.difference(&may_keep_pod).cloned().collect();
    compare(&mut wrong, "pods", &pods, &found);
    let found = cluster.stack().virsh(&["list", "--uuid"])?;
    let found = found.split_whitespace().map(ToOwned::to_owned).collect();
    compare(&mut wrong, "domains that run", &domains, &found);
    let found = fs::read_dir(&root).into_iter().flatten().flatten();
    let found = found.map(|e| e.file_name().to_string_lossy().into_owned());
    compare(&mut wrong, "disks", &disks, &found.collect());
    wrong.extend(seen.tasks.iter().cloned());
    Ok(wrong)
}

/// A machine that was suspended while it was off has no memory to save.
fn fulfils(word: &str, has_memory: bool, desired: DesiredState) -> bool {
    match desired.mode {
        Mode::On | Mode::Always | Mode::RerunOnFailure => word == "Running" && !has_memory,
        Mode::Off | Mode::Halted => word == "Stopped" && !has_memory,
        Mode::Suspended => matches!((word, has_memory), ("Suspended", true) | ("Stopped", false)),
        // On or off: what it was, or what became of its run.
        Mode::Manual | Mode::Once => matches!(
            (word, has_memory),
            ("Running" | "Stopped", false) | ("Suspended", true)
        ),
        Mode::Gone => false,
    }
}

fn compare(
    wrong: &mut Vec<String>,
    what: &str,
    expected: &BTreeSet<String>,
    found: &BTreeSet<String>,
) {
    if expected != found {
        wrong.push(format!("{what}: {found:?} instead of {expected:?}"));
    }
}

/// What the API server knows.
struct Objects {
    machines: BTreeMap<String, Value>,
    pods: BTreeSet<String>,
    /// Tasks that have not ended, as text.
    tasks: Vec<String>,
}

impl Objects {
    fn read(cluster: &Cluster) -> Result<Self> {
        let mut list = cluster.get_json(&["vm,pods,virtualmachinetasks"])?;
        let mut found = Self {
            machines: BTreeMap::new(),
            pods: BTreeSet::new(),
            tasks: Vec::new(),
        };
        for object in list["items"].as_array_mut().context("items")? {
            let name = text(&object["metadata"]["name"]).to_owned();
            match text(&object["kind"]) {
                "VirtualMachine" => {
                    if let Some(meta) = object["metadata"].as_object_mut() {
                        meta.remove("managedFields");
                        meta.remove("annotations");
                    }
                    found.machines.insert(name, object.take());
                }
                "Pod" => {
                    found.pods.insert(name);
                }
                _ if is_open(object) => found.tasks.push(format!("open task {object}")),
                _ => {}
            }
        }
        Ok(found)
    }

    fn long_back_offs(&self) -> impl Iterator<Item = &str> {
        let machines = self.machines.iter();
        let waiting = machines.filter(|(_, vm)| has_long_back_off(vm));
        waiting.map(|(name, _)| name.as_str())
    }
}

/// Whether the next start of a machine is later than the test can wait.
fn has_long_back_off(vm: &Value) -> bool {
    let retry = text(&vm["status"]["startFailure"]["retryAfterTimestamp"]).parse::<Timestamp>();
    retry.is_ok_and(|retry| retry > Timestamp::now() + LONG_BACK_OFF)
}

fn is_open(task: &Value) -> bool {
    let state = text(&task["status"]["state"]);
    !["Success", "Error", "Cancelled"].contains(&state)
}

/// The last tick in the log of each machine that runs, by the UID of its pod.
fn last_ticks(cluster: &Cluster) -> Result<Vec<(String, Option<u64>)>> {
    let objects = Objects::read(cluster)?;
    let running = objects
        .machines
        .iter()
        .filter(|(_, vm)| text(&vm["status"]["printableStatus"]) == "Running");
    let logs = cluster.stack().dir().join("logs/pods");
    Ok(running
        .map(|(name, vm)| {
            let uid = text(&vm["status"]["instance"]["uid"]);
            let folder = logs.join(format!("default_{name}_{uid}/vm"));
            let reported = newest_log(&folder).map(fs::read);
            let reported = reported.and_then(Result::ok).unwrap_or_default();
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn a_long_back_off_is_distinguished_from_a_short_one() {
        let vm = |seconds| {
            let retry = Timestamp::now() + Duration::from_secs(seconds);
            json!({ "status": { "startFailure": { "retryAfterTimestamp": retry.to_string() } } })
        };
        assert!(has_long_back_off(&vm(3600)));
        assert!(!has_long_back_off(&vm(1)));
        assert!(!has_long_back_off(&json!({ "status": {} })));
    }
}

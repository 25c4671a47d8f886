//! The machines of a chaos run: writes their desired states, also across a killed API server.
//!
//! Invariant: desired states reach an object in their order; those of a machine whose old object
//! still exists are kept until it no longer exists, and only the last one of them counts.
//! Failure: the last report of the API server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::programs;
use super::script::{Change, DesiredState, Mode};
use crate::machines::{class, image, machine};
use crate::{Cluster, eventually};

/// The API server may be dead for a while, and is slow after its birth.
pub(super) const TAKEN: Duration = Duration::from_secs(120);

/// The end of a machine mostly takes seconds; one that takes longer leaves evidence.
const SLOW: Duration = Duration::from_secs(100);
/// What a machine consists of in the API.
const KINDS: &str = "vm,pods,virtualmachinetasks";

/// All machines, by number.
#[derive(Debug)]
pub(super) struct Machines {
    desired: Vec<DesiredState>,
    /// Their objects do not say it yet.
    waiting: Vec<bool>,
    /// How often an object of that name may have been made.
    creations: Vec<Cell<u32>>,
}

/// Name of a machine.
pub(super) fn name(machine: usize) -> String {
    format!("chaos-{machine}")
}

impl Machines {
    /// Creates classes, the image and the machines.
    pub(super) fn create(cluster: &Cluster, count: usize) -> Result<Self> {
        for (name, memory) in [("small", "112Mi"), ("large", "128Mi")] {
            cluster.apply(&class(name, memory))?;
        }
        cluster.apply(&image(cluster.stack().image()?))?;
        for number in 0..count {
            cluster.apply(&machine(
                &name(number),
                &without_nulls(DesiredState::FIRST.spec()),
            ))?;
        }
        Ok(Self {
            desired: vec![DesiredState::FIRST; count],
            waiting: vec![false; count],
            creations: vec![Cell::new(1); count],
        })
    }

    /// Names and desired states.
    pub(super) fn desired_states(&self) -> impl Iterator<Item = (String, DesiredState)> {
        self.desired.iter().enumerate().map(|(n, w)| (name(n), *w))
    }

    /// How many disks a machine of that name may have had.
    pub(super) fn creations(&self) -> BTreeMap<String, u32> {
        let creations = self.creations.iter().enumerate();
        creations
            .map(|(n, creations)| (name(n), creations.get()))
            .collect()
    }

    /// Whether every object has its desired state.
    pub(super) fn are_up_to_date(&self) -> bool {
        !self.waiting.contains(&true)
    }

    /// Stores a change and writes it to the API server, again and again while that is unavailable.
    pub(super) async fn change(&mut self, cluster: &Cluster, change: Change) -> Result<()> {
        self.desired[change.machine] = change.desired;
        self.waiting[change.machine] = true;
        self.announce(cluster, change.machine).await
    }

    /// Another desired state ends the back-off of failed starts.
    pub(super) async fn end_back_off(&mut self, cluster: &Cluster, named: &str) -> Result<()> {
        let mut desired_states = self.desired_states();
        let Some(machine) = desired_states.position(|(name, _)| name == named) else {
            return Ok(());
        };
        drop(desired_states);
        let desired = self.desired[machine];
        if !matches!(desired.mode, Mode::Always | Mode::RerunOnFailure) {
            return Ok(());
        }
        eprintln!("chaos: {named}, {desired:?}, would wait long: PoweredOn");
        let desired = DesiredState {
            mode: Mode::On,
            ..desired
        };
        let name = desired.mode.name();
        let change = Change {
            machine,
            desired,
            name,
        };
        self.change(cluster, change).await
    }

    /// Writes what could not be written before.
    pub(super) async fn write_pending(&mut self, cluster: &Cluster) -> Result<()> {
        for machine in 0..self.desired.len() {
            if self.waiting[machine] {
                self.announce(cluster, machine).await?;
            }
        }
        Ok(())
    }

    /// One step towards an object with the desired state.
    async fn announce(&mut self, cluster: &Cluster, machine: usize) -> Result<()> {
        let desired = self.desired[machine];
        let taken = eventually(TAKEN, "the API server accepts a desired state", || async {
            step(cluster, &name(machine), desired, &self.creations[machine])
        })
        .await?;
        // Nothing is born suspended.
        self.waiting[machine] = match taken {
            Step::Later => true,
            Step::Created => desired.mode == Mode::Suspended,
            Step::Written => false,
        };
        Ok(())
    }

    /// Deletes all of them and waits until they no longer exist; prints what is left whenever that
    /// changes, and calls `if_slow` once if it takes long.
    pub(super) async fn delete(
        self,
        cluster: &Cluster,
        within: Duration,
        if_slow: impl Fn() -> String,
    ) -> Result<()> {
        for (name, _) in self.desired_states() {
            delete(cluster, &name)?;
        }
        let (begun, last) = (Instant::now(), RefCell::new(String::new()));
        let is_slow = Cell::new(false);
        eventually(within, "the end of every machine", || async {
            // A controller on a host that was paused may have lost its lease.
            programs::supervise(cluster.stack())?;
            let left = cluster.kubectl(&["get", KINDS, "-A", "-o", "name"])?;
            if last.replace(left.clone()) != left {
                let at = begun.elapsed().as_secs();
                eprintln!("chaos: {at:>4} s, still there:\n{left}");
            }
            if !left.is_empty() && begun.elapsed() > SLOW && !is_slow.replace(true) {
                eprintln!("chaos: a slow end: {}", if_slow());
            }
            ensure!(left.is_empty(), "still there: {left}");
            Ok(())
        })
        .await
    }
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Written,
    Created,
    /// The object of that name is still going.
    Later,
}

fn step(
    cluster: &Cluster,
    name: &str,
    desired: DesiredState,
    creations: &Cell<u32>,
) -> Result<Step> {
    if desired.mode == Mode::Gone {
        delete(cluster, name)?;
        return Ok(Step::Written);
    }
    let found = cluster.kubectl(&["get", "vm", name, "--ignore-not-found", "-o", "json"])?;
    if found.is_empty() {
        let first = match desired.mode {
            Mode::Suspended => Mode::On,
            other => other,
        };
        let created = DesiredState {
            mode: first,
            ..desired
        };
        // Before the answer, which may be lost.
        creations.set(creations.get() + 1);
        cluster.apply(&machine(name, &without_nulls(created.spec())))?;
        return Ok(Step::Created);
    }
    let found: Value = serde_json::from_str(&found)?;
    if !found["metadata"]["deletionTimestamp"].is_null() {
        return Ok(Step::Later);
    }
    let patch = json!({ "spec": desired.spec() }).to_string();
    cluster.kubectl(&["patch", "vm", name, "--type=merge", "-p", &patch])?;
    Ok(Step::Written)
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let words = ["delete", "vm", name, "--wait=false", "--ignore-not-found"];
    cluster.kubectl(&words).map(drop)
}

fn without_nulls(mut spec: Value) -> Value {
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    spec
}

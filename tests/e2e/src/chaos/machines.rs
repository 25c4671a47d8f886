//! The machines of a chaos run: writes their desired states, also across a killed API server.
//!
//! Invariant: desired states reach an object in their order; those of a machine whose old object
//! still exists, or that reverts to a snapshot, are kept until that is over, and only the last one of them
//! counts.
//! Failure: the last report of the API server.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::boots::{History, Return};
use super::desired::{CLASSES, DesiredState, Mode};
use super::script::Change;
use crate::machines::{class, condition, image, machine};
use crate::{Cluster, eventually};

/// The API server may be dead for a while, and is slow after its birth.
pub(super) const TAKEN: Duration = Duration::from_secs(120);
/// How late the time of a condition may be, which has whole seconds.
const SECOND: Duration = Duration::from_secs(1);
const REVERTED: &str = "VirtualMachineSnapshotRevertSucceeded";

/// All machines, by number.
#[derive(Debug)]
pub(super) struct Machines(Vec<Machine>);

#[derive(Debug)]
struct Machine {
    desired: DesiredState,
    /// Its object does not say it yet.
    waits: bool,
    /// How often an object of that name may have been made.
    creations: Cell<u32>,
    /// What it was to be, since its object was made.
    earlier: Vec<DesiredState>,
    reverts: bool,
    returns: Vec<Return>,
}

/// A revert that the API server has accepted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Revert {
    pub(super) machine: usize,
    /// What the machine is to be then.
    pub(super) to: DesiredState,
    /// When the snapshot was taken.
    pub(super) taken: Timestamp,
    pub(super) requested: Timestamp,
}

/// Name of a machine.
pub(super) fn name(machine: usize) -> String {
    format!("chaos-{machine}")
}

impl Machines {
    /// Creates classes, the image and the machines.
    pub(super) fn create(cluster: &Cluster, count: usize) -> Result<Self> {
        for (name, memory) in CLASSES {
            cluster.apply(&class(name, memory))?;
        }
        cluster.apply(&image(cluster.stack().image()?))?;
        let mut all = Vec::new();
        for number in 0..count {
            let desired = DesiredState::FIRST;
            cluster.apply(&object(&name(number), desired))?;
            all.push(Machine {
                desired,
                waits: false,
                creations: Cell::new(1),
                earlier: vec![desired],
                reverts: false,
                returns: Vec::new(),
            });
        }
        Ok(Self(all))
    }

    /// Names and desired states.
    pub(super) fn desired_states(&self) -> impl Iterator<Item = (String, DesiredState)> {
        let all = self.0.iter().enumerate();
        all.map(|(number, machine)| (name(number), machine.desired))
    }

    /// What was done to the disks of each name.
    pub(super) fn histories(&self) -> BTreeMap<String, History> {
        let all = self.0.iter().enumerate();
        let history = |(number, machine): (usize, &Machine)| {
            let history = History {
                creations: machine.creations.get(),
                returns: machine.returns.clone(),
                source: None,
            };
            (name(number), history)
        };
        all.map(history).collect()
    }

    /// Numbers from `choice` on, all of them.
    pub(super) fn from(&self, choice: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.0.len();
        (0..count).map(move |step| (choice + step) % count)
    }

    /// What the machine shall be, if its object says it.
    pub(super) fn settled(&self, machine: usize) -> Option<DesiredState> {
        let machine = &self.0[machine];
        let is_settled = !machine.waits && !machine.reverts && machine.desired.mode != Mode::Gone;
        is_settled.then_some(machine.desired)
    }

    /// Whether a machine was to be so at some time since its object was made.
    pub(super) fn was(&self, machine: usize, desired: DesiredState) -> bool {
        self.0[machine].earlier.contains(&desired)
    }

    /// Why no object can be compared with its desired state.
    pub(super) fn unsettled(&self) -> Vec<String> {
        let all = self.0.iter().enumerate();
        let why = |(number, machine): (usize, &Machine)| match machine {
            Machine { reverts: true, .. } => {
                Some(format!("{} reverts to a snapshot", name(number)))
            }
            Machine { waits: true, .. } => Some(format!("an old {} is still there", name(number))),
            _ => None,
        };
        all.filter_map(why).collect()
    }

    /// Stores a change and writes it to the API server, again and again while that is unavailable.
    pub(super) async fn change(&mut self, cluster: &Cluster, change: Change) -> Result<()> {
        let machine = &mut self.0[change.machine];
        machine.desired = change.desired;
        machine.waits = true;
        self.announce(cluster, change.machine).await
    }

    /// A machine returns to a snapshot from now on.
    pub(super) fn revert(&mut self, revert: Revert) {
        let machine = &mut self.0[revert.machine];
        machine.desired = revert.to;
        machine.reverts = true;
        machine.returns.push(Return {
            taken: revert.taken,
            requested: revert.requested,
            done: None,
        });
    }

    /// Another desired state ends the back-off of failed starts.
    pub(super) async fn end_back_off(&mut self, cluster: &Cluster, named: &str) -> Result<()> {
        let position = self.desired_states().position(|(name, _)| name == named);
        let Some(machine) = position else {
            return Ok(());
        };
        let desired = self.0[machine].desired;
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
        for number in 0..self.0.len() {
            if self.0[number].reverts {
                self.observe_revert(cluster, number).await?;
            }
            if self.0[number].waits {
                self.announce(cluster, number).await?;
            }
        }
        Ok(())
    }

    /// One step towards an object with the desired state.
    async fn announce(&mut self, cluster: &Cluster, number: usize) -> Result<()> {
        let machine = &mut self.0[number];
        machine.earlier.push(machine.desired);
        let now: &Machine = machine;
        let step = eventually(TAKEN, "the API server accepts a desired state", || async {
            step(cluster, &name(number), now)
        })
        .await?;
        match step {
            Step::Later => {}
            Step::Gone => {
                machine.waits = false;
                machine.reverts = false;
                machine.earlier.clear();
            }
            Step::Written(desired) => {
                machine.earlier.push(desired);
                // Nothing is born suspended.
                machine.waits = desired.mode != machine.desired.mode;
            }
        }
        Ok(())
    }

    /// Whether the revert of a machine has ended.
    async fn observe_revert(&mut self, cluster: &Cluster, number: usize) -> Result<()> {
        let name = name(number);
        let vm = eventually(TAKEN, "the API server shows a machine", || async {
            let found =
                cluster.kubectl(&["get", "vm", &name, "--ignore-not-found", "-o", "json"])?;
            if found.is_empty() {
                Ok(Value::Null)
            } else {
                Ok(serde_json::from_str(&found)?)
            }
        });
        let vm = vm.await?;
        let is_over =
            vm["spec"]["currentSnapshotName"].is_null() && vm["status"]["snapshotRevert"].is_null();
        if !is_over {
            return Ok(());
        }
        let machine = &mut self.0[number];
        machine.reverts = false;
        if vm.is_null() || !vm["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let reverted = condition(&vm, REVERTED);
        if let Some(last) = machine.returns.last_mut()
            && reverted["status"] == "True"
        {
            let time = reverted["lastTransitionTime"].as_str().unwrap_or_default();
            let time = time.parse::<Timestamp>().ok().map(|time| time + SECOND);
            let now = Timestamp::now();
            last.done = Some(time.filter(|time| *time > last.requested).unwrap_or(now));
        }
        Ok(())
    }
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The object says this.
    Written(DesiredState),
    /// The object of that name is still going, or reverts.
    Later,
    /// There is to be none.
    Gone,
}

fn step(cluster: &Cluster, name: &str, machine: &Machine) -> Result<Step> {
    let desired = machine.desired;
    if desired.mode == Mode::Gone {
        delete(cluster, name)?;
        return Ok(Step::Gone);
    }
    let found = cluster.kubectl(&["get", "vm", name, "--ignore-not-found", "-o", "json"])?;
    let unsuspended = DesiredState {
        mode: match desired.mode {
            Mode::Suspended => Mode::On,
            other => other,
        },
        ..desired
    };
    if found.is_empty() {
        // Before the answer, which may be lost.
        machine.creations.set(machine.creations.get() + 1);
        cluster.apply(&object(name, unsuspended))?;
        return Ok(Step::Written(unsuspended));
    }
    let found: Value = serde_json::from_str(&found)?;
    let spec = &found["spec"];
    let reverts =
        !spec["currentSnapshotName"].is_null() || !found["status"]["snapshotRevert"].is_null();
    if reverts || !found["metadata"]["deletionTimestamp"].is_null() {
        return Ok(Step::Later);
    }
    // A revert may have switched it off: the API server refuses to suspend what is off.
    let is_off = DesiredState::read(spec).is_ok_and(|now| now.mode.is_off());
    let written = if is_off { unsuspended } else { desired };
    let patch = json!({ "spec": written.spec() }).to_string();
    cluster.kubectl(&["patch", "vm", name, "--type=merge", "-p", &patch])?;
    Ok(Step::Written(written))
}

/// Requests the end of a machine.
pub(super) fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let words = ["delete", "vm", name, "--wait=false", "--ignore-not-found"];
    cluster.kubectl(&words).map(drop)
}

fn object(name: &str, desired: DesiredState) -> Value {
    machine(name, &without_nulls(desired.spec()))
}

fn without_nulls(mut spec: Value) -> Value {
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    spec
}

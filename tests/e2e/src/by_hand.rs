//! Tasks that a test creates by hand, run by the real agent and the real daemon, while the agent is
//! killed.
//!
//! Invariant: the controller is stopped, so that only the test creates tasks and pods.
//! Failure: names the kind of task and the crash point; the task or pod that did not become what is
//! awaited is shown.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::guest_facts::{GuestFacts, Power};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{Cluster, eventually, vm_pod};

/// Guests boot under software emulation, maybe on a busy machine.
const BOOT: Duration = Duration::from_secs(600);
const AGENT: &str = "vmlet-agent";

/// A cluster whose controller does not interfere, and the tasks that were run on it.
#[derive(Debug)]
pub struct TestEnvironment {
    cluster: Cluster,
    /// Names of the tasks by kind.
    crashed: RefCell<BTreeMap<String, BTreeSet<String>>>,
}

/// A machine as it is named by tasks.
#[derive(Debug)]
pub struct Machine<'a> {
    env: &'a TestEnvironment,
    uid: String,
}

impl TestEnvironment {
    /// Starts it.
    pub async fn up() -> Result<Self> {
        let cluster = Cluster::up()?;
        let stack = cluster.stack();
        stack.kill("vmlet-controller", Signal::SIGKILL).await?;
        Ok(Self {
            cluster,
            crashed: RefCell::default(),
        })
    }

    /// kubectl, and what else any cluster has.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Stops everything; an error when it leaked anything.
    pub fn down(self) -> Result<()> {
        self.cluster.down()
    }

    /// How many tasks of a kind were interrupted.
    pub fn interrupted(&self, kind: &str) -> usize {
        self.crashed.borrow().get(kind).map_or(0, BTreeSet::len)
    }

    /// A machine that exists for tasks only.
    pub fn machine(&self, number: u8) -> Machine<'_> {
        Machine {
            env: self,
            uid: format!("0f0f0f0f-0000-4000-8000-0000000000{number:02x}"),
        }
    }

    /// Waits for the agent's death at a crash point, and starts it again.
    pub async fn revive(&self, point: &str) -> Result<()> {
        let stack = self.cluster.stack();
        // Some points come when a guest has done its part.
        eventually(BOOT, &format!("the agent dies at {point}"), || async {
            let dead = !stack.is_armed(point) && !stack.is_alive(AGENT);
            ensure!(dead, "it lives");
            Ok(())
        })
        .await?;
        stack.restart(AGENT)
    }

    /// Waits until a task is in a state, with a time of its end if that is one.
    pub async fn await_state(&self, name: &str, state: &str) -> Result<()> {
        let is_end = !["Queued", "Running"].contains(&state);
        let status = eventually(BOOT, &format!("{state} of {name}"), || async {
            let task = self.cluster.get_json(&["virtualmachinetask", name])?;
            let status = task["status"].clone();
            let has_ended = status["completionTime"].is_string();
            let is_awaited = status["state"] == state && has_ended == is_end;
            // An end does not change any more.
            ensure!(is_awaited || has_ended, "{status}");
            Ok(status)
        })
        .await?;
        ensure!(status["state"] == state, "{name} is not {state}: {status}");
        Ok(())
    }

    /// Waits until a pod is in a phase; gives the pod.
    pub async fn await_phase(&self, pod: &str, phase: &str) -> Result<Value> {
        eventually(BOOT, &format!("{pod} {phase}"), || async {
            let pod = self.cluster.get_json(&["pod", pod])?;
            ensure!(pod["status"]["phase"] == phase, "{}", pod["status"]);
            Ok(pod)
        })
        .await
    }

    /// Waits until the facts about a pod's guest say this of its power; gives the facts.
    pub async fn await_facts(&self, pod: &str, power: Power) -> Result<GuestFacts> {
        eventually(BOOT, &format!("{pod} is {power:?}"), || async {
            let pod = self.cluster.get_json(&["pod", pod])?;
            let text = pod["metadata"]["annotations"]["vmlet.dev/guest-facts"].as_str();
            let facts = GuestFacts::from_json(text.context("no facts yet")?)?;
            ensure!(facts.power == power, "{facts:?}");
            Ok(facts)
        })
        .await
    }
}

impl Machine<'_> {
    /// Its UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Creates a task, lets the agent die at `point`, and waits until the task is in its end state.
    pub async fn crash(&self, kind: &str, more: Value, point: &str) -> Result<()> {
        let step = async {
            self.env.cluster.stack().arm(point)?;
            let name = self.create(kind, more, point)?;
            self.env.revive(point).await?;
            self.env.await_state(&name, "Success").await
        };
        step.await.with_context(|| format!("{kind} at {point}"))
    }

    /// Creates a task, named by its kind and `point`; gives its name.
    pub fn create(&self, kind: &str, more: Value, point: &str) -> Result<String> {
        let cluster = &self.env.cluster;
        let mut spec = json!({
            "nodeName": "node1", "vmName": "vm", "vmUID": self.uid, "kind": kind,
        });
        if kind == "Provision" {
            spec["image"] = json!(cluster.stack().image()?);
            spec["linked"] = json!(true);
        }
        merge(&mut spec, more);
        let point = point.replace('.', "-");
        let number = &self.uid[34..];
        let name = format!("{}-{point}-{number}", kind.to_lowercase());
        let mut crashed = self.env.crashed.borrow_mut();
        let is_new = crashed
            .entry(kind.to_owned())
            .or_default()
            .insert(name.clone());
        ensure!(is_new, "{name} was there before");
        cluster.apply(&json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
            "metadata": { "name": name }, "spec": spec,
        }))?;
        Ok(name)
    }

    /// A pod that runs on the machine's disk.
    pub fn run_pod(&self, annotations: Value) -> Result<()> {
        let mut pod = vm_pod("vm");
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["metadata"]["annotations"] = json!({ "vmlet.dev/vm-disk": self.uid });
        // As the controller makes them: a machine with shares is not suspended.
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        merge(&mut pod["metadata"]["annotations"], annotations);
        self.env.cluster.apply(&pod)
    }
}

fn merge(into: &mut Value, more: Value) {
    if let Some(all) = into.as_object_mut()
        && let Value::Object(more) = more
    {
        all.extend(more);
    }
}

//! The group and the replica set of a run.
//!
//! Invariant: their machines are changed through them alone, but for machines of the set that are deleted,
//! which the set makes again.
//! Failure: the last report of the API server.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::boots::History;
use super::desired::{CLASSES, DesiredState, Mode};
use super::differences::Expected;
use super::machines::{TAKEN, delete};
use super::operation::Outcome;
use crate::machines::machine;
use crate::{Cluster, eventually};

/// Machines of the group, and the largest number of those of the set.
pub(super) const MEMBERS: usize = 2;
pub(super) const REPLICAS: usize = 2;

const GROUP: &str = "chaos-group";
const SET: &str = "chaos-set";
const VERSION: &str = "vmlet.dev/v1alpha1";

/// What they shall be.
#[derive(Debug)]
pub(super) struct Sets {
    group: Mode,
    replicas: usize,
    /// Versions of the template.
    templates: u32,
    /// Operations that may have replaced a machine of the set.
    changes: u32,
}

fn member(number: usize) -> String {
    format!("chaos-member-{number}")
}

fn replica(number: usize) -> String {
    format!("{SET}-{number}")
}

impl Sets {
    /// Creates both with their machines; classes and image exist.
    pub(super) fn create(cluster: &Cluster) -> Result<Self> {
        let members = (0..MEMBERS).map(member);
        let tiers: Vec<_> = members
            .clone()
            .map(|name| json!({ "members": [{ "name": name }], "powerOffDelay": "1s" }))
            .collect();
        cluster.apply(&json!({
            "apiVersion": VERSION, "kind": "VirtualMachineGroup",
            "metadata": { "name": GROUP },
            "spec": { "powerState": Mode::On.name(), "bootOrder": tiers },
        }))?;
        let class = CLASSES[0].0;
        for name in members {
            let fields = json!({
                "className": class, "groupName": GROUP, "powerState": Mode::On.name(),
            });
            cluster.apply(&machine(&name, &fields))?;
        }
        let labels = json!({ "app": SET });
        cluster.apply(&json!({
            "apiVersion": VERSION, "kind": "VirtualMachineReplicaSet",
            "metadata": { "name": SET },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "updateStrategy": { "type": "RollingUpdate" },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "className": class, "imageName": "guest", "runStrategy": "Always",
                        "powerOffTimeout": "30s",
                    },
                },
            },
        }))?;
        Ok(Self {
            group: Mode::On,
            replicas: 1,
            templates: 0,
            changes: 0,
        })
    }

    /// Adds what they and their machines shall be.
    pub(super) fn expect(&self, expected: &mut Expected) {
        let desired = |mode| DesiredState {
            mode,
            class: CLASSES[0].0,
            ..DesiredState::FIRST
        };
        let members = (0..MEMBERS).map(|number| (member(number), desired(self.group)));
        let replicas = (0..self.replicas).map(|number| (replica(number), desired(Mode::Always)));
        expected.machines.extend(members.chain(replicas));
        expected.group = Some((GROUP, self.group));
        expected.set = Some((SET, self.replicas));
    }

    /// How often their machines may have been made.
    pub(super) fn histories(&self) -> BTreeMap<String, History> {
        let made = |creations| History {
            creations,
            ..History::default()
        };
        let members = (0..MEMBERS).map(|number| (member(number), made(1)));
        // A replacement may begin with one more machine.
        let replicas = (0..=REPLICAS).map(|number| (replica(number), made(2 + self.changes)));
        members.chain(replicas).collect()
    }

    /// Another power state for the group.
    pub(super) async fn power(&mut self, cluster: &Cluster, choice: usize) -> Result<Outcome> {
        let others = [Mode::On, Mode::Off, Mode::Suspended];
        // What is off is not suspended.
        let others = others.into_iter().filter(|mode| {
            *mode != self.group && (*mode != Mode::Suspended || self.group == Mode::On)
        });
        let others: Vec<_> = others.collect();
        let state = others[choice % others.len()];
        let change = json!({ "spec": { "powerState": state.name() } });
        patch(cluster, "vmg", GROUP, &change).await?;
        self.group = state;
        Ok(Outcome::Requested(state.name().to_owned()))
    }

    /// Another number of machines.
    pub(super) async fn scale(&mut self, cluster: &Cluster, choice: usize) -> Result<Outcome> {
        // Never the same as before.
        let replicas = (self.replicas + 1 + choice % REPLICAS) % (REPLICAS + 1);
        let change = json!({ "spec": { "replicas": replicas } });
        patch(cluster, "vmrs", SET, &change).await?;
        self.replicas = replicas;
        self.changes += 1;
        Ok(Outcome::Requested(format!("{replicas} machines")))
    }

    /// Another template, by which all machines are replaced.
    pub(super) async fn edit_template(&mut self, cluster: &Cluster) -> Result<Outcome> {
        self.templates += 1;
        let timeout = format!("{}s", 30 + self.templates);
        let change = json!({ "spec": { "template": { "spec": { "powerOffTimeout": timeout } } } });
        patch(cluster, "vmrs", SET, &change).await?;
        self.changes += 1;
        Ok(Outcome::Requested(format!("powerOffTimeout {timeout}")))
    }

    /// Deletes a machine of the set.
    pub(super) async fn delete_replica(
        &mut self,
        cluster: &Cluster,
        choice: usize,
    ) -> Result<Outcome> {
        if self.replicas == 0 {
            return Ok(Outcome::Skipped("the set has no machine".to_owned()));
        }
        let name = replica(choice % self.replicas);
        // A request without an answer may be repeated for the machine that was made since.
        self.changes += 2;
        eventually(TAKEN, "the API server accepts a deletion", || async {
            delete(cluster, &name)
        })
        .await?;
        Ok(Outcome::Requested(name))
    }

    /// Deletes both, and the members; the machines of the set go with it.
    pub(super) fn delete(&self, cluster: &Cluster) -> Result<()> {
        for object in [format!("vmrs/{SET}"), format!("vmg/{GROUP}")] {
            cluster.kubectl(&["delete", &object, "--wait=false", "--ignore-not-found"])?;
        }
        (0..MEMBERS).try_for_each(|number| delete(cluster, &member(number)))
    }
}

async fn patch(cluster: &Cluster, kind: &str, name: &str, change: &Value) -> Result<()> {
    let change = change.to_string();
    let words = ["patch", kind, name, "--type=merge", "-p", &change];
    eventually(TAKEN, "the API server accepts a change", || async {
        cluster.kubectl(&words).map(drop)
    })
    .await
}

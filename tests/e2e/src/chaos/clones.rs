//! Clones of snapshots, one at a time.
//!
//! Invariant: the clone before is deleted when the next one is made. A snapshot that a clone needs is not deleted
//! by the run; one that goes with its machine may leave a clone without a disk.
//! Failure: the last report of the API server.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::boots::{History, Source};
use super::desired::{CLASSES, DesiredState, Mode};
use super::machines::{Machines, TAKEN, delete};
use super::objects::text;
use super::operation::Outcome;
use super::snapshots;
use crate::machines::machine;
use crate::{Cluster, eventually};

/// Those of a run.
#[derive(Debug, Default)]
pub(super) struct Clones(Vec<Copied>);

/// A clone, which exists if it is the last one.
#[derive(Debug)]
struct Copied {
    name: String,
    snapshot: String,
    source: Source,
}

impl Clones {
    /// Clones the newest snapshot of the first machine from `choice` on that has one.
    pub(super) async fn make(
        &mut self,
        cluster: &Cluster,
        machines: &Machines,
        choice: usize,
    ) -> Result<Outcome> {
        let all = snapshots::list(cluster).await?;
        let Some(snapshot) = snapshots::newest(&all, machines, choice) else {
            return Ok(Outcome::Skipped(snapshots::NOTHING.to_owned()));
        };
        if let Some(last) = self.0.last() {
            eventually(TAKEN, "the API server accepts a deletion", || async {
                delete(cluster, &last.name)
            })
            .await?;
        }
        let copied = Copied {
            name: format!("chaos-clone-{}", self.0.len() + 1),
            snapshot: text(&snapshot["metadata"]["name"]).to_owned(),
            source: Source {
                machine: text(&snapshot["spec"]["vmName"]).to_owned(),
                taken: taken(snapshot)?,
            },
        };
        let object = object(&copied);
        eventually(TAKEN, "the API server accepts a clone", || async {
            cluster.apply(&object)
        })
        .await?;
        let what = format!("{} of {}", copied.name, copied.snapshot);
        self.0.push(copied);
        Ok(Outcome::Requested(what))
    }

    /// The snapshot that the last clone is of.
    pub(super) fn snapshot(&self) -> Option<&str> {
        self.0.last().map(|last| last.snapshot.as_str())
    }

    /// Adds what they shall be.
    pub(super) fn expect(&self, machines: &mut BTreeMap<String, DesiredState>) {
        let last = self.0.len().saturating_sub(1);
        for (number, copied) in self.0.iter().enumerate() {
            let desired = DesiredState {
                mode: if number == last {
                    Mode::Always
                } else {
                    Mode::Gone
                },
                class: CLASSES[0].0,
                ..DesiredState::FIRST
            };
            machines.insert(copied.name.clone(), desired);
        }
    }

    /// What was done to their disks.
    pub(super) fn histories(&self) -> impl Iterator<Item = (String, History)> {
        self.0.iter().map(|copied| {
            let history = History {
                creations: 1,
                source: Some(copied.source.clone()),
                ..History::default()
            };
            (copied.name.clone(), history)
        })
    }

    /// Deletes what there is.
    pub(super) fn delete(&self, cluster: &Cluster) -> Result<()> {
        self.0
            .last()
            .map_or(Ok(()), |last| delete(cluster, &last.name))
    }
}

fn object(copied: &Copied) -> Value {
    let fields = json!({
        "className": CLASSES[0].0, "runStrategy": Mode::Always.name(),
        "source": { "snapshot": { "name": copied.snapshot } },
    });
    let mut object = machine(&copied.name, &fields);
    // Its disk is that of the snapshot.
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("imageName");
    }
    object
}

/// When a snapshot was taken.
pub(super) fn taken(snapshot: &Value) -> Result<Timestamp> {
    let taken = text(&snapshot["status"]["creationTime"]).parse::<Timestamp>();
    taken.with_context(|| format!("a snapshot without a time: {snapshot}"))
}

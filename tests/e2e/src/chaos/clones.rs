//! Machines that are made of snapshots, or of backups, one of each at a time.
//!
//! Invariant: the machine before is deleted when the next one is made. What a machine is to be made of is not deleted
//! by the run; a snapshot that goes with its machine may leave a clone without a disk.
//! Failure: the last report of the API server.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::boots::{History, Source};
use super::desired::{CLASSES, DesiredState, Mode};
use super::machines::{TAKEN, delete};
use super::objects::text;
use super::operation::Outcome;
use crate::machines::machine;
use crate::{Cluster, eventually};

/// What machines are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Snapshot,
    Backup,
}

impl Origin {
    /// The field of a source.
    const fn field(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Backup => "backup",
        }
    }

    /// What the names of the machines begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Snapshot => "chaos-clone",
            Self::Backup => "chaos-restored",
        }
    }
}

/// Those of a run.
#[derive(Debug)]
pub(super) struct Clones {
    origin: Origin,
    all: Vec<Copied>,
}

/// A machine, which exists if it is the last one.
#[derive(Debug)]
struct Copied {
    name: String,
    /// Name of the snapshot, or of the backup.
    made_of: String,
    source: Source,
}

impl Clones {
    /// None yet.
    pub(super) const fn new(origin: Origin) -> Self {
        Self {
            origin,
            all: Vec::new(),
        }
    }

    /// Makes a machine of a snapshot, or of a backup.
    pub(super) async fn make(&mut self, cluster: &Cluster, original: &Value) -> Result<Outcome> {
        if let Some(last) = self.all.last() {
            eventually(TAKEN, "the API server accepts a deletion", || async {
                delete(cluster, &last.name)
            })
            .await?;
        }
        let copied = Copied {
            name: format!("{}-{}", self.origin.prefix(), self.all.len() + 1),
            made_of: text(&original["metadata"]["name"]).to_owned(),
            source: Source {
                machine: text(&original["spec"]["vmName"]).to_owned(),
                taken: taken(original)?,
            },
        };
        let object = object(self.origin, &copied);
        eventually(TAKEN, "the API server accepts a copy", || async {
            cluster.apply(&object)
        })
        .await?;
        let what = format!("{} of {}", copied.name, copied.made_of);
        self.all.push(copied);
        Ok(Outcome::Requested(what))
    }

    /// What the last one is made of.
    pub(super) fn last_source(&self) -> Option<&str> {
        self.all.last().map(|last| last.made_of.as_str())
    }

    /// Adds what they shall be.
    pub(super) fn expect(&self, machines: &mut BTreeMap<String, DesiredState>) {
        let last = self.all.len().saturating_sub(1);
        for (number, copied) in self.all.iter().enumerate() {
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
        self.all.iter().map(|copied| {
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
        self.all
            .last()
            .map_or(Ok(()), |last| delete(cluster, &last.name))
    }
}

fn object(origin: Origin, copied: &Copied) -> Value {
    let fields = json!({
        "className": CLASSES[0].0, "runStrategy": Mode::Always.name(),
        "source": { origin.field(): { "name": copied.made_of } },
    });
    let mut object = machine(&copied.name, &fields);
    // Its disk is not that of the image.
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("imageName");
    }
    object
}

/// When a snapshot, or a backup, was taken.
pub(super) fn taken(original: &Value) -> Result<Timestamp> {
    let taken = text(&original["status"]["creationTime"]).parse::<Timestamp>();
    taken.with_context(|| format!("no time: {original}"))
}

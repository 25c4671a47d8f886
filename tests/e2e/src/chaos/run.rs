//! What a chaos run works on: machines, a group, a replica set, snapshots, backups, clients of the nodes.
//!
//! Invariant: each operation is requested before the next begins; what becomes of it is awaited in the end.
//! Failure: an operation that the API server did not accept in time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::backups::{self, Backups};
use super::boots::History;
use super::clones::{Clones, Origin};
use super::differences::Expected;
use super::machines::{self, Machines};
use super::objects::KINDS;
use super::operation::{Kind, Operation, Outcome};
use super::sets::{MEMBERS, REPLICAS, Sets};
use super::transfers::Transfers;
use super::{programs, snapshots};
use crate::{Cluster, eventually};

/// The end of a machine mostly takes seconds; one that takes longer leaves evidence.
const SLOW: Duration = Duration::from_secs(100);
/// Of what a program says, in a line of the report.
const WORDS: usize = 160;

/// Machines that are not of the group or the set.
pub(super) const fn single(machines: usize) -> usize {
    machines.saturating_sub(MEMBERS + REPLICAS)
}

/// All of it.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) machines: Machines,
    pub(super) transfers: Transfers,
    sets: Sets,
    clones: Clones,
    restored: Clones,
    pub(super) backups: Backups,
    snapshots: u32,
    /// Disks of machines that run become independent of their images, too.
    pub(super) promotes_online: bool,
    /// Operations that there was nothing to be done with, at most one of a kind.
    postponed: BTreeMap<Kind, Operation>,
}

impl Run {
    /// Creates machines, so many in all, with the group and the set.
    pub(super) fn create(cluster: &Cluster, machines: usize) -> Result<Self> {
        Ok(Self {
            machines: Machines::create(cluster, single(machines))?,
            sets: Sets::create(cluster)?,
            transfers: Transfers::default(),
            clones: Clones::new(Origin::Snapshot),
            restored: Clones::new(Origin::Backup),
            backups: Backups::default(),
            snapshots: 0,
            promotes_online: false,
            postponed: BTreeMap::new(),
        })
    }

    /// The operations of a round: the one that is dealt, and those that could not be done earlier.
    pub(super) fn due(&mut self, dealt: Option<Operation>) -> Vec<Operation> {
        let earlier = std::mem::take(&mut self.postponed);
        let earlier = earlier.into_values();
        earlier.chain(dealt).collect()
    }

    /// Requests an operation; one that is skipped is due again.
    pub(super) async fn play(
        &mut self,
        cluster: &Cluster,
        operation: Operation,
    ) -> Result<Outcome> {
        let outcome = self.request(cluster, operation).await;
        let outcome = outcome.with_context(|| operation.kind.name())?;
        if matches!(outcome, Outcome::Skipped(_)) {
            self.postponed.insert(operation.kind, operation);
        }
        Ok(outcome)
    }

    async fn request(&mut self, cluster: &Cluster, operation: Operation) -> Result<Outcome> {
        let Operation { kind, choice } = operation;
        match kind {
            Kind::Snapshot => {
                self.snapshots += 1;
                let name = format!("chaos-snapshot-{}", self.snapshots);
                snapshots::take(cluster, &self.machines, choice, &name).await
            }
            Kind::Revert => snapshots::revert(cluster, &mut self.machines, choice).await,
            Kind::DeleteSnapshot => {
                let kept = self.clones.last_source();
                snapshots::delete(cluster, &self.machines, choice, kept).await
            }
            Kind::Clone => match snapshots::newest(cluster, &self.machines, choice).await? {
                Some(snapshot) => self.clones.make(cluster, &snapshot).await,
                None => Ok(Outcome::Skipped(snapshots::NOTHING.to_owned())),
            },
            Kind::Backup => self.backups.make(cluster, &self.machines, choice).await,
            Kind::DeleteBackup => {
                let kept = self.restored.last_source();
                backups::delete(cluster, choice, kept).await
            }
            Kind::Restore => match backups::restorable(cluster, choice).await? {
                Some(backup) => self.restored.make(cluster, &backup).await,
                None => Ok(backups::nothing()),
            },
            Kind::Schedule => self.backups.schedule(cluster, &self.machines).await,
            Kind::PowerGroup => self.sets.power(cluster, choice).await,
            Kind::Scale => self.sets.scale(cluster, choice).await,
            Kind::EditTemplate => self.sets.edit_template(cluster).await,
            Kind::DeleteReplica => self.sets.delete_replica(cluster, choice).await,
            Kind::EvictImages => Ok(evict_images(cluster, choice)),
            Kind::Export => self.transfers.export(cluster, &self.machines, choice).await,
            Kind::Upload => Ok(self.transfers.upload(cluster, choice)),
            // A change of a desired state, which the script makes of it.
            Kind::Promote => Ok(Outcome::Skipped("it is a change".to_owned())),
        }
    }

    /// What there should be now.
    pub(super) fn expected(&self) -> Expected {
        let mut expected = Expected {
            machines: self.machines.desired_states().collect(),
            unsettled: self.machines.unsettled(),
            promotes_online: self.promotes_online,
            ..Expected::default()
        };
        self.sets.expect(&mut expected);
        self.clones.expect(&mut expected.machines);
        self.restored.expect(&mut expected.machines);
        expected
    }

    /// What was done to machines, for the witness.
    pub(super) fn histories(&self) -> BTreeMap<String, History> {
        let mut all = self.machines.histories();
        all.extend(self.sets.histories());
        all.extend(self.clones.histories());
        all.extend(self.restored.histories());
        all
    }

    /// Deletes all of it and waits until nothing is left; prints what is left whenever that changes, and
    /// calls `if_slow` once if it takes long.
    pub(super) async fn delete(
        self,
        cluster: &Cluster,
        within: Duration,
        if_slow: impl Fn() -> String,
    ) -> Result<()> {
        self.sets.delete(cluster)?;
        self.clones.delete(cluster)?;
        self.restored.delete(cluster)?;
        for (name, _) in self.machines.desired_states() {
            machines::delete(cluster, &name)?;
        }
        // Those of machines that do not exist wait for one; the others go with theirs.
        cluster.kubectl(&["delete", "vmsnap", "--all", "--wait=false"])?;
        let kinds = "vmbackupschedule,vmbackup";
        cluster.kubectl(&["delete", kinds, "--all", "--wait=false"])?;
        let begun = Instant::now();
        let last = RefCell::new(String::new());
        let is_slow = Cell::new(false);
        eventually(within, "the end of every machine", || async {
            // A controller on a host that was paused may have lost its lease.
            programs::supervise(cluster)?;
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

/// Removes all images from a node, which keeps the files that disks are linked to.
fn evict_images(cluster: &Cluster, choice: usize) -> Outcome {
    let nodes: Vec<_> = cluster.nodes().collect();
    let node = nodes[choice % nodes.len()];
    let place = node.dir().display().to_string();
    match node.crictl(&["rmi", "--all"]) {
        Ok(_) => Outcome::Requested(place),
        Err(error) => {
            let words: String = format!("{error:#}").chars().take(WORDS).collect();
            Outcome::Skipped(format!("{place}: {words}"))
        }
    }
}

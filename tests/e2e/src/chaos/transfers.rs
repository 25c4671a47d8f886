//! Clients that read disks and send images while programs are killed.
//!
//! Invariant: each goes on after a failure that may pass, with what it has; what it has in the end is
//! compared byte for byte with the digest of the node. Nothing of it is left.
//! Failure: other bytes than the node announced, or an end that did not come.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;

use super::desired::Mode;
use super::machines::{Machines, TAKEN, name};
use super::objects::text;
use super::operation::Outcome;
use crate::{Cluster, eventually};

mod export;
mod upload;

/// A transfer takes seconds; a node whose daemon is dead now and then, some more.
const WITHIN: Duration = Duration::from_secs(300);

/// How a transfer ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Complete(String),
    /// The node had a reason.
    Refused(String),
    Wrong(String),
}

/// Those of a run.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    exports: Vec<JoinHandle<End>>,
    uploads: Vec<JoinHandle<End>>,
    begun: u32,
    /// Of exports, and of uploads.
    complete: Complete,
}

/// How many had their end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Complete {
    pub(super) exports: u32,
    pub(super) uploads: u32,
}

impl Transfers {
    /// Begins to read the disk of the first machine from `choice` on that is to be off.
    pub(super) async fn export(
        &mut self,
        cluster: &Cluster,
        machines: &Machines,
        choice: usize,
    ) -> Result<Outcome> {
        let is_off = |machine: &usize| {
            let desired = machines.settled(*machine);
            desired.is_some_and(|desired| matches!(desired.mode, Mode::Off | Mode::Halted))
        };
        for machine in machines.from(choice).filter(is_off) {
            let vm = name(machine);
            let object = eventually(TAKEN, "the API server shows a machine", || async {
                cluster.vm(&vm)
            });
            let object = object.await?;
            let uid = text(&object["metadata"]["uid"]).to_owned();
            let disk = Path::new("state/disks").join(&uid);
            let mut nodes = cluster.nodes();
            let Some(node) = nodes.find(|node| node.dir().join(&disk).exists()) else {
                continue;
            };
            if object["status"]["printableStatus"] != "Stopped" {
                continue;
            }
            let target = self.file(cluster);
            let dir = node.dir().to_owned();
            self.exports
                .push(tokio::spawn(export::run(dir, uid, target)));
            return Ok(Outcome::Requested(vm));
        }
        Ok(Outcome::Skipped("no machine is off".to_owned()))
    }

    /// Begins to send a file to a node.
    pub(super) fn upload(&mut self, cluster: &Cluster, choice: usize) -> Outcome {
        let nodes: Vec<_> = cluster.nodes().collect();
        let node = nodes[choice % nodes.len()];
        let file = self.file(cluster);
        let dir = node.dir().to_owned();
        let number = self.begun;
        self.uploads
            .push(tokio::spawn(upload::run(dir, number, file)));
        Outcome::Requested(format!("to {}", node.dir().display()))
    }

    fn file(&mut self, cluster: &Cluster) -> PathBuf {
        self.begun += 1;
        let name = format!("chaos-transfer-{}", self.begun);
        cluster.stack().dir().join(name)
    }

    /// Awaits those that still run; what was wrong with any of them.
    pub(super) async fn finish(&mut self) -> Vec<String> {
        let mut findings = Vec::new();
        for export in std::mem::take(&mut self.exports) {
            match export.await {
                Ok(End::Complete(what)) => {
                    self.complete.exports += 1;
                    eprintln!("chaos: complete: {what}");
                }
                // Its machine was started or deleted meanwhile.
                Ok(End::Refused(why)) => eprintln!("chaos: an export was refused: {why}"),
                Ok(End::Wrong(why)) => findings.push(why),
                Err(error) => findings.push(format!("an export ended: {error}")),
            }
        }
        for upload in std::mem::take(&mut self.uploads) {
            match upload.await {
                Ok(End::Complete(what)) => {
                    self.complete.uploads += 1;
                    eprintln!("chaos: complete: {what}");
                }
                Ok(End::Refused(why) | End::Wrong(why)) => findings.push(why),
                Err(error) => findings.push(format!("an upload ended: {error}")),
            }
        }
        findings
    }

    /// How many had their end.
    pub(super) const fn complete(&self) -> Complete {
        self.complete
    }
}

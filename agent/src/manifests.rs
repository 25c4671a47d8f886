//! Manifests of machines: each is kept beside the disk of its machine, by the daemon.
//!
//! ```text
//! disk of the node ─► its machine, read from the API server ─► has it the disk? ─► manifest ─► daemon
//! ```
//!
//! After the loss of the cluster's data the manifests are all that says which machine a disk belongs
//! to, and what that machine was.
//!
//! Invariant: a manifest is written only for the machine that has the disk: that of an earlier one
//! stays until another machine has taken the disk over. The same manifest is not sent again.
//! Failure: a manifest that the daemon refuses is reported in an annotation of the node's lease, from
//! which the controller makes a condition, and tried again. While the API server is away nothing is
//! reported. Rounds that stop early for long, for any other reason, are reported for all machines of the
//! node.

mod cluster;
mod rounds;

use std::time::Duration;

use crds::backup::MachineManifest;
use crds::names;
use crds::node_facts::lease_name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use nodeapi::v1::{Disk, ListDisksRequest, SetManifestRequest};
use serde_json::json;
use service::telemetry::one_line;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::daemon::{Daemon, status_message};

pub(crate) use cluster::{Cluster, Obstacle};
use rounds::{Kept, Rounds};

/// Between two looks at the list of disks, at most: a disk that is new gets its manifest with the next
/// one.
const ROUND: Duration = Duration::from_secs(10);
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(15);
/// After so many disks without an answer the API server or the daemon counts as away.
const AWAY: u32 = 3;
const SILENT: &str = "no answer in time";

/// Keeps the manifests of a node's machines.
pub(crate) struct Keeper {
    pub(crate) client: kube::Client,
    pub(crate) daemon: Daemon,
    pub(crate) cluster: Cluster,
    pub(crate) node: String,
    /// Of the node's lease.
    pub(crate) namespace: String,
    /// Between two comparisons of a manifest with its machine.
    pub(crate) interval: Duration,
}

/// Why there is no newer manifest.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    /// The API server or the daemon is away.
    Passing(String),
    /// The machine has no manifest until a user does something.
    Failed(String),
}

impl Keeper {
    /// Keeps them until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(mut self) {
        let mut rounds = Rounds::new(self.interval);
        let mut is_complaining = false;
        loop {
            match self.round(&mut rounds).await {
                Ok(()) => is_complaining = false,
                // It goes on as it began.
                Err(_) if is_complaining => {}
                Err(error) => {
                    is_complaining = true;
                    tracing::warn!(error, "manifests not compared");
                }
            }
            tokio::time::sleep(ROUND.min(self.interval)).await;
        }
    }

    async fn round(&mut self, rounds: &mut Rounds) -> Result<(), String> {
        let compared = self.compare_due(rounds).await;
        if let Err(Obstacle::Silent(text)) = compared {
            return Err(text);
        }
        let compared = compared.map_err(String::from);
        rounds.ended(&compared, Instant::now());
        if let Some(report) = rounds.report(Instant::now()) {
            self.report(report).await?;
            rounds.reported(Instant::now());
        }
        compared
    }

    /// Compares the manifests that are due.
    async fn compare_due(&mut self, rounds: &mut Rounds) -> Result<(), Obstacle> {
        let mut disks = self.disks().await.map_err(Obstacle::Other)?;
        rounds.retain(&disks);
        disks.retain(|disk| rounds.is_due(disk, Instant::now()));
        self.compare_all(&disks, rounds).await
    }

    /// Compares until the API server or the daemon is found to be away.
    async fn compare_all(&mut self, disks: &[Disk], rounds: &mut Rounds) -> Result<(), Obstacle> {
        if disks.is_empty() {
            return Ok(());
        }
        let cluster = self.cluster.uid().await?;
        let mut in_a_row = 0;
        for disk in disks {
            let uid = &disk.vm_uid;
            let sent = rounds.sent(uid, &cluster);
            let compared = self.compare(disk, &cluster, sent).await;
            in_a_row = match compared {
                Err(Problem::Passing(_)) => in_a_row + 1,
                _ => 0,
            };
            match compared {
                Ok(kept) => rounds.kept(uid, &cluster, kept, Instant::now()),
                Err(Problem::Failed(text)) => rounds.failed(uid, &text, Instant::now()),
                Err(Problem::Passing(text)) => {
                    rounds.passed(uid, &text, Instant::now());
                    if in_a_row == AWAY {
                        return Err(Obstacle::Other(text));
                    }
                }
            }
        }
        Ok(())
    }

    async fn disks(&mut self) -> Result<Vec<Disk>, String> {
        let request = self.daemon.list_disks(ListDisksRequest {});
        match timeout(ANSWER, request).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().disks),
            Ok(Err(status)) => Err(status_message(&status)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }

    /// Makes the manifest of a disk that of its machine, unless `sent` is the same.
    async fn compare(
        &mut self,
        disk: &Disk,
        cluster: &str,
        sent: Option<&str>,
    ) -> Result<Kept, Problem> {
        let found = self.machine(disk).await?;
        let found = found
            .as_ref()
            .map(|found| manifest(found, disk, &self.node));
        let manifest = match found {
            None | Some(Ok(None)) => return Ok(Kept::Nothing),
            Some(Ok(Some(manifest))) => manifest,
            Some(Err(text)) => return Err(Problem::Failed(text)),
        };
        if sent == Some(manifest.as_str()) && disk.cluster_uid == cluster {
            return Ok(Kept::Manifest(manifest));
        }
        let request = SetManifestRequest {
            vm_uid: disk.vm_uid.clone(),
            cluster_uid: cluster.to_owned(),
            manifest: manifest.clone().into_bytes(),
        };
        match timeout(ANSWER, self.daemon.set_manifest(request)).await {
            Ok(Ok(_)) => Ok(Kept::Manifest(manifest)),
            // The daemon is older than this agent, or the disk has gone.
            Ok(Err(status)) if is_nothing_to_keep(status.code()) => Ok(Kept::Nothing),
            Ok(Err(status)) if is_passing(status.code()) => {
                Err(Problem::Passing(status_message(&status)))
            }
            Ok(Err(status)) => Err(Problem::Failed(status_message(&status))),
            Err(_) => Err(Problem::Passing(SILENT.to_owned())),
        }
    }

    /// The machine of the disk's name.
    async fn machine(&self, disk: &Disk) -> Result<Option<DynamicObject>, Problem> {
        let Some((namespace, name)) = disk.vm_name.split_once('/') else {
            return Ok(None);
        };
        let kind = ApiResource::erase::<crds::VirtualMachine>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        match timeout(ANSWER, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(problem(&error)),
            Err(_) => Err(Problem::Passing(SILENT.to_owned())),
        }
    }

    async fn report(&self, failures: Option<String>) -> Result<(), String> {
        let is_empty = failures.is_none();
        let value = json!({ names::BACKUP_FAILURES: failures });
        let change = Patch::Merge(json!({ "metadata": { "annotations": value } }));
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = lease_name(&self.node);
        let params = PatchParams::default();
        match timeout(ANSWER, api.patch(&name, &params, &change)).await {
            Ok(Ok(_)) => Ok(()),
            // The first renewal makes the lease, without a report.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && is_empty => Ok(()),
            Ok(Err(error)) => Err(one_line(&error)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }
}

/// One machine that cannot be read keeps no other one from its manifest.
fn problem(error: &kube::Error) -> Problem {
    let is_of_one = match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => {
            (400..500).contains(&status.code) && ![401, 429].contains(&status.code)
        }
        _ => false,
    };
    let text = format!("failed to read the machine: {}", one_line(error));
    if is_of_one {
        Problem::Failed(text)
    } else {
        Problem::Passing(text)
    }
}

const fn is_nothing_to_keep(code: Code) -> bool {
    matches!(
        code,
        Code::Unimplemented | Code::NotFound | Code::FailedPrecondition
    )
}

const fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
    )
}

/// The manifest of a machine, if it has this disk on this node: after a return to an old backup the machine
/// may have got another disk of that UID elsewhere.
fn manifest(found: &DynamicObject, disk: &Disk, node: &str) -> Result<Option<String>, String> {
    let status = found.data["status"].clone();
    let status = match status {
        serde_json::Value::Null => return Ok(None),
        status => serde_json::from_value(status),
    };
    let status =
        status.map_err(|error| format!("the status of the machine cannot be read: {error}"))?;
    let spec = found.data["spec"].clone();
    let manifest = MachineManifest::of_machine(&found.metadata, spec, &status);
    let is_its =
        |made: &MachineManifest| made.record.disk == disk.vm_uid && made.record.node == node;
    let Some(manifest) = manifest.filter(is_its) else {
        return Ok(None);
    };
    let text = manifest.to_json();
    let text = text.map_err(|error| {
        format!(
            "the object of the machine is too large for a manifest: {error}; remove annotations"
        )
    })?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests;

//! Renews this node's lease and writes the node facts to it.
//!
//! Invariant: facts are requested right before each renewal, within deadlines that leave time for
//! it; the Node owns its lease, so that Kubernetes collects the lease of a node that was removed.
//! Failure: a part that does not respond is reported as such; a lease that cannot be written is
//! retried soon.

mod owner;
mod proxy;
#[cfg(test)]
mod state;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crds::node_facts::{DaemonFacts, LEASE_SECONDS, NodeFacts, RENEW_SECONDS, lease_name};
use crds::{TaskKind, names};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use nodeapi::v1::{InfoRequest, InfoResponse};
use service::boot_id;
use service::telemetry::one_line;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use owner::Owner;
pub(crate) use proxy::Proxy;

use crate::announce::Answer;
use crate::daemon::{Daemon, status_message};
use crate::emulation::Emulation;
use crate::metrics::Metrics;
use crate::scale_down::DiskCount;
use crate::tasks::{FIELD_MANAGER, request::object_kind};

/// Longest wait for the daemon.
const DAEMON: Duration = Duration::from_secs(3);
/// Longest wait for the API server.
const API: Duration = Duration::from_secs(8);
/// Wait after a lease that could not be written.
const SOON: Duration = Duration::from_secs(3);
const SILENT: &str = "the API server did not answer in time";

/// What the lease is made of.
pub(crate) struct Renewal {
    pub(crate) client: kube::Client,
    pub(crate) daemon: Daemon,
    /// None where there is no proxy.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) node: String,
    pub(crate) owner: Owner,
    pub(crate) namespace: String,
    pub(crate) boot_id: String,
    pub(crate) machines: Arc<AtomicU32>,
    /// None until they were counted.
    pub(crate) disks: watch::Receiver<Option<DiskCount>>,
    pub(crate) metrics: Arc<Metrics>,
    /// The daemon's last answer, until the events that follow from it are written.
    pub(crate) answered: Option<InfoResponse>,
    /// Each answer of the daemon, or why there is none.
    pub(crate) answers: watch::Sender<Option<Answer>>,
    pub(crate) emulation: Emulation,
}

impl Renewal {
    /// Renews until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut known = DaemonFacts::default();
        let mut complaining = false;
        loop {
            let renewed = tokio::select! {
                () = stop.cancelled() => return,
                renewed = self.renew(&mut known) => renewed,
            };
            self.metrics.wrote("lease", renewed.is_ok());
            if let Some(info) = self.answered.take() {
                let reporting = self.emulation.report(&self.client, &self.node, &info);
                if stop.run_until_cancelled(reporting).await.is_none() {
                    return;
                }
            }
            let pause = match renewed {
                Ok(()) => {
                    complaining = false;
                    Duration::from_secs(RENEW_SECONDS.into())
                }
                Err(error) => {
                    if !complaining {
                        complaining = true;
                        tracing::warn!(error, "node lease not written");
                    }
                    SOON
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn renew(&mut self, known: &mut DaemonFacts) -> Result<(), String> {
        let info = tokio::time::timeout(DAEMON, self.daemon.info(InfoRequest {})).await;
        let answer = match info {
            Ok(Ok(info)) => Ok(info.into_inner()),
            Ok(Err(status)) => Err(status_message(&status)),
            Err(_) => Err("it did not answer in time".to_owned()),
        };
        match &answer {
            Ok(info) => {
                *known = daemon_facts(info.clone());
                self.answered = Some(info.clone());
            }
            Err(message) => {
                known.reachable = false;
                known.message.clone_from(message);
            }
        }
        self.answers.send_replace(Some(answer));
        let proxy = match &mut self.proxy {
            Some(proxy) => Some(proxy.query().await),
            None => None,
        };
        let disks = *self.disks.borrow();
        let facts = NodeFacts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: self.boot_id.clone(),
            features: features(known),
            daemon: known.clone(),
            proxy,
            machines: self.machines.load(Ordering::Relaxed),
            disks: disks.map(|count| count.all),
            unreadable_disks: disks.map(|count| count.unreadable),
        };
        let owner = tokio::time::timeout(API, self.owner.find(&self.client, &self.node)).await;
        let owner = owner.map_err(|_| SILENT.to_owned())??;
        let lease = lease(&self.node, owner, &facts.bounded(), Timestamp::now());
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = lease_name(&self.node);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&lease);
        match tokio::time::timeout(API, api.patch(&name, &params, &patch)).await {
            Ok(Ok(written)) => {
                self.owner.wrote(&written);
                Ok(())
            }
            Ok(Err(e)) => Err(one_line(&e)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }
}

/// The kernel's boot id; empty when it cannot be read.
pub(crate) fn boot_id(file: &Path) -> String {
    boot_id::read(file).unwrap_or_else(|e| {
        tracing::warn!(file = %file.display(), error = %e, "boot ID not read");
        String::new()
    })
}

fn daemon_facts(info: InfoResponse) -> DaemonFacts {
    let kinds = info.task_kinds.iter().map(|kind| object_kind(kind));
    // A later daemon offers kinds whose tasks this agent cannot read.
    let kinds = kinds.filter(|kind| is_known(kind));
    DaemonFacts {
        reachable: true,
        message: String::new(),
        version: info.version,
        installation_id: info.installation_id,
        accelerator: info.accelerator,
        libvirt_version: info.libvirt_version,
        qemu_version: info.qemu_version,
        disk_capacity_bytes: info.disk_capacity_bytes,
        disk_available_bytes: info.disk_available_bytes,
        bound_machines: info.bound_machines,
        task_kinds: kinds.collect(),
        machine_types: info.machine_types,
        features: info.features,
    }
}

fn is_known(kind: &str) -> bool {
    serde_json::from_value::<TaskKind>(kind.into()).is_ok()
}

/// What this agent and its daemon can do together that earlier versions cannot.
fn features(daemon: &DaemonFacts) -> Vec<String> {
    let by_kind = [
        (TaskKind::SetProbe, names::NODE_PROBES),
        (TaskKind::Promote, names::DISK_PROMOTION),
        (TaskKind::CloneDisk, names::DISK_CLONES),
        (TaskKind::Backup, names::DISK_BACKUPS),
    ];
    let offers = |kind: TaskKind| daemon.task_kinds.contains(&format!("{kind:?}"));
    let offered = by_kind.into_iter().filter(|(kind, _)| offers(*kind));
    let mut features: Vec<_> = offered.map(|(_, feature)| feature.to_owned()).collect();
    let has = |feature: &str| daemon.features.iter().any(|known| known == feature);
    if has(names::DISK_MANIFESTS) && offers(TaskKind::Adopt) {
        features.push(names::MACHINE_BACKUP.to_owned());
    }
    if has(names::DISK_PULLS) && offers(TaskKind::Promote) {
        features.push(names::ONLINE_DISK_PROMOTION.to_owned());
    }
    if has(names::SNAPSHOT_MEMORY) && offers(TaskKind::Snapshot) && offers(TaskKind::Revert) {
        features.push(names::MEMORY_SNAPSHOTS.to_owned());
    }
    if has(names::IMAGE_DIGESTS) && offers(TaskKind::InspectImage) {
        features.push(names::IMAGE_UPDATES.to_owned());
    }
    if has(names::IMAGE_CHECKSUMS) && offers(TaskKind::InspectImage) {
        features.push(names::IMAGE_CHECKSUM_UPDATES.to_owned());
    }
    if offers(TaskKind::Backup) {
        let is_target = |known: &&String| {
            known.starts_with(names::BACKUP_TARGET) || *known == names::BACKUP_CLAIMS
        };
        features.extend(daemon.features.iter().filter(is_target).cloned());
    }
    features
}

fn lease(node: &str, owner: Option<OwnerReference>, facts: &NodeFacts, now: Timestamp) -> Lease {
    let pair = |key: &str, value: String| Some(BTreeMap::from([(key.to_owned(), value)]));
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(node)),
            labels: pair(names::NODE_LEASE_LABEL, "true".to_owned()),
            annotations: pair(names::NODE_FACTS, facts.to_json()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

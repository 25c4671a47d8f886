//! Disks on this node whose machine no longer exists.
//!
//! A disk is a *suspect* when the API server reports that no machine has it, and an *orphan* when
//! it still reports it an hour later. The agent reports an orphan, and removes it after a
//! configured time, if the manifest beside it is of this cluster: the disks of a cluster whose data were
//! lost have no machines either, until an administrator recovers them. The agent records the time at which a disk became a suspect in an annotation of
//! the node's lease, and reads it after a restart.
//!
//! Invariant: nothing is concluded from a round in which any answer is missing; a disk that a
//! container has is never a suspect, nor is one whose record cannot be read.
//! Failure: logged, and the next round looks again.

mod judge;

use std::time::Duration;

use crds::names;
use crds::node_facts::lease_name;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use nodeapi::v1::run_task_request::Kind;
use nodeapi::v1::{DeleteDisk, Disk, ListDisksRequest, RunTaskRequest};
use serde_json::json;
use service::telemetry::one_line;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::daemon::{Daemon, status_message};
use crate::event::{self, About, Severity};
use crate::manifests::Cluster;
use judge::{Suspects, Verdict};

pub(crate) use judge::Times;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(15);
const SILENT: &str = "no answer in time";

/// Looks for orphans.
pub(crate) struct Finder {
    pub(crate) client: kube::Client,
    pub(crate) daemon: Daemon,
    pub(crate) cluster: Cluster,
    pub(crate) node: String,
    /// Of the node's lease.
    pub(crate) namespace: String,
    pub(crate) times: Times,
}

impl Finder {
    /// Looks until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.sweep()).await;
    }

    async fn sweep(mut self) {
        let mut suspects: Option<Suspects> = None;
        loop {
            tokio::time::sleep(self.times.sweep).await;
            if let Err(error) = self.next(&mut suspects).await {
                // What memory has may not be recorded: the next round reads the record.
                suspects = None;
                tracing::warn!(error, "search for orphaned disks failed");
            }
        }
    }

    async fn next(&mut self, suspects: &mut Option<Suspects>) -> Result<(), String> {
        let known = match suspects.take() {
            Some(known) => known,
            None => self.recorded().await?,
        };
        self.round(suspects.insert(known)).await
    }

    async fn round(&mut self, suspects: &mut Suspects) -> Result<(), String> {
        let mut without = Vec::new();
        for disk in self.disks().await? {
            if may_be_orphaned(&disk) && !self.has_machine(&disk).await? {
                without.push(disk);
            }
        }
        let mut cluster = String::new();
        if !without.is_empty() {
            cluster = self.cluster.uid().await?;
            own_first(&mut without, &cluster);
        }
        let uids = without.iter().map(|disk| disk.vm_uid.as_str());
        if suspects.found(uids, Timestamp::now()) {
            self.record(suspects).await?;
        }
        for disk in &without {
            let times = times_for(disk, &cluster, self.times);
            match suspects.judge(&disk.vm_uid, &times, Timestamp::now()) {
                Verdict::Wait => {}
                Verdict::Report(removal) => {
                    self.report(disk, &cluster, removal).await?;
                    suspects.reported(&disk.vm_uid);
                }
                Verdict::Remove if self.is_still_orphaned(disk, &cluster).await? => {
                    self.remove(disk).await?;
                }
                Verdict::Remove => {}
            }
        }
        Ok(())
    }

    async fn disks(&mut self) -> Result<Vec<Disk>, String> {
        let request = self.daemon.list_disks(ListDisksRequest {});
        match tokio::time::timeout(ANSWER, request).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().disks),
            Ok(Err(status)) => Err(status_message(&status)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }

    /// Whether the machine of that name has the disk: its own, or one that it adopted, or is to
    /// adopt. A disk without a name counts as owned: its machine cannot be looked up.
    async fn has_machine(&self, disk: &Disk) -> Result<bool, String> {
        let Some((namespace, name)) = disk.vm_name.split_once('/') else {
            return Ok(true);
        };
        let kind = ApiResource::erase::<crds::VirtualMachine>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let found = match tokio::time::timeout(ANSWER, api.get(name)).await {
            Ok(Ok(found)) => found,
            // A server that does not know the kind answers 404, too, and names no object.
            Ok(Err(kube::Error::Api(status)))
                if status.code == 404
                    && status.details.as_ref().is_some_and(|d| d.name == name) =>
            {
                return Ok(false);
            }
            Ok(Err(error)) => return Err(one_line(&error)),
            Err(_) => return Err(SILENT.to_owned()),
        };
        let adopted = found.data["status"]["diskUID"].as_str();
        let own = found.metadata.uid.as_deref();
        let annotations = found.metadata.annotations.as_ref();
        let is_adopting = annotations.is_some_and(|all| all.contains_key(names::ADOPT_DISK));
        let owned = [own, adopted].contains(&Some(disk.vm_uid.as_str()));
        Ok(owned || is_adopting)
    }

    async fn report(
        &self,
        disk: &Disk,
        cluster: &str,
        removal: Option<Timestamp>,
    ) -> Result<(), String> {
        let name = &disk.vm_name;
        let uid = &disk.vm_uid;
        let removal = match removal {
            Some(at) => format!("it is removed at {}", at.strftime("%FT%TZ")),
            None if self.times.remove_after.is_none() => {
                "it stays, since limits.orphan_remove_after is 0s".to_owned()
            }
            None if disk.cluster_uid.is_empty() => {
                "it stays, since it has no manifest that says of which cluster it is".to_owned()
            }
            None if disk.cluster_uid != cluster => format!(
                "it stays, since it is of another cluster: kubectl vmlet recover --node {} lists what \
                 can be recovered",
                self.node
            ),
            None => "it stays".to_owned(),
        };
        let text = format!(
            "no virtual machine {name} has the disk {uid} ({} bytes) any more: {removal}",
            disk.allocated_bytes
        );
        tracing::warn!(vm = uid, name, "orphaned disk found: {removal}");
        let about = About {
            namespace: "default",
            object: event::node(&self.node),
            action: "LookForDisks",
            reason: "OrphanedDisk",
            severity: Severity::Warning,
        };
        event::report(self.client.clone(), &self.node, &about, &[text]).await
    }

    /// The round took a while, in which a machine may have taken the disk over.
    async fn is_still_orphaned(&self, disk: &Disk, cluster: &str) -> Result<bool, String> {
        Ok(self.cluster.uid().await? == cluster && !self.has_machine(disk).await?)
    }

    /// Calls the daemon; the next round finds out whether it is done.
    async fn remove(&mut self, disk: &Disk) -> Result<(), String> {
        let request = RunTaskRequest {
            uid: Uuid::new_v4().to_string(),
            vm_uid: disk.vm_uid.clone(),
            kind: Some(Kind::DeleteDisk(DeleteDisk {})),
        };
        tracing::warn!(
            vm = disk.vm_uid,
            name = disk.vm_name,
            "orphaned disk removed"
        );
        match tokio::time::timeout(ANSWER, self.daemon.run_task(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(status_message(&status)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }

    /// What an earlier agent of this node found. Its rights let it patch the lease, which shows it.
    async fn recorded(&self) -> Result<Suspects, String> {
        let lease = self.patch(json!({})).await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        let text = annotations.get(names::ORPHANED_DISKS);
        Ok(text
            .map(|text| Suspects::from_json(text))
            .unwrap_or_default())
    }

    async fn record(&self, suspects: &Suspects) -> Result<(), String> {
        let value = suspects.to_json();
        let change = json!({ "metadata": { "annotations": { names::ORPHANED_DISKS: value } } });
        self.patch(change).await.map(drop)
    }

    async fn patch(&self, change: serde_json::Value) -> Result<Lease, String> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = lease_name(&self.node);
        let params = PatchParams::default();
        let change = Patch::Merge(change);
        match tokio::time::timeout(ANSWER, api.patch(&name, &params, &change)).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(error)) => Err(one_line(&error)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }
}

/// When something follows for a disk: one that is not known to be of this cluster is never removed.
fn times_for(disk: &Disk, cluster: &str, times: Times) -> Times {
    Times {
        remove_after: times.remove_after.filter(|_| disk.cluster_uid == cluster),
        ..times
    }
}

/// The record is bounded: disks of other clusters, of which none is removed, have what is left of it.
fn own_first(disks: &mut [Disk], cluster: &str) {
    disks.sort_by_key(|disk| disk.cluster_uid != cluster);
}

/// Whether a disk may be without a machine: no container has it, and its record says whose it is.
fn may_be_orphaned(disk: &Disk) -> bool {
    disk.in_use_by.is_empty() && disk.unreadable.is_empty()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use nodeapi::Deadlines;
    use serde_json::Value;
    use tower_test::mock;

    use super::*;

    #[test]
    fn a_disk_whose_record_cannot_be_read_is_no_disk_without_a_machine() {
        let free = Disk {
            vm_name: "default/gone".to_owned(),
            ..Disk::default()
        };
        assert!(may_be_orphaned(&free));
        let busy = Disk {
            in_use_by: "c1".to_owned(),
            ..free.clone()
        };
        let unreadable = Disk {
            unreadable: "the database does not know it".to_owned(),
            ..free
        };
        assert!(!may_be_orphaned(&busy) && !may_be_orphaned(&unreadable));
    }

    /// Whether a disk is removed while the API server has this cluster, and these machines of its name.
    async fn is_removed(cluster: &str, machine: Option<Value>) -> bool {
        let (service, mut api) = mock::pair::<Request<Body>, Response<Body>>();
        let client = kube::Client::new(service, "default");
        let finder = Finder {
            client: client.clone(),
            daemon: nodeapi::connect("/nonexistent/socket", Deadlines::default()).unwrap(),
            cluster: Cluster::new(client),
            node: "n1".to_owned(),
            namespace: "vmlet-system".to_owned(),
            times: Times {
                sweep: ANSWER,
                confirm: ANSWER,
                remove_after: Some(ANSWER),
            },
        };
        let namespace = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": { "name": "kube-system", "uid": cluster },
        });
        let none = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no",
            "reason": "NotFound", "details": { "name": "gone" }, "code": 404,
        });
        let serve = async {
            while let Some((request, reply)) = api.next_request().await {
                let is_machine = request.uri().path().ends_with("/virtualmachines/gone");
                let body = match (is_machine, &machine) {
                    (false, _) => &namespace,
                    (true, found) => found.as_ref().unwrap_or(&none),
                };
                let code = body["code"].as_u64().map_or(200, |_| 404);
                let body = Body::from(body.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
        };
        let disk = Disk {
            vm_uid: "u-1".to_owned(),
            vm_name: "ns/gone".to_owned(),
            ..Disk::default()
        };
        tokio::select! {
            found = finder.is_still_orphaned(&disk, "c-1") => found.unwrap(),
            () = serve => unreachable!("the finder has a client"),
        }
    }

    #[tokio::test]
    async fn a_disk_that_a_machine_took_over_during_the_round_stays() {
        let machine = |annotations: Value, status: Value| {
            Some(json!({
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
                "metadata": { "name": "gone", "namespace": "ns", "uid": "u-2", "annotations": annotations },
                "status": status,
            }))
        };
        assert!(is_removed("c-1", None).await);
        assert!(!is_removed("c-2", None).await, "another cluster");
        let requests = machine(json!({ names::ADOPT_DISK: "" }), json!({}));
        assert!(!is_removed("c-1", requests).await);
        let has = machine(json!({}), json!({ "diskUID": "u-1" }));
        assert!(!is_removed("c-1", has).await);
        assert!(is_removed("c-1", machine(json!({}), json!({}))).await);
    }

    #[test]
    fn disks_of_this_cluster_are_recorded_before_those_of_others() {
        let disk = |uid: &str, cluster: &str| Disk {
            vm_uid: uid.to_owned(),
            cluster_uid: cluster.to_owned(),
            ..Disk::default()
        };
        let mut disks = [
            disk("a", ""),
            disk("b", "c-1"),
            disk("c", "c-2"),
            disk("d", "c-1"),
        ];
        own_first(&mut disks, "c-1");
        let uids: Vec<_> = disks.iter().map(|disk| disk.vm_uid.as_str()).collect();
        assert_eq!(uids, ["b", "d", "a", "c"]);
    }

    #[test]
    fn a_disk_that_is_not_known_to_be_of_this_cluster_is_never_removed() {
        let times = Times {
            sweep: ANSWER,
            confirm: ANSWER,
            remove_after: Some(ANSWER),
        };
        for (cluster, removed) in [("c-1", Some(ANSWER)), ("c-2", None), ("", None)] {
            let disk = Disk {
                cluster_uid: cluster.to_owned(),
                ..Disk::default()
            };
            let found = times_for(&disk, "c-1", times).remove_after;
            assert_eq!(found, removed, "{cluster:?}");
        }
    }
}

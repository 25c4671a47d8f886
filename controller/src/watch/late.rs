//! Kinds that may be installed long after the controller has started: CDI's volumes, Multus' networks,
//! snapshots of storage systems, and replica sets, backups and their schedules, which an earlier version of
//! `deploy/crds` does not have.
//!
//! Invariant: the store is ready at once if the API server does not serve the kind; a watch of its
//! one definition finds the kind, never a timer. Machines that wait for the kind itself are woken
//! when it was listed then.
//! Failure: as for every watch. A kind that is taken away leaves the last known objects, and the
//! watch returns with it.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use crds::guard::Guarded;
use crds::names::SNAPSHOT_UID_LABEL;
use futures_util::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use service::telemetry::one_line;

use super::Shell;
use crate::intake::{Intake, Wakes};
use crate::stores::Feed;

/// Longest time to find out whether the kind is served.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A kind that may come later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    /// The store's.
    name: &'static str,
    api: &'static str,
    plural: &'static str,
    /// Which of its objects count, as a selector of labels; empty: all.
    labels: &'static str,
    /// Who waits for the kind itself, not for an object of it.
    served: fn(&Intake),
}

pub(super) const DATA_VOLUMES: Late = Late {
    name: "data_volumes",
    api: "cdi.kubevirt.io/v1beta1",
    plural: "datavolumes",
    labels: "",
    served: Intake::volumes_are_served,
};

/// Without them the controller serves every other kind: Helm upgrades no definition by itself.
pub(super) const REPLICA_SETS: Late = Late {
    name: "replica_sets",
    api: "vmlet.dev/v1alpha1",
    plural: "virtualmachinereplicasets",
    labels: "",
    // A set that is listed then wakes itself.
    served: |_| (),
};

pub(super) const BACKUPS: Late = Late {
    name: "backups",
    api: "vmlet.dev/v1alpha1",
    plural: "virtualmachinebackups",
    labels: "",
    // A backup that is listed then wakes itself and the machines that are to be made from it.
    served: |_| (),
};

pub(super) const BACKUP_SCHEDULES: Late = Late {
    name: "backup_schedules",
    api: "vmlet.dev/v1alpha1",
    plural: "virtualmachinebackupschedules",
    labels: "",
    // The same.
    served: |_| (),
};

pub(super) const NETWORKS: Late = Late {
    name: "networks",
    api: "k8s.cni.cncf.io/v1",
    plural: "network-attachment-definitions",
    labels: "",
    // A network that is listed then wakes those that name it.
    served: |_| (),
};

/// Those of other users are none of ours, and there can be many.
pub(super) const VOLUME_SNAPSHOTS: Late = Late {
    name: "volume_snapshots",
    api: "snapshot.storage.k8s.io/v1",
    plural: "volumesnapshots",
    labels: SNAPSHOT_UID_LABEL,
    // A snapshot of a machine that needs them fails without them.
    served: |_| (),
};

impl Late {
    /// Name of its definition.
    fn definition(&self) -> String {
        let group = self.api.split('/').next().unwrap_or_default();
        format!("{}.{group}", self.plural)
    }
}

impl Shell {
    /// Keeps the store true, from now on or from when the kind is there.
    pub(super) async fn follow_late<K>(self, late: Late, client: Client, mut feed: Feed<K>)
    where
        K: Wakes + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let ours = super::paged().labels(late.labels);
        let stream = watcher(Api::<Guarded<K>>::all(client.clone()), ours);
        if is_served(&client, late).await {
            self.run(late.name, feed, stream, None).await;
        } else {
            feed.apply(Event::Init);
            feed.apply(Event::InitDone);
            if !self.await_definition(&client, late).await {
                return;
            }
            tracing::info!(definition = late.definition(), "watched kind installed");
            let intake = self.intake.clone();
            // Listed: only now is the kind certain to be served.
            let stream = stream.inspect_ok(move |event| {
                if matches!(event, Event::InitDone) {
                    (late.served)(&intake);
                }
            });
            self.run(late.name, feed, stream, None).await;
        }
    }

    /// Returns when the kind is established; false: the watch ended.
    async fn await_definition(&self, client: &Client, late: Late) -> bool {
        let definition = late.definition();
        let api = Api::<Guarded<CustomResourceDefinition>>::all(client.clone());
        let only = Config::default().fields(&format!("metadata.name={definition}"));
        let mut definitions = pin!(watcher(api, only).default_backoff().touched_objects());
        loop {
            match definitions.try_next().await {
                Ok(Some(found)) if found.0.as_ref().is_ok_and(is_established) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(error) => {
                    self.reports.metrics.watch_error(late.name);
                    tracing::warn!(
                        kind = definition,
                        error = one_line(&error),
                        "watch interrupted"
                    );
                }
            }
        }
    }
}

/// No response is treated as "no": the definition's watch reports the rest.
async fn is_served(client: &Client, late: Late) -> bool {
    let list = tokio::time::timeout(TIMEOUT, client.list_api_group_resources(late.api)).await;
    let mut kinds = list.into_iter().flatten().flat_map(|list| list.resources);
    kinds.any(|kind| kind.name == late.plural)
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|s| &s.conditions);
    let mut established = conditions.flatten().filter(|c| c.type_ == "Established");
    established.any(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every store must be ready before the first pass: a question without an answer would hold up
    /// all of them.
    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_serves_no_data_volumes() {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        assert!(!is_served(&client, DATA_VOLUMES).await);
    }

    #[test]
    fn the_definitions_are_named_as_those_of_their_projects() {
        let names = [DATA_VOLUMES, NETWORKS, VOLUME_SNAPSHOTS].map(|late| late.definition());
        assert_eq!(names[0], "datavolumes.cdi.kubevirt.io");
        assert_eq!(names[1], "network-attachment-definitions.k8s.cni.cncf.io");
        assert_eq!(names[2], "volumesnapshots.snapshot.storage.k8s.io");
    }
}

//! Names of objects of the cluster, of entries of the kubeconfig and of pods of this node, as far as they
//! are given quickly.
//!
//! Invariant: who completes a word waits for [`ANSWER`] at most, whatever a resolver, a helper of
//! the kubeconfig or the API server takes.
//! Failure: no names.

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineBackup, VirtualMachineClass,
    VirtualMachineGroup, VirtualMachineImage, VirtualMachineSnapshot,
};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::Kind;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::context::Endpoint;
use crate::pods;

/// How long a shell is kept waiting.
const ANSWER: Duration = Duration::from_secs(1);
/// More names than a person looks through.
const MOST: u32 = 500;

/// Who is asked.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) cluster: ClusterArgs,
    pub(super) daemon: Option<Endpoint>,
}

/// The names of that kind.
pub(super) fn names(kind: Kind, place: &Place) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let place = place.clone();
    // A helper that fetches credentials would block a runtime; this thread ends with the process.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let Ok(runtime) = runtime {
            let answer = runtime.block_on(answer(kind, &place));
            // The receiver may have given up by now.
            let _ = sender.send(answer);
            runtime.shutdown_background();
        }
    });
    receiver.recv_timeout(ANSWER).unwrap_or_default()
}

async fn answer(kind: Kind, place: &Place) -> Vec<String> {
    match kind {
        Kind::Context | Kind::Cluster | Kind::User => entries(kind, &place.cluster),
        Kind::Pod => of_node(place.daemon.as_ref()).await,
        other => read(other, &place.cluster).await.unwrap_or_default(),
    }
}

/// Names in the kubeconfig.
fn entries(kind: Kind, args: &ClusterArgs) -> Vec<String> {
    let read = match &args.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let Ok(config) = read else {
        return Vec::new();
    };
    match kind {
        Kind::Cluster => config.clusters.into_iter().map(|one| one.name).collect(),
        Kind::User => config.auth_infos.into_iter().map(|one| one.name).collect(),
        _ => config.contexts.into_iter().map(|one| one.name).collect(),
    }
}

/// Names of the pods that the daemon of this node has.
async fn of_node(daemon: Option<&Endpoint>) -> Vec<String> {
    let Some(daemon) = daemon else {
        return Vec::new();
    };
    let Ok(runtime) = daemon.connect().await else {
        return Vec::new();
    };
    let pods = pods::all(&runtime).await.unwrap_or_default();
    let mut names: Vec<_> = pods.iter().map(|pod| pod.name().to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

async fn read(kind: Kind, args: &ClusterArgs) -> Result<Vec<String>, ClusterError> {
    let cluster = args.connect().await?;
    let read = match kind {
        Kind::Machine | Kind::Login => listed(cluster.api::<VirtualMachine>()).await,
        Kind::Image => return Ok(images(&cluster).await),
        Kind::Snapshot => listed(cluster.api::<VirtualMachineSnapshot>()).await,
        Kind::Backup => listed(cluster.api::<VirtualMachineBackup>()).await,
        Kind::Class => listed(cluster.api::<VirtualMachineClass>()).await,
        Kind::Group => listed(cluster.api::<VirtualMachineGroup>()).await,
        Kind::Claim => listed(cluster.api::<PersistentVolumeClaim>()).await,
        Kind::Node => listed(Api::<Node>::all(cluster.client)).await,
        Kind::StorageClass => listed(Api::<StorageClass>::all(cluster.client)).await,
        // Of no cluster.
        Kind::Context | Kind::Cluster | Kind::User | Kind::Pod => return Ok(Vec::new()),
        Kind::Namespace => listed(Api::<Namespace>::all(cluster.client)).await,
    };
    read.map_err(ClusterError::from_api)
}

/// One of the two kinds may be forbidden; an image of the namespace is taken for one of the cluster
/// of the same name.
async fn images(cluster: &Cluster) -> Vec<String> {
    let of_cluster = Api::<ClusterVirtualMachineImage>::all(cluster.client.clone());
    let (own, shared) = tokio::join!(
        listed(cluster.api::<VirtualMachineImage>()),
        listed(of_cluster)
    );
    let mut names = own.unwrap_or_default();
    names.extend(shared.unwrap_or_default());
    names.sort();
    names.dedup();
    names
}

async fn listed<K>(api: Api<K>) -> kube::Result<Vec<String>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let params = ListParams::default().limit(MOST);
    let objects = api.list_metadata(&params).await?;
    Ok(objects.iter().map(ResourceExt::name_any).collect())
}

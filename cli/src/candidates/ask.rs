//! Names of objects of the cluster, as far as it gives them quickly.
//!
//! Invariant: who completes a word waits for [`ANSWER`] at most, whatever a resolver, a helper of
//! the kubeconfig or the API server takes.
//! Failure: no names.

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineClass, VirtualMachineImage,
    VirtualMachineSnapshot,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::Kind;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};

/// How long a shell is kept waiting.
const ANSWER: Duration = Duration::from_secs(1);
/// More names than a person looks through.
const MOST: u32 = 500;

/// The names of that kind.
pub(super) fn names(kind: Kind, args: &ClusterArgs) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let args = args.clone();
    // A helper that fetches credentials would block a runtime; this thread ends with the process.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let Ok(runtime) = runtime {
            let answer = runtime.block_on(read(kind, &args));
            // The receiver may have given up by now.
            let _ = sender.send(answer.unwrap_or_default());
            runtime.shutdown_background();
        }
    });
    receiver.recv_timeout(ANSWER).unwrap_or_default()
}

async fn read(kind: Kind, args: &ClusterArgs) -> Result<Vec<String>, ClusterError> {
    let cluster = args.connect().await?;
    let read = match kind {
        Kind::Machine | Kind::Login => listed(cluster.api::<VirtualMachine>()).await,
        Kind::Image => return Ok(images(&cluster).await),
        Kind::Snapshot => listed(cluster.api::<VirtualMachineSnapshot>()).await,
        Kind::Class => listed(cluster.api::<VirtualMachineClass>()).await,
        Kind::Namespace => listed(Api::<Namespace>::all(cluster.client)).await,
    };
    read.map_err(ClusterError::of)
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

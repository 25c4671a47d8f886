//! Reads the ConfigMaps and Secrets that the daemon waits for before it makes a guest, and the
//! Secrets with certificates for the servers of images.
//!
//! Invariant: an object is read only for a pod or a task of this node that names it, in their own
//! namespace; what is in it goes to the daemon and nowhere else, no log, no event.
//! Failure: an answer that states what is missing; kubelet repeats its request, the controller its
//! task, and the daemon requests the object again. The daemon waits 30 s for an answer: the time for
//! a place and that for the API server have a deadline each, which together are shorter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::VirtualMachineTask;
use crds::guard::Guarded;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, ListParams};
use nodeapi::v1::wanted_source::Kind;
use nodeapi::v1::{ProvideSourceRequest, SourceEvent, WantedSource};
use podspec::{Annotations, GuestData, Source, SourceKind};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, Event, status_message};
use crate::metrics::Metrics;
use crate::objects;

#[cfg(test)]
mod tests;

/// Questions that are worked on at the same time; more wait.
const AT_ONCE: usize = 8;
/// How long a question waits for others; reading takes two requests of 8 s at most.
const PLACE: Duration = Duration::from_secs(10);
/// The annotation that holds the UID by which kubelet and the daemon identify a static pod.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// What gives the agent the right to read an object.
const RIGHT: &str = "give vmlet-agent the right (deploy/agent/sources.yaml)";

/// Why a pod names an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Data for its guest.
    GuestData,
    /// Certificates for the server of its image.
    ImageTls,
}

/// What is in an object, by key, or a sentence for people.
type Found = Result<BTreeMap<String, Vec<u8>>, String>;

/// What answers take.
#[derive(Clone)]
pub(crate) struct Resolver {
    client: kube::Client,
    daemon: Daemon,
    node: Arc<str>,
    metrics: Arc<Metrics>,
    slots: Arc<Semaphore>,
}

impl Resolver {
    pub(crate) fn new(
        client: kube::Client,
        daemon: Daemon,
        node: &str,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            daemon,
            node: node.into(),
            metrics,
            slots: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(
        self,
        mut questions: Receiver<Event<SourceEvent>>,
        stop: CancellationToken,
    ) {
        let mut under_way = JoinSet::new();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = questions.recv() => event,
                Some(_) = under_way.join_next() => continue,
            };
            match event {
                Some(Event::Item(SourceEvent {
                    wanted: Some(wanted),
                    gone: false,
                    ..
                })) => {
                    under_way.spawn(self.clone().answer(wanted));
                }
                // The requests of the daemon end with its process, and the replies in flight have
                // no receiver.
                Some(_) => {}
                None => return,
            }
        }
    }

    async fn answer(mut self, wanted: WantedSource) {
        let found = match place(&self.slots).await {
            Ok(_place) => find(&self.client, &self.node, &wanted).await,
            Err(busy) => Err(busy),
        };
        let namespace = &wanted.pod_namespace;
        let pod = &wanted.pod_name;
        let name = &wanted.name;
        let task = &wanted.task_uid;
        match &found {
            Ok(_) => tracing::info!(namespace, pod, task, name, "source read"),
            Err(reason) => {
                tracing::warn!(namespace, pod, task, name, reason, "source refused");
            }
        }
        self.metrics.source(found.is_ok());
        let (data, error) = match found {
            Ok(data) => (data, String::new()),
            Err(reason) => (BTreeMap::new(), crds::text::printable(&reason, 1024)),
        };
        let id = wanted.id;
        let notified = self
            .daemon
            .provide_source(ProvideSourceRequest { id, data, error });
        if let Err(status) = notified.await {
            tracing::warn!(
                error = status_message(&status),
                "source not accepted by the daemon"
            );
        }
    }
}

/// A place among the questions that are worked on.
async fn place(slots: &Semaphore) -> Result<SemaphorePermit<'_>, String> {
    match tokio::time::timeout(PLACE, slots.acquire()).await {
        Ok(Ok(place)) => Ok(place),
        Ok(Err(_)) | Err(_) => Err(format!(
            "vmlet-agent already waits for the API server with {AT_ONCE} other objects"
        )),
    }
}

/// What the object holds, if the pod may have it.
async fn find(client: &kube::Client, node: &str, wanted: &WantedSource) -> Found {
    let kind = match wanted.kind() {
        Kind::ConfigMap => SourceKind::ConfigMap,
        Kind::Secret => SourceKind::Secret,
    };
    let source = Source::new(kind, &wanted.name).map_err(str::to_owned)?;
    if !wanted.task_uid.is_empty() {
        let all: Api<Guarded<VirtualMachineTask>> = Api::all(client.clone());
        let mine = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let tasks = objects::list(&all, &mine, "the tasks of its node").await?;
        let tasks: Vec<_> = tasks.into_iter().filter_map(|task| task.0.ok()).collect();
        let namespace = of_task(&tasks, wanted, &source)?;
        return secret(client, &namespace, &source, RIGHT).await;
    }
    let advice = "apply deploy/agent/serviceaccount.yaml";
    let pods: Api<Pod> = Api::namespaced(client.clone(), &wanted.pod_namespace);
    let pod = objects::read(&pods, &wanted.pod_name, "its pod", advice).await?;
    let advice = match check(&pod, node, wanted, &source)? {
        Purpose::GuestData => format!(
            "mount it into the pod at {}, or {RIGHT}",
            source.mount_path()
        ),
        Purpose::ImageTls => RIGHT.to_owned(),
    };
    match kind {
        SourceKind::Secret => secret(client, &wanted.pod_namespace, &source, &advice).await,
        SourceKind::ConfigMap => {
            let all: Api<ConfigMap> = Api::namespaced(client.clone(), &wanted.pod_namespace);
            let map = objects::read(&all, source.name(), "it", &advice).await?;
            let texts = map.data.unwrap_or_default();
            let bytes = map.binary_data.unwrap_or_default();
            let texts = texts.into_iter().map(|(k, v)| (k, v.into_bytes()));
            Ok(texts
                .chain(bytes.into_iter().map(|(k, v)| (k, v.0)))
                .collect())
        }
    }
}

/// What is in a Secret.
async fn secret(client: &kube::Client, namespace: &str, source: &Source, advice: &str) -> Found {
    let all: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = objects::read(&all, source.name(), "it", advice).await?;
    let data = secret.data.unwrap_or_default().into_iter();
    Ok(data.map(|(key, value)| (key, value.0)).collect())
}

/// The namespace of the task that names the Secret, if it is a task of this node.
fn of_task(
    tasks: &[VirtualMachineTask],
    wanted: &WantedSource,
    source: &Source,
) -> Result<String, String> {
    let mut of_uid = tasks.iter().filter(|task| {
        let uid = task.metadata.uid.as_deref();
        uid == Some(wanted.task_uid.as_str())
    });
    let task = of_uid
        .next()
        .ok_or("its task does not exist on this node any more")?;
    let named = task.spec.image_tls_secret.as_deref();
    if source.kind != SourceKind::Secret || named != Some(source.name()) {
        return Err("its task does not name it".to_owned());
    }
    Ok(task.vm_namespace().to_owned())
}

/// For what a pod of this node names the object.
fn check(pod: &Pod, node: &str, wanted: &WantedSource, source: &Source) -> Result<Purpose, String> {
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref();
    let known = [uid, annotations.get(CONFIG_HASH).map(String::as_str)];
    if !known.contains(&Some(&*wanted.pod_uid)) {
        return Err("another pod has the name by now".to_owned());
    }
    if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(node) {
        return Err("its pod is not on this node".to_owned());
    }
    let data = GuestData::from_pod(&annotations).map_err(|e| e.to_string())?;
    if data.is_some_and(|data| data.sources().contains(source)) {
        return Ok(Purpose::GuestData);
    }
    let of_image = Annotations::new(&annotations).image_tls_secret();
    match of_image.map_err(|e| e.to_string())? {
        Some(secret) if secret == *source => Ok(Purpose::ImageTls),
        _ => Err("its pod does not name it any more".to_owned()),
    }
}

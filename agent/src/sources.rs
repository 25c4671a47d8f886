//! Reads the ConfigMaps and Secrets that the daemon waits for before it makes a guest.
//!
//! Invariant: an object is read only for a pod of this node that names it in its own namespace;
//! what is in it goes to the daemon and nowhere else, no log, no event.
//! Failure: an answer that states what is missing; kubelet makes the container again, and the
//! daemon asks again.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::Api;
use nodeapi::v1::wanted_source::Kind;
use nodeapi::v1::{ProvideSourceRequest, SourceEvent, WantedSource};
use podspec::{GuestData, Source, SourceKind};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, Event, status_message};
use crate::metrics::Metrics;
use crate::objects;

#[cfg(test)]
mod tests;

/// Questions that are worked on at the same time; more wait.
const AT_ONCE: usize = 8;
/// The annotation that holds the UID by which kubelet and the daemon identify a static pod.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

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
        let _slot = self.slots.acquire().await;
        let found = find(&self.client, &self.node, &wanted).await;
        let (namespace, pod, name) = (&wanted.pod_namespace, &wanted.pod_name, &wanted.name);
        match &found {
            Ok(_) => tracing::info!(namespace, pod, name, "guest data read"),
            Err(reason) => {
                tracing::warn!(namespace, pod, name, reason, "guest data refused");
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
                "guest data not accepted by the daemon"
            );
        }
    }
}

/// What the object holds, if the pod may have it.
async fn find(client: &kube::Client, node: &str, wanted: &WantedSource) -> Found {
    let kind = match wanted.kind() {
        Kind::ConfigMap => SourceKind::ConfigMap,
        Kind::Secret => SourceKind::Secret,
    };
    let source = Source::new(kind, &wanted.name).map_err(str::to_owned)?;
    let advice = "apply deploy/agent/serviceaccount.yaml";
    let pods: Api<Pod> = Api::namespaced(client.clone(), &wanted.pod_namespace);
    let pod = objects::read(&pods, &wanted.pod_name, "its pod", advice).await?;
    check(&pod, node, wanted, &source)?;
    let advice = format!(
        "mount it into the pod at {}, or give vmlet-agent the right (deploy/agent/sources.yaml)",
        source.mount_path()
    );
    match kind {
        SourceKind::Secret => {
            let all: Api<Secret> = Api::namespaced(client.clone(), &wanted.pod_namespace);
            let secret = objects::read(&all, source.name(), "it", &advice).await?;
            let data = secret.data.unwrap_or_default();
            Ok(data
                .into_iter()
                .map(|(key, value)| (key, value.0))
                .collect())
        }
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

/// Whether a pod of this node names the object.
fn check(pod: &Pod, node: &str, wanted: &WantedSource, source: &Source) -> Result<(), String> {
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
    let names_it = data.is_some_and(|data| data.sources().contains(source));
    if names_it {
        Ok(())
    } else {
        Err("its pod does not name it any more".to_owned())
    }
}

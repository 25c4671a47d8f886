//! A runtime in memory, with everything that can go wrong with one.
//!
//! Invariant: its objects live on when it is killed, as a real runtime's do.
//! Failure: it does what its [`Mood`] specifies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cri_proto::v1;
use cri_proto::v1::image_service_server::ImageServiceServer;
use cri_proto::v1::runtime_service_server::RuntimeServiceServer;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;

/// Calls on one connection that it serves at once.
pub(crate) const STREAMS: u32 = 256;

/// What it does with a call.
#[derive(Debug, Clone, Default)]
pub(crate) enum Mood {
    /// Answers.
    #[default]
    Well,
    /// Never answers.
    Hung,
    /// Answers as many calls as there are permits, and the others when there are more. A client
    /// that requests events needs no permit.
    Held(Arc<Semaphore>),
    /// Refuses.
    Refusing(Status),
    /// Answers, but never this method.
    Lasting(&'static str),
}

/// What it has.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) sandboxes: BTreeMap<String, v1::PodSandbox>,
    pub(crate) containers: BTreeMap<String, v1::Container>,
    pub(crate) images: BTreeMap<String, v1::Image>,
    pub(crate) calls: Vec<String>,
    pub(crate) handlers: Vec<String>,
    pub(crate) descriptors: Vec<v1::MetricDescriptor>,
    pub(crate) metrics: Vec<v1::PodSandboxMetrics>,
    pub(crate) mood: Mood,
    /// Listeners for events; `None` when it has no such method.
    pub(crate) events: Option<tokio::sync::broadcast::Sender<v1::ContainerEventResponse>>,
    pub(crate) runs: Vec<v1::RunPodSandboxRequest>,
    /// The time of each pod's status.
    pub(crate) time: i64,
    made: u64,
}

/// A runtime.
#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) socket: PathBuf,
    pub(crate) inner: Inner,
    server: Option<Runtime>,
}

#[derive(Debug, Clone)]
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) suffix: String,
    pub(crate) state: Arc<Mutex<State>>,
}

impl Fake {
    /// A runtime that does not run yet; its ids end with `suffix`.
    pub(crate) fn new(dir: &Path, name: &str, suffix: &str) -> Self {
        let inner = Inner {
            name: name.into(),
            suffix: suffix.into(),
            state: Arc::default(),
        };
        Self {
            socket: dir.join(format!("{name}.sock")),
            inner,
            server: None,
        }
    }

    pub(crate) fn start(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.enter();
        let listener = UnixListener::bind(&self.socket).unwrap();
        drop(guard);
        let runtime_service = RuntimeServiceServer::new(self.inner.clone())
            .max_encoding_message_size(cri_proto::MAX_MESSAGE)
            .max_decoding_message_size(cri_proto::MAX_MESSAGE);
        let image_service = ImageServiceServer::new(self.inner.clone());
        runtime.spawn(
            tonic::transport::Server::builder()
                .max_concurrent_streams(STREAMS)
                .add_service(runtime_service)
                .add_service(image_service)
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        self.server = Some(runtime);
    }

    /// Gone at once, connections and all.
    pub(crate) fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.with(|state| state.mood = mood);
    }

    pub(crate) fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.inner.state.lock().unwrap())
    }

    /// The calls so far, and forgets them.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    /// Whether a call was made since [`Fake::calls`] was last queried.
    pub(crate) fn was_called(&self, call: &str) -> bool {
        self.with(|state| state.calls.iter().any(|c| c == call))
    }

    pub(crate) fn add_image(&self, id: &str, tag: &str) {
        let image = v1::Image {
            id: id.into(),
            repo_tags: vec![tag.into()],
            size: 1,
            ..Default::default()
        };
        self.with(|state| state.images.insert(id.into(), image));
    }

    /// From now on it sends events.
    pub(crate) fn have_events(&self) {
        self.with(|state| state.events = Some(tokio::sync::broadcast::channel(100).0));
    }

    pub(crate) fn emit(&self, id: &str, event: v1::ContainerEventType) {
        let event = v1::ContainerEventResponse {
            container_id: id.into(),
            container_event_type: event.into(),
            ..Default::default()
        };
        self.with(|state| state.events.as_ref().unwrap().send(event).unwrap());
    }

    /// Whether the proxy is subscribed.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.with(|state| state.events.as_ref().unwrap().receiver_count() > 0)
    }

    pub(crate) fn add_sandbox(&self, id: &str) {
        let sandbox = v1::PodSandbox {
            id: id.into(),
            metadata: Some(v1::PodSandboxMetadata::default()),
            created_at: 1,
            ..Default::default()
        };
        self.with(|state| state.sandboxes.insert(id.into(), sandbox));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Inner {
    pub(crate) async fn enter(&self, call: &str) -> Result<(), Status> {
        let mood = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(call.into());
            state.mood.clone()
        };
        match mood {
            Mood::Well => Ok(()),
            Mood::Hung => std::future::pending().await,
            Mood::Held(_) if call == "GetContainerEvents" => Ok(()),
            Mood::Held(permits) => {
                permits.acquire().await.unwrap().forget();
                Ok(())
            }
            Mood::Refusing(status) => Err(status),
            Mood::Lasting(method) if method == call => std::future::pending().await,
            Mood::Lasting(_) => Ok(()),
        }
    }

    pub(crate) fn new_id(&self) -> String {
        let mut state = self.state.lock().unwrap();
        state.made += 1;
        let kind = u64::from(self.suffix.is_empty());
        let start = format!("{kind}{:08x}", state.made);
        let width = 64 - start.len() - self.suffix.len();
        format!("{start}{:0<width$}{}", "", self.suffix)
    }
}

//! A CRI runtime with one table of sandboxes and one of containers, on a socket.
//!
//! Invariant: every request is recorded, in order of arrival, before it is answered.
//! Failure: whatever the scenario requests.

mod images;
mod runtime;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use cri_proto::v1::image_service_server::ImageServiceServer;
use cri_proto::v1::runtime_service_server::RuntimeServiceServer;
use cri_proto::v1::{ContainerConfig, ContainerState, PodSandboxConfig};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Response, Status};

type Reply<T> = Result<Response<T>, Status>;

/// How this runtime behaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scenario {
    /// This method is refused.
    pub(crate) refuse: Option<&'static str>,
    /// The guest ends with this code as soon as it has started.
    pub(crate) ends_with: Option<i32>,
    /// A pull never ends.
    pub(crate) endless_pull: bool,
    /// The guest does not go down when it is asked.
    pub(crate) stubborn: bool,
    pub(crate) console: Option<PathBuf>,
}

/// The runtime; clones share everything.
#[derive(Clone)]
pub(crate) struct Fake {
    scenario: Scenario,
    state: Arc<Mutex<State>>,
    calls: watch::Sender<Vec<String>>,
}

/// The process of a daemon.
pub(crate) struct Server(Option<Runtime>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, PodSandboxConfig>,
    containers: BTreeMap<String, Vm>,
    made: usize,
}

struct Vm {
    sandbox: String,
    config: ContainerConfig,
    log: PathBuf,
    state: ContainerState,
    exit_code: i32,
}

impl Fake {
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            state: Arc::default(),
            calls: watch::channel(Vec::new()).0,
        }
    }

    /// Serves on `socket` until the result is dropped, which breaks every connection.
    pub(crate) fn serve(&self, socket: &Path) -> Server {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(RuntimeServiceServer::new(self.clone()))
            .add_service(ImageServiceServer::new(self.clone()));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            server.serve_with_incoming(incoming).await
        });
        Server(Some(runtime))
    }

    /// Forgets the requests so far.
    pub(crate) fn forget(&self) {
        self.calls.send_modify(Vec::clear);
    }

    /// Requests that change something, and what became of them.
    pub(crate) fn changes(&self) -> Vec<String> {
        let asks = [
            "Version",
            "Status",
            "List",
            "PodSandboxStatus",
            "Container",
            "Image",
        ];
        let is_change = |call: &&String| !asks.iter().any(|ask| call.starts_with(ask));
        self.calls
            .borrow()
            .iter()
            .filter(is_change)
            .cloned()
            .collect()
    }

    /// Waits until a request has come that begins so.
    pub(crate) async fn called(&self, call: &str) {
        let mut calls = self.calls.subscribe();
        let seen = calls.wait_for(|calls| calls.iter().any(|c| c.starts_with(call)));
        drop(super::soon(seen).await.unwrap());
    }

    /// Waits until so many requests have come that begin so.
    pub(crate) async fn called_times(&self, call: &str, times: usize) {
        let mut calls = self.calls.subscribe();
        let count = |calls: &Vec<String>| calls.iter().filter(|c| c.starts_with(call)).count();
        let seen = calls.wait_for(|calls| count(calls) >= times);
        drop(super::soon(seen).await.unwrap());
    }

    pub(crate) fn sandbox_configs(&self) -> Vec<PodSandboxConfig> {
        self.lock().sandboxes.values().cloned().collect()
    }

    pub(crate) fn container_configs(&self) -> Vec<ContainerConfig> {
        self.lock()
            .containers
            .values()
            .map(|vm| vm.config.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn record(&self, call: impl Into<String>) {
        self.calls.send_modify(|calls| calls.push(call.into()));
    }

    fn enter(&self, method: &'static str) -> Result<(), Status> {
        self.record(method);
        if self.scenario.refuse == Some(method) {
            Err(Status::internal(format!("{method} is out of order")))
        } else {
            Ok(())
        }
    }

    fn write_console(vm: &Vm, text: &str) {
        use std::io::Write;
        let mut log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&vm.log)
            .unwrap();
        writeln!(log, "2026-11-21T10:00:00.000000000Z stdout F {text}").unwrap();
    }

    fn end(&self, id: &str, code: i32) {
        if let Some(vm) = self.lock().containers.get_mut(id)
            && vm.state == ContainerState::ContainerRunning
        {
            Self::write_console(vm, "guest: bye");
            vm.state = ContainerState::ContainerExited;
            vm.exit_code = code;
        }
    }
}

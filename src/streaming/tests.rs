//! The server with real clients, over real connections.
//!
//! Invariant: the hypervisor is the only part that is not real; sockets are in the place of a
//! machine's ports.
//! Failure: the assertion shows what came.

mod exec;
mod load;
mod places;
mod tls;
mod websocket;

use std::path::PathBuf;
use std::time::Duration;

use podspec::ContainerId;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpStream, UnixListener};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::machine_socket::MachineSocket;
use crate::testkit::Node;

const SOON: Duration = Duration::from_secs(60);

/// A server with a machine.
struct Server {
    gate: Arc<Gate>,
    node: Node,
    machine: ContainerId,
    closing: CancellationToken,
    serving: AbortOnDropHandle<()>,
}

impl Server {
    async fn start() -> Self {
        Self::with(None).await
    }

    async fn with(tls: Option<&super::tls::Files>) -> Self {
        let node = Node::new().await;
        let machine = node.started().await;
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let streaming = Streaming::bind(address, tls).await.unwrap();
        let gate = streaming.gate();
        let closing = CancellationToken::new();
        let serving = streaming.serve(Arc::clone(&node.containers), closing.clone());
        Self {
            gate,
            node,
            machine,
            closing,
            serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    /// The URL of a session with a machine.
    fn url(&self, machine: &ContainerId, target: Target) -> String {
        let pod = Pod {
            namespace: "default".into(),
            sandbox: machine.as_str().into(),
        };
        self.gate.url(pod, target).unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.gate.address).await.unwrap()
    }

    /// The machine's console, and a session for it.
    fn console(&self, streams: Wanted) -> (UnixListener, Target) {
        // No emulator reads it; the hand-off may still have it open.
        let raw = self.node.containers.paths().console_file(&self.machine);
        std::fs::remove_file(raw.with_extension("raw.in")).unwrap();
        let socket = self.socket("console");
        let listener = UnixListener::bind(&socket).unwrap();
        let target = Target::Attach(AttachTarget {
            container: self.machine.clone(),
            socket: Some(MachineSocket {
                path: socket,
                user: nix::unistd::geteuid().as_raw(),
            }),
            streams,
        });
        (listener, target)
    }

    /// Another machine.
    async fn another(&self, name: &str) -> ContainerId {
        let sandbox = self.node.annotated(name, &[]).await;
        let containers = &self.node.containers;
        let machine = containers
            .create(&sandbox, self.node.machine(0))
            .await
            .unwrap();
        containers.start(&machine).await.unwrap();
        machine
    }

    /// Runs `vmlet-guest` in the place of a machine, and waits for it as a request for `exec` does.
    async fn guest(&self, machine: &ContainerId) {
        let socket = self.node.containers.paths().guest_socket(machine);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let port = ::guest::Port::of_socket(connection.unwrap()).unwrap();
                // It serves until the daemon disconnects.
                let _ = ::guest::serve(&port, &crate::testkit::no_places());
            }
        });
        assert_eq!(self.run(machine, &["true"]).await, Ok(0));
    }

    /// Runs a command, and waits for its end.
    async fn run(&self, machine: &ContainerId, command: &[&str]) -> Result<i32, String> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let agent = self.node.containers.guest_agent(machine, SOON).await;
        let agent = agent.map_err(|e| crate::one_line(&e))?.ok_or("no agent")?;
        let started = agent.start(command, false, None).await;
        let mut started = started.map_err(|e| e.to_string())?;
        started
            .ended
            .wait()
            .await
            .map(|end| end.code)
            .map_err(|e| e.to_string())
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.node.containers.paths().pods().join(name)
    }
}

/// Fails when it takes too long.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(SOON, future).await;
    ended.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

async fn exactly(source: &mut (impl AsyncRead + Unpin), length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    soon("bytes", source.read_exact(&mut bytes)).await.unwrap();
    bytes
}

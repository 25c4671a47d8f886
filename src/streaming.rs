//! The streaming server: `exec`, `attach` and `port-forward` of kubectl and crictl.
//!
//! ```text
//! CRI request ─► token, URL ─► HTTP upgrade with the token ─► session, SPDY or WebSocket ─► guest
//! ```
//!
//! Invariant: a session starts only with a token, which a CRI client got for that very request and
//! which is worth one session within a minute. Connections without a session, sessions of a pod and
//! those of a namespace have bounds of their own. A session holds no lock and no row: the daemon's end
//! or that of the client ends it at once.
//! Failure: [`Error`] when the address cannot be had; a session that fails reports it to its
//! client.

mod attach;
mod console;
mod exec;
mod places;
mod port_forward;
mod process;
mod server;
mod streams;
pub mod tls;
mod tokens;
mod websocket;

use std::net::SocketAddr;
use std::sync::Arc;

use podspec::ContainerId;
use tapmanager::wire::PodRoute;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::machine_socket::MachineSocket;
use crate::platform::Platform;
use crate::vm::Containers;
use places::SessionPlaces;
use tokens::Tokens;

pub use places::Pod;
pub use streams::Wanted;
pub use tokens::TooMany;

/// Why there is no streaming server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error("listen on {address} for exec, attach and port-forward: set streaming.listen")]
    Listen {
        /// The address of the configuration.
        address: SocketAddr,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// TLS is requested and cannot be had.
    #[error("TLS for exec, attach and port-forward: see streaming.tls_cert and streaming.tls_key")]
    Tls(#[from] tls::Error),
}

/// Why sessions end when the daemon does.
const CLOSING: &str = "the node's vmlet daemon shuts down, which ends the session: start it again";

/// What a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A command in a running machine.
    Exec(ExecTarget),
    /// The serial console of a machine, or the streams of a process.
    Attach(AttachTarget),
    /// Connections to a guest.
    PortForward(PortForwardTarget),
}

/// Connections to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortForwardTarget {
    /// The guest's addresses, of which the first one that accepts is used, and the links to it.
    pub addresses: Vec<PodRoute>,
    /// The ports of the request. Clients over SPDY name the port of each connection themselves.
    pub ports: Vec<u16>,
}

/// A command in a running machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecTarget {
    /// The machine.
    pub container: ContainerId,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// What the client reads.
    pub streams: Wanted,
}

/// The serial console of a machine, or the streams of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachTarget {
    /// The machine.
    pub container: ContainerId,
    /// The socket of its console; `None` for a process.
    pub socket: Option<MachineSocket>,
    /// What the client reads and sends.
    pub streams: Wanted,
}

impl Target {
    /// The first part of the path in the URL.
    const fn path(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// What a token is for.
#[derive(Debug, PartialEq, Eq)]
struct Admission {
    pod: Pod,
    target: Target,
}

/// Tokens of sessions that may start, and where.
#[derive(Debug)]
pub struct Gate {
    tokens: Tokens<Admission>,
    places: SessionPlaces,
    address: SocketAddr,
    scheme: &'static str,
}

impl Gate {
    /// The URL of one session with this pod.
    ///
    /// # Errors
    ///
    /// [`TooMany`] sessions were requested and have not started.
    pub fn url(&self, pod: Pod, target: Target) -> Result<String, TooMany> {
        let path = target.path();
        let namespace = Arc::clone(&pod.namespace);
        let token = self.tokens.issue(&namespace, Admission { pod, target })?;
        Ok(format!("{}://{}/{path}/{token}", self.scheme, self.address))
    }
}

/// The bound server.
pub struct Streaming {
    listener: TcpListener,
    tls: Option<Arc<tls::Tls>>,
    gate: Arc<Gate>,
}

impl std::fmt::Debug for Streaming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Streaming").field(&self.gate).finish()
    }
}

impl Streaming {
    /// Binds the address; port 0 is any free one. With files of TLS, sessions need it.
    pub async fn bind(address: SocketAddr, files: Option<&tls::Files>) -> Result<Self, Error> {
        let tls = match files {
            Some(files) => Some(Arc::new(tls::Tls::load(files.clone()).await?)),
            None => None,
        };
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let gate = Gate {
            tokens: Tokens::default(),
            places: SessionPlaces::default(),
            address,
            scheme: if tls.is_some() { "https" } else { "http" },
        };
        Ok(Self {
            listener,
            tls,
            gate: Arc::new(gate),
        })
    }

    /// Issues URLs of sessions.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Serves until `closing`, then tells each client why its session ends, and returns when all
    /// have ended. Dropped, it ends every session at once.
    pub async fn serve<P: Platform>(
        self,
        containers: Arc<Containers<P>>,
        closing: CancellationToken,
    ) {
        tracing::info!(address = %self.gate.address, "streaming server started");
        server::serve(self.listener, self.tls, self.gate, containers, closing).await;
    }
}

#[cfg(test)]
mod tests;

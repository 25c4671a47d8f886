//! kubelet's health page and the proxy's socket, on loopback.
//!
//! Invariant: both look at the files of the script that stands for the service manager: the proxy answers while it
//! is active; kubelet is well unless it is behind the proxy and the test has made it fail there.
//! Failure: a panic in a thread, and no answer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use cri_proto::v1;
use cri_proto::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// Serves kubelet's health page until the process ends.
pub(crate) fn healthz(state: &Path) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let state = state.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap_or_default();
            assert!(request[..read].starts_with(b"GET /healthz HTTP/1.0\r\n"));
            let is_ill = state.join("ill").exists()
                || state.join("ill-behind").exists() && state.join("behind").exists();
            let answer: &[u8] = if is_ill {
                b"HTTP/1.0 500 Internal Server Error\r\n\r\nsyncloop failed"
            } else {
                b"HTTP/1.0 200 OK\r\n\r\nok"
            };
            // The program may have given up meanwhile.
            let _ = stream.write_all(answer);
        }
    });
    address
}

/// A proxy in front of a runtime.
struct Proxy {
    state: PathBuf,
}

#[tonic::async_trait]
impl RuntimeService for Proxy {
    async fn version(
        &self,
        _: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        if self.state.join("runtime-away").exists() {
            return Err(Status::unavailable("containerd is away"));
        }
        let active = std::fs::read(self.state.join("active"));
        let program = active.map_err(|_| Status::unavailable("the proxy does not run"))?;
        if program == b"bad" {
            return Err(Status::internal("a bad build"));
        }
        Ok(Response::new(v1::VersionResponse {
            runtime_name: String::from_utf8_lossy(&program).into_owned(),
            ..v1::VersionResponse::default()
        }))
    }
}

/// Serves the socket of the proxy.
pub(crate) fn proxy(socket: &Path, state: &Path) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let service = RuntimeServiceServer::new(Proxy {
        state: state.to_owned(),
    });
    let guard = runtime.enter();
    let listener = UnixListener::bind(socket).unwrap();
    drop(guard);
    let server = tonic::transport::Server::builder().add_service(service);
    runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    runtime
}

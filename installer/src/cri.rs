//! One call of CRI, `Version`.
//!
//! Invariant: it ends within the time that it is given.
//! Failure: names the socket, and what the runtime or the connection says.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use cri_proto::v1::{VersionRequest, VersionResponse};
use tonic::transport::Endpoint;

/// Calls `Version` of the runtime that listens on a socket.
pub(crate) fn version(socket: &Path, timeout: Duration) -> Result<VersionResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to prepare a call")?;
    let answer = runtime.block_on(async { tokio::time::timeout(timeout, call(socket)).await });
    let answer = answer.with_context(|| format!("no answer within {timeout:?}"));
    answer
        .flatten()
        .with_context(|| format!("failed to call the runtime at {}", socket.display()))
}

async fn call(socket: &Path) -> Result<VersionResponse> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let mut client = RuntimeServiceClient::new(endpoint.connect().await?);
    let answer = client.version(VersionRequest::default()).await;
    let answer = answer.map_err(|status| anyhow!("the runtime refuses: {}", status.message()))?;
    Ok(answer.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_no_runtime_is_an_error_that_names_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let failed = || format!("{:#}", version(&path, Duration::from_secs(60)).unwrap_err());
        let missing = failed();
        assert!(missing.contains("a.sock"), "{missing}");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"PRI * HTTP/2.0\r\n"));
            let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            stream.write_all(answer).unwrap();
        });
        let other = failed();
        assert!(other.contains("a.sock"), "{other}");
        server.join().unwrap();
    }

    #[test]
    fn a_runtime_that_does_not_answer_is_an_error_after_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let error = version(&path, Duration::from_millis(10)).unwrap_err();
        assert!(format!("{error:#}").contains("within 10ms"), "{error:#}");
    }
}

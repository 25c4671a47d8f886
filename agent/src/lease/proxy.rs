//! Queries the status of the CRI proxy.
//!
//! Invariant: one question with a short deadline; the answer is bounded by the reader of the facts.
//! Failure: a proxy that does not respond is reported as unreachable, with the reason.

use std::time::Duration;

use crds::node_facts::ProxyFacts;
use cri_proto::v1::StatusRequest;
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use nodeapi::Deadlines;
use tonic::transport::Channel;

use crate::daemon::status_message;

/// Longest wait for the proxy, which itself waits at most 2 s for a runtime.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Key of the proxy's version in its verbose status.
const VERSION: &str = "vmlet-criproxy/version";
/// Whether it reaches the daemon.
const READY: &str = "VmletRuntimeReady";

/// The proxy's client.
pub(crate) struct Proxy {
    client: RuntimeServiceClient<Channel>,
    /// Its version, from its last response.
    version: String,
}

impl Proxy {
    /// A client for the proxy at `endpoint`.
    pub(crate) fn connect(endpoint: &str) -> Result<Self, nodeapi::client::Error> {
        let channel = nodeapi::client::channel(endpoint, Deadlines::default())?;
        Ok(Self {
            client: RuntimeServiceClient::new(channel),
            version: String::new(),
        })
    }

    /// How it is now.
    pub(super) async fn query(&mut self) -> ProxyFacts {
        let request = StatusRequest { verbose: true };
        let response = tokio::time::timeout(TIMEOUT, self.client.status(request)).await;
        let away = |message| ProxyFacts {
            message,
            version: self.version.clone(),
            ..ProxyFacts::default()
        };
        let answer = match response {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return away(status_message(&status)),
            Err(_) => return away("it did not answer in time".to_owned()),
        };
        let version = answer.info.get(VERSION).cloned().unwrap_or_default();
        self.version = crds::text::printable(&version, 64);
        let conditions = answer.status.unwrap_or_default().conditions;
        ProxyFacts {
            reachable: true,
            message: String::new(),
            version: self.version.clone(),
            runtime_ready: conditions.iter().any(|c| c.r#type == READY && c.status),
        }
    }
}

//! Which cluster this is: the UID of the namespace `kube-system`, which lives as long as the
//! cluster's data.
//!
//! Invariant: it is read for each round: the API server may have other data than a minute ago.
//! Failure: an [`Obstacle`].

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use service::telemetry::one_line;
use tokio::time::timeout;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(15);

/// What prevents work for which the API server is needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The API server does not answer: it takes no report either.
    Silent(String),
    /// It answers, and it or the daemon refuses.
    Other(String),
}

impl From<Obstacle> for String {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Silent(text) | Obstacle::Other(text) => text,
        }
    }
}

/// The cluster that the API server serves.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
}

impl Cluster {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Its UID.
    pub(crate) async fn uid(&self) -> Result<String, Obstacle> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = match timeout(ANSWER, api.get_metadata("kube-system")).await {
            Ok(found) => found.map_err(|error| obstacle(&error))?,
            Err(_) => return Err(Obstacle::Silent("no answer in time".to_owned())),
        };
        let uid = found.metadata.uid;
        uid.ok_or_else(|| Obstacle::Other("namespace kube-system has no UID".to_owned()))
    }
}

fn obstacle(error: &kube::Error) -> Obstacle {
    let text = format!("failed to read namespace kube-system: {}", one_line(error));
    match error {
        kube::Error::Api(_) | kube::Error::SerdeError(_) => Obstacle::Other(text),
        _ => Obstacle::Silent(text),
    }
}

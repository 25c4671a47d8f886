//! Consoles and ports of guests, by the API server alone: the subresources of the pod, over WebSocket.
//!
//! Invariant: a connection needs `pods/attach` or `pods/portforward` and no right to read anything; what is read
//! besides, for better words, may be forbidden ([`Seen::Hidden`]); a read that fails otherwise is an error.
//! Failure: [`ReachError`]. An end of a connection is none: [`Ended`] has the reason of the other side.

mod carry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, PostParams};
use kube::client::{Connection, UpgradeConnectionError};
use kube::core::Request;
use kube::{Api, Resource};
use tokio::time::{Instant, sleep};

pub(crate) use carry::{Broken, Ended, Line, carry};

use super::{Cluster, ClusterArgs, ClusterError};
use crate::table::printable;

/// Time for which an API server that has just started may refuse what this user may do.
const STARTING: Duration = Duration::from_secs(60);
/// Pause before the next attempt meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// The API server's words about a pod that the scheduler has not placed yet.
const UNPLACED: &str = "does not have a host assigned";

/// A way to the guest of one pod.
#[derive(Clone)]
pub(crate) struct Reach {
    pub(crate) cluster: Cluster,
    /// Of the machine and its pod.
    pub(crate) name: String,
    answer: Option<Duration>,
    /// The API server has shown that this user may connect.
    was_allowed: Arc<AtomicBool>,
}

/// An object that is read for better words.
#[derive(Debug)]
pub(crate) enum Seen<K> {
    There(K),
    Absent,
    /// This user may not read it.
    Hidden,
}

impl<K> Seen<K> {
    pub(crate) fn object(self) -> Option<K> {
        match self {
            Self::There(object) => Some(object),
            Self::Absent | Self::Hidden => None,
        }
    }
}

/// No connection to a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    #[error(
        "not allowed: {verb} needs the rights get and create on {resource} in namespace {namespace}; ask an \
         administrator for a role that has them, such as edit"
    )]
    Forbidden {
        verb: &'static str,
        resource: &'static str,
        namespace: String,
    },
    #[error("no pod {name} in namespace {namespace}: no machine of this name runs there")]
    NoPod { namespace: String, name: String },
    #[error("the API server refuses the connection to pod {name}: {words}")]
    Refused { name: String, words: String },
    #[error("the API server does not reach pod {name}: {words}")]
    Away { name: String, words: String },
    #[error("the API server does not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("failed to connect to pod {name} by the API server")]
    Connect {
        name: String,
        #[source]
        source: ClusterError,
    },
    #[error("failed to read {name} from the API server")]
    Look {
        name: String,
        #[source]
        source: ClusterError,
    },
}

impl ReachError {
    /// Whether a later attempt may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Forbidden { .. } | Self::Refused { .. } => false,
            Self::NoPod { .. } | Self::Away { .. } | Self::Late(_) => true,
            Self::Connect { source, .. } => {
                source.is_transient() || matches!(source, ClusterError::NotFound { .. })
            }
            Self::Look { source, .. } => source.is_transient(),
        }
    }
}

impl Line {
    const fn verb(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Port => "port-forward",
        }
    }

    const fn resource(self) -> &'static str {
        match self {
            Self::Console => "pods/attach",
            Self::Port => "pods/portforward",
        }
    }
}

impl Reach {
    /// The way to a machine, or to a VM pod. Sends no request.
    pub(crate) async fn new(args: &ClusterArgs, word: &str) -> anyhow::Result<Self> {
        let name = name(word)?;
        Ok(Self {
            cluster: args.connect_to_follow().await?,
            name: name.to_owned(),
            answer: args.request_timeout.0,
            was_allowed: Arc::default(),
        })
    }

    /// Connects to the console.
    pub(crate) async fn attach(
        &self,
        container: Option<&str>,
        has_input: bool,
    ) -> Result<Connection, ReachError> {
        let params = AttachParams {
            container: container.map(str::to_owned),
            stdin: has_input,
            stdout: true,
            stderr: false,
            tty: false,
            ..AttachParams::default()
        };
        let request = Request::new(self.pods()).attach(&self.name, &params);
        self.connect(Line::Console, request).await
    }

    /// Connects to a port of the guest.
    pub(crate) async fn forward(&self, port: u16) -> Result<Connection, ReachError> {
        let request = Request::new(self.pods()).portforward(&self.name, &[port]);
        self.connect(Line::Port, request).await
    }

    /// An error if the API server says that this user may not connect to ports. A server that does not say is
    /// none: the connection itself shows it.
    pub(crate) async fn check_port_forward(&self) -> Result<(), ReachError> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(self.cluster.namespace.clone()),
                    verb: Some("get".to_owned()),
                    resource: Some("pods".to_owned()),
                    subresource: Some("portforward".to_owned()),
                    name: Some(self.name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.cluster.client.clone());
        let params = PostParams::default();
        let created = reviews.create(&params, &review);
        let answered = match self.answer {
            Some(limit) => tokio::time::timeout(limit, created).await.ok(),
            None => Some(created.await),
        };
        let status = answered
            .and_then(Result::ok)
            .and_then(|review| review.status);
        match status {
            Some(status) if !status.allowed => Err(self.forbidden(Line::Port)),
            Some(_) => {
                self.was_allowed.store(true, Ordering::Relaxed);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Reads an object of the machine's name.
    pub(crate) async fn look<K>(&self) -> Result<Seen<K>, ReachError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
        K: serde::de::DeserializeOwned,
        K::DynamicType: Default,
    {
        let api = self.cluster.api::<K>();
        let read = api.get(&self.name);
        let answered = match self.answer {
            Some(limit) => tokio::time::timeout(limit, read)
                .await
                .map_err(|_| ReachError::Late(limit))?,
            None => read.await,
        };
        self.seen(answered)
    }

    fn seen<K>(&self, answered: kube::Result<K>) -> Result<Seen<K>, ReachError> {
        let error = match answered {
            Ok(object) => return Ok(Seen::There(object)),
            Err(error) => error,
        };
        match ClusterError::about(&self.cluster.namespace, &self.name, error) {
            ClusterError::NotFound { .. } | ClusterError::NoKinds => Ok(Seen::Absent),
            ClusterError::Forbidden(_) => Ok(Seen::Hidden),
            source => Err(ReachError::Look {
                name: self.name.clone(),
                source,
            }),
        }
    }

    fn pods(&self) -> String {
        Pod::url_path(&(), Some(&self.cluster.namespace))
    }

    /// Connects. A right that this user had is awaited, since an API server that has just started may not know
    /// it yet.
    async fn connect<E>(
        &self,
        line: Line,
        request: Result<http::Request<Vec<u8>>, E>,
    ) -> Result<Connection, ReachError>
    where
        E: std::fmt::Display,
    {
        let request = request.map_err(|error| ReachError::Refused {
            name: self.name.clone(),
            words: error.to_string(),
        })?;
        let begin = Instant::now();
        loop {
            match self.connect_once(line, request.clone()).await {
                Err(ReachError::Forbidden { .. })
                    if self.was_allowed.load(Ordering::Relaxed) && begin.elapsed() < STARTING =>
                {
                    sleep(PAUSE).await;
                }
                connected => return connected,
            }
        }
    }

    async fn connect_once(
        &self,
        line: Line,
        request: http::Request<Vec<u8>>,
    ) -> Result<Connection, ReachError> {
        let connecting = self.cluster.client.connect(request);
        let connected = match self.answer {
            Some(limit) => tokio::time::timeout(limit, connecting)
                .await
                .map_err(|_| ReachError::Late(limit))?,
            None => connecting.await,
        };
        let connection = connected.map_err(|error| self.refused(line, error))?;
        self.was_allowed.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    fn refused(&self, line: Line, error: kube::Error) -> ReachError {
        let name = self.name.clone();
        let namespace = self.cluster.namespace.clone();
        let code = match &error {
            kube::Error::Api(status) => status.code,
            kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
                code.as_u16()
            }
            _ => 0,
        };
        match (code, error) {
            (403, _) => self.forbidden(line),
            (404, _) => ReachError::NoPod { namespace, name },
            (400, kube::Error::Api(status)) if status.message.contains(UNPLACED) => {
                ReachError::Away {
                    name,
                    words: "the pod has no node yet".to_owned(),
                }
            }
            (400 | 422, kube::Error::Api(status)) => ReachError::Refused {
                name,
                words: printable(status.message.trim()),
            },
            (500.., kube::Error::Api(status)) => ReachError::Away {
                name,
                words: printable(status.message.trim()),
            },
            (_, error) => ReachError::Connect {
                source: ClusterError::about(&namespace, &name, error),
                name,
            },
        }
    }

    fn forbidden(&self, line: Line) -> ReachError {
        ReachError::Forbidden {
            verb: line.verb(),
            resource: line.resource(),
            namespace: self.cluster.namespace.clone(),
        }
    }
}

/// The name alone of a machine or a VM pod, with the kind before it as users of kubectl and virtctl type it. A word
/// whose kind has no guest stays as it is.
pub(crate) fn without_kind(word: &str) -> &str {
    match super::Names::machine(word).split_once('/') {
        Some(("vmi" | "vmis" | "pod" | "pods" | "po", name)) => name,
        Some(_) => word,
        None => super::Names::machine(word),
    }
}

/// The same, if it may be the name of an object.
fn name(word: &str) -> anyhow::Result<&str> {
    let name = without_kind(word);
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_valid) {
        anyhow::bail!(
            "{:?} is no name of a machine: names have small letters, digits, - and .",
            printable(word)
        );
    }
    Ok(name)
}

#[cfg(test)]
mod tests;

//! Consoles and ports of guests, by the API server alone: the subresources of the pod, over WebSocket.
//!
//! Invariant: a connection needs `pods/attach` or `pods/portforward` and no right to read anything; what is read
//! besides, for better words, may be forbidden.
//! Failure: [`ReachError`]. An end of a connection is none: [`Ended`] has the reason of the other side.

mod carry;

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

pub(crate) use carry::{Broken, Ended, Line, carry};

use super::{Cluster, ClusterArgs, ClusterError};
use crate::table::printable;

/// A way to the guest of one pod.
#[derive(Clone)]
pub(crate) struct Reach {
    pub(crate) cluster: Cluster,
    /// Of the machine and its pod.
    pub(crate) name: String,
    answer: Option<Duration>,
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
            _ => Ok(()),
        }
    }

    /// Reads an object of the machine's name, if that is allowed: none, if it is not there.
    pub(crate) async fn look<K>(&self) -> Result<Option<K>, Unknown>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
        K: serde::de::DeserializeOwned,
        K::DynamicType: Default,
    {
        let api = self.cluster.api::<K>();
        let read = api.get_opt(&self.name);
        let answered = match self.answer {
            Some(limit) => tokio::time::timeout(limit, read)
                .await
                .map_err(|_| Unknown)?,
            None => read.await,
        };
        answered.map_err(|_| Unknown)
    }

    fn pods(&self) -> String {
        Pod::url_path(&(), Some(&self.cluster.namespace))
    }

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
        let connecting = self.cluster.client.connect(request);
        let connected = match self.answer {
            Some(limit) => tokio::time::timeout(limit, connecting)
                .await
                .map_err(|_| ReachError::Late(limit))?,
            None => connecting.await,
        };
        connected.map_err(|error| self.refused(line, error))
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

/// An object that could not be read.
#[derive(Debug)]
pub(crate) struct Unknown;

/// The name alone of a machine or a VM pod, with the kind before it as users of kubectl and virtctl type it.
fn name(word: &str) -> anyhow::Result<&str> {
    let name = match super::Names::machine(word).split_once('/') {
        Some(("vmi" | "vmis" | "pod" | "pods" | "po", name)) => name,
        Some(_) => word,
        None => super::Names::machine(word),
    };
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
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_its_kind_before_it_and_is_no_option_and_no_path() {
        for word in [
            "web",
            "vm/web",
            "vmi/web",
            "pod/web",
            "virtualmachine.vmlet.dev/web",
        ] {
            assert_eq!(name(word).unwrap(), "web", "{word}");
        }
        for word in [
            "",
            "-oProxyCommand=x",
            "node/web",
            "../web",
            "a b",
            "vm/",
            "we\u{1b}b",
        ] {
            assert!(name(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_console_waits_for_a_pod_and_not_for_a_right() {
        let namespace = || "default".to_owned();
        let name = || "web".to_owned();
        let gone = ReachError::NoPod {
            namespace: namespace(),
            name: name(),
        };
        assert!(gone.is_passing());
        let away = ReachError::Connect {
            name: name(),
            source: ClusterError::Unreachable("refused".to_owned()),
        };
        assert!(away.is_passing());
        let forbidden = ReachError::Forbidden {
            verb: Line::Console.verb(),
            resource: Line::Console.resource(),
            namespace: namespace(),
        };
        assert!(!forbidden.is_passing());
        let words = forbidden.to_string();
        assert!(
            words.contains("get and create on pods/attach in namespace default"),
            "{words}"
        );
    }
}

//! Creates a client from flags and kubeconfig.
//!
//! Invariant: the order is kubectl's: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`, the pod's
//! account.
//! Failure: no usable configuration; no request was sent yet.
//!
//! A watch is silent for as long as nothing changes, so that the deadline of answers is not that of
//! watches. A guest may print nothing for any time, so that a log that is followed has none.

use std::time::Duration;

use crds::VirtualMachine;
use k8s_openapi::NamespaceResourceScope;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};

use super::{ClusterArgs, ClusterError};

/// Silence of a watch that means a dead connection: the server ends each after 290 s by itself.
const WATCH: Duration = Duration::from_secs(300);

/// A client and the namespace that commands work in.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Host and port of the API server.
    pub(crate) server: String,
}

impl ClusterArgs {
    /// Makes a client. Sends no request.
    pub(crate) async fn connect(&self) -> Result<Cluster, ClusterError> {
        self.connect_within(self.request_timeout.0).await
    }

    /// The same for watches.
    pub(crate) async fn connect_to_watch(&self) -> Result<Cluster, ClusterError> {
        self.connect_within(Some(WATCH)).await
    }

    /// The same for a log that is followed.
    pub(crate) async fn connect_to_follow(&self) -> Result<Cluster, ClusterError> {
        self.connect_within(None).await
    }

    async fn connect_within(&self, answer: Option<Duration>) -> Result<Cluster, ClusterError> {
        let mut config = self.config().await?;
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups =
                Some(self.impersonate_groups.clone()).filter(|groups| !groups.is_empty());
        }
        config.connect_timeout = self.request_timeout.0;
        config.read_timeout = answer;
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.clone();
        let client = Client::try_from(config).map_err(|source| ClusterError::Client {
            server: url.to_string(),
            source: Box::new(source),
        })?;
        let server = url.authority().map(ToString::to_string);
        Ok(Cluster {
            client,
            namespace,
            server: server.unwrap_or_default(),
        })
    }

    async fn config(&self) -> Result<Config, ClusterError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let is_named =
            self.kubeconfig.is_some() || self.context.is_some() || self.cluster.is_some();
        let file = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let read = match file {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(config) => Ok(config),
            // In a pod there is no kubeconfig; a kubeconfig that the user names is the only one
            // that is used.
            Err(source) if is_named => Err(ClusterError::Kubeconfig(Box::new(source))),
            Err(source) => {
                Config::incluster().map_err(|_| ClusterError::Kubeconfig(Box::new(source)))
            }
        }
    }
}

impl Cluster {
    /// Objects of the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of the namespace, or of all.
    pub(crate) fn api_of<K>(&self, all: bool) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        if all {
            Api::all(self.client.clone())
        } else {
            self.api()
        }
    }

    /// Machines of the namespace.
    pub(crate) fn machines(&self) -> Api<VirtualMachine> {
        self.api()
    }
}

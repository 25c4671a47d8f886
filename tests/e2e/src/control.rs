//! A real API server without nodes: what a controller, a policy or a schema needs to be tested
//! against.
//!
//! Invariant: up in about five seconds; our kinds and policies are in force when a test gets it.
//! Failure: `down` names what was leaked; a test that fails shows the end of the API server's log.

mod case;
mod install;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::cluster::Cluster;
use crate::objects::Objects;
use crate::stack::Stack;

/// How long the API server may take to take something over.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Whose fields the harness sets.
const MANAGER: &str = "e2e";

/// A user of the API server, other than the administrator.
#[derive(Debug, Clone)]
pub struct Who {
    user: String,
    groups: Vec<String>,
}

impl Who {
    /// A person without rights of his own.
    pub fn user(name: &str) -> Self {
        Self {
            user: name.to_owned(),
            groups: vec!["system:authenticated".to_owned()],
        }
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ];
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: groups.map(str::to_owned).to_vec(),
        }
    }

    /// The same one, in one more group.
    #[must_use]
    pub fn in_group(mut self, group: &str) -> Self {
        self.groups.push(group.to_owned());
        self
    }
}

/// A running API server.
#[derive(Debug)]
pub struct Control {
    cluster: Cluster,
    config: Config,
}

impl Control {
    /// Starts etcd and the API server, with our kinds and our policies.
    pub async fn up() -> Result<Self> {
        let control = Self::bare().await?;
        // What the kinds are being served by then hides how long the policies take to be in force.
        tokio::try_join!(control.install_kinds(), control.create_policies())?;
        control.await_policies().await?;
        Ok(control)
    }

    /// Starts etcd and the API server, with nothing of ours.
    pub async fn bare() -> Result<Self> {
        // An error means that another test of this process was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let cluster = Cluster::without_nodes()?;
        let kubeconfig = Kubeconfig::read_from(cluster.stack().var("KUBECONFIG")?)?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { cluster, config })
    }

    /// Stops everything; an error when it leaked anything.
    pub fn down(self) -> Result<()> {
        self.cluster.down()
    }

    /// kubectl, and what else any cluster has.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The programs: process ids, logs, signals.
    pub fn stack(&self) -> &Stack {
        self.cluster.stack()
    }

    /// The administrator's file, for programs under test; it works on the host.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.stack().var("KUBECONFIG").map(PathBuf::from)
    }

    /// A client with the administrator's rights.
    pub fn client(&self) -> Result<Client> {
        Client::try_from(self.config.clone()).context("make a client")
    }

    /// A client that acts as another user.
    pub fn client_as(&self, who: &Who) -> Result<Client> {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(who.user.clone());
        config.auth_info.impersonate_groups = Some(who.groups.clone());
        Client::try_from(config).context("make a client")
    }

    /// Objects of a namespace as plain JSON, with the administrator's rights.
    pub fn objects(&self, namespace: &str) -> Result<Objects> {
        Ok(Objects::new(self.client()?, namespace))
    }

    /// The same for another user.
    pub fn objects_as(&self, who: &Who, namespace: &str) -> Result<Objects> {
        Ok(Objects::new(self.client_as(who)?, namespace))
    }

    /// Makes a namespace in which pods may be created.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let named = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let namespace = Namespace {
            metadata: named.clone(),
            ..Namespace::default()
        };
        let api = Api::<Namespace>::all(self.client()?);
        api.create(&PostParams::default(), &namespace).await?;
        self.default_account(name).await
    }

    /// What the controller-manager would make, and what every pod needs.
    async fn default_account(&self, namespace: &str) -> Result<()> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" },
        });
        let params = PatchParams::apply(MANAGER).force();
        api.patch("default", &params, &Patch::Apply(account))
            .await
            .map(drop)
            .context("make the default account")
    }

    /// Kills the API server; etcd keeps what it knew.
    pub async fn stop_api(&self) -> Result<()> {
        self.stack().kill("kube-apiserver", Signal::SIGKILL).await
    }

    /// Starts the API server again and waits until it is ready.
    pub fn start_api(&self) -> Result<()> {
        self.stack().restart("kube-apiserver")
    }

    /// Starts the controller-manager, for tests that need garbage collection or the end of
    /// namespaces.
    pub fn start_controller_manager(&self) -> Result<()> {
        self.stack().restart("kube-controller-manager")
    }
}

//! A real API server without nodes: what a controller, a policy or a schema needs to be tested against.
//!
//! Invariant: up in about five seconds; our kinds and policies are in force when a test gets it.
//! Failure: `down` names what was leaked; a test that fails shows the end of the API server's log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::cluster::Cluster;
use crate::objects::Objects;
use crate::stack::{Stack, eventually};

/// How long the API server may take to take something over.
const PATIENCE: Duration = Duration::from_secs(180);
/// Whose fields the harness sets.
const MANAGER: &str = "e2e";

/// Somebody who asks the API server, other than the administrator.
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
        control.install_kinds().await?;
        control.install_policies().await?;
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

    /// A client that acts as somebody else.
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

    /// The same for somebody else.
    pub fn objects_as(&self, who: &Who, namespace: &str) -> Result<Objects> {
        Ok(Objects::new(self.client_as(who)?, namespace))
    }

    /// Lets somebody do whatever an administrator of namespaces does, in all of them.
    pub async fn grant(&self, who: &Who) -> Result<()> {
        self.bind(who, "ClusterRoleBinding", None).await
    }

    /// The same in one namespace, and nothing beyond it.
    pub async fn grant_in(&self, who: &Who, namespace: &str) -> Result<()> {
        self.bind(who, "RoleBinding", Some(namespace)).await
    }

    async fn bind(&self, who: &Who, kind: &str, namespace: Option<&str>) -> Result<()> {
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRole",
            "metadata": { "name": "tenant" },
            "rules": [
                { "apiGroups": [crds::GROUP, ""], "resources": ["*"], "verbs": ["*"] },
            ],
        });
        let mut binding = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": kind,
            "metadata": { "name": who.user.replace(':', "-") },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "tenant" },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": who.user }],
        });
        if let Some(namespace) = namespace {
            binding["metadata"]["namespace"] = json!(namespace);
        }
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [role, binding] });
        self.cluster.apply(&list)?;
        // Roles take a moment to be in force.
        let api: Api<crds::VirtualMachine> =
            Api::namespaced(self.client_as(who)?, namespace.unwrap_or("default"));
        eventually(PATIENCE, "the role", || async {
            api.list(&ListParams::default().limit(1)).await?;
            Ok(())
        })
        .await
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

    /// Installs the kinds of `libs/crds` and waits until they are served.
    pub async fn install_kinds(&self) -> Result<()> {
        let client = self.client()?;
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let definitions = crds::schema::definitions();
        for definition in &definitions {
            let name = definition.name_any();
            api.patch(&name, &params, &Patch::Apply(definition))
                .await
                .with_context(|| format!("apply {name}"))?;
        }
        for definition in &definitions {
            let plural = &definition.spec.names.plural;
            let path = format!("/apis/{}/{}/{plural}?limit=1", crds::GROUP, crds::VERSION);
            eventually(PATIENCE, &path, || async {
                let request = http::Request::get(&path).body(Vec::new())?;
                let list: serde_json::Value = client.request(request).await?;
                ensure!(list["items"].is_array(), "{list}");
                Ok(())
            })
            .await?;
        }
        // What is served is found by `kubectl` a moment later.
        let group = format!("--api-group={}", crds::GROUP);
        eventually(PATIENCE, "kinds that are found", || async {
            let found = self
                .cluster
                .kubectl(&["api-resources", &group, "-o", "name"])?;
            ensure!(found.lines().count() == definitions.len(), "{found}");
            Ok(())
        })
        .await?;
        // `kubectl` and controllers expect it, and only the controller-manager would make it.
        self.default_account("default").await
    }

    /// Installs the policies of `deploy/admission` and waits until all of them are in force.
    pub async fn install_policies(&self) -> Result<()> {
        let folder = deploy().join("admission");
        if !folder.exists() {
            return Ok(());
        }
        self.cluster
            .kubectl(&["apply", "--server-side", "-k", &folder.to_string_lossy()])?;
        self.await_policies().await?;
        let nobody = Who::user("e2e:policy-check");
        self.grant(&nobody).await?;
        let api: Api<crds::VirtualMachineSnapshot> =
            Api::namespaced(self.client_as(&nobody)?, "default");
        let mut forbidden = crds::VirtualMachineSnapshot::new(
            "check",
            crds::VirtualMachineSnapshotSpec {
                vm_name: "check".to_owned(),
                ..Default::default()
            },
        );
        forbidden
            .annotations_mut()
            .insert(crds::names::RECONCILE_PRIORITY.to_owned(), "1".to_owned());
        eventually(PATIENCE, "the policies", || async {
            let params = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            match api.create(&params, &forbidden).await {
                Err(kube::Error::Api(status))
                    if status.message.contains("ValidatingAdmissionPolicy") =>
                {
                    Ok(())
                }
                other => bail!("not yet refused: {other:?}"),
            }
        })
        .await
    }

    /// Waits until every policy that is there is in force: they come into force in the order in which they, and in
    /// which their bindings, were made, and this makes one more.
    async fn await_policies(&self) -> Result<()> {
        let name = "e2e-last";
        let group = "admissionregistration.k8s.io";
        let policy = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                }] },
                "validations": [{ "expression": format!("object.metadata.name != '{name}'"), "message": name }],
            },
        });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [policy, binding] });
        self.cluster.apply(&list)?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client()?, "default");
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        eventually(PATIENCE, "the last policy", || async {
            let params = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            match maps.create(&params, &map).await {
                Err(kube::Error::Api(status)) if status.message.contains(name) => Ok(()),
                other => bail!("not yet refused: {other:?}"),
            }
        })
        .await?;
        for kind in [
            "validatingadmissionpolicybinding",
            "validatingadmissionpolicy",
        ] {
            self.cluster.kubectl(&["delete", kind, name])?;
        }
        Ok(())
    }

    /// Kills the API server; etcd keeps what it knew.
    pub async fn stop_api(&self) -> Result<()> {
        self.stack().kill("kube-apiserver", Signal::SIGKILL).await
    }

    /// Starts the API server again and waits until it is ready.
    pub fn start_api(&self) -> Result<()> {
        self.stack().restart("kube-apiserver")
    }

    /// Starts the controller-manager, for tests that need garbage collection or the end of namespaces.
    pub fn start_controller_manager(&self) -> Result<()> {
        self.stack().restart("kube-controller-manager")
    }
}

/// The folder of manifests.
fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

//! Installs our kinds and policies into a fresh API server, and rights for its users.
//!
//! Invariant: nothing here starts a process: a kubectl takes a third of a second of processor time.
//! Failure: names the object that is refused, or what does not come into force.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::Resource;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Control, MANAGER, TIMEOUT, Who};
use crate::stack::eventually;

/// What kubectl accepts when it looks for kinds.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The policy that is made last, and the object that it refuses.
const LAST: &str = "e2e-last";

impl Control {
    /// Gives a user the rights of an administrator of namespaces, in all of them.
    pub async fn grant(&self, who: &Who) -> Result<()> {
        self.bind(who, None).await
    }

    /// The same in one namespace, and nothing beyond it.
    pub async fn grant_in(&self, who: &Who, namespace: &str) -> Result<()> {
        self.bind(who, Some(namespace)).await
    }

    /// Makes a user privileged for the policies of `deploy/admission`.
    pub async fn privilege(&self, who: &Who) -> Result<()> {
        let client = self.client()?;
        let group = "rbac.authorization.k8s.io";
        let name = format!("privileged-{}", who.user.replace(':', "-"));
        let role = json!({
            "apiVersion": ClusterRole::API_VERSION,
            "kind": ClusterRole::KIND,
            "metadata": { "name": name },
            "rules": [{
                "apiGroups": ["vmlet.dev.protected"], "resources": ["fields"], "verbs": ["write"],
            }],
        });
        let binding = json!({
            "apiVersion": ClusterRoleBinding::API_VERSION,
            "kind": ClusterRoleBinding::KIND,
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": ClusterRole::KIND, "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": who.user }],
        });
        let params = PatchParams::apply(MANAGER).force();
        let roles: Api<ClusterRole> = Api::all(client.clone());
        roles.patch(&name, &params, &Patch::Apply(role)).await?;
        let bindings: Api<ClusterRoleBinding> = Api::all(client);
        bindings
            .patch(&name, &params, &Patch::Apply(binding))
            .await?;
        Ok(())
    }

    async fn bind(&self, who: &Who, namespace: Option<&str>) -> Result<()> {
        let client = self.client()?;
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": ClusterRole::API_VERSION,
            "kind": ClusterRole::KIND,
            "metadata": { "name": "tenant" },
            "rules": [
                { "apiGroups": [crds::GROUP, ""], "resources": ["*"], "verbs": ["*"] },
            ],
        });
        let name = who.user.replace(':', "-");
        let mut binding = json!({
            "apiVersion": RoleBinding::API_VERSION,
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": ClusterRole::KIND, "name": "tenant" },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": who.user }],
        });
        let params = PatchParams::apply(MANAGER).force();
        let roles: Api<ClusterRole> = Api::all(client.clone());
        roles.patch("tenant", &params, &Patch::Apply(role)).await?;
        if let Some(namespace) = namespace {
            binding["kind"] = json!(RoleBinding::KIND);
            let api: Api<RoleBinding> = Api::namespaced(client, namespace);
            api.patch(&name, &params, &Patch::Apply(binding)).await?;
        } else {
            binding["kind"] = json!(ClusterRoleBinding::KIND);
            let api: Api<ClusterRoleBinding> = Api::all(client);
            api.patch(&name, &params, &Patch::Apply(binding)).await?;
        }
        // Roles take a moment to be in force.
        let api: Api<crds::VirtualMachine> =
            Api::namespaced(self.client_as(who)?, namespace.unwrap_or("default"));
        eventually(TIMEOUT, "the role", || async {
            api.list(&ListParams::default().limit(1)).await?;
            Ok(())
        })
        .await
    }

    /// Installs the kinds of `libs/crds` and waits until they are served and found.
    pub async fn install_kinds(&self) -> Result<()> {
        let client = self.client()?;
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let definitions = crds::schema::definitions();
        let count = definitions.len();
        let paths: Vec<String> = definitions
            .iter()
            .map(|one| &one.spec.names.plural)
            .map(|plural| format!("/apis/{}/{}/{plural}?limit=1", crds::GROUP, crds::VERSION))
            .collect();
        let mut applied = JoinSet::new();
        for definition in definitions {
            let api = api.clone();
            applied.spawn(async move {
                let name = definition.name_any();
                let params = PatchParams::apply(MANAGER).force();
                api.patch(&name, &params, &Patch::Apply(definition))
                    .await
                    .with_context(|| format!("apply {name}"))
            });
        }
        while let Some(applied) = applied.join_next().await {
            applied??;
        }
        for path in &paths {
            eventually(TIMEOUT, path, || async {
                let list: Value = client.request(get(path, "application/json")?).await?;
                ensure!(list["items"].is_array(), "{list}");
                Ok(())
            })
            .await?;
        }
        // What is served is found by `kubectl` a moment later.
        eventually(TIMEOUT, "kinds that are found", || async {
            let groups: Value = client.request(get("/apis", DISCOVERY)?).await?;
            let groups = groups["items"].as_array().context("items")?;
            let ours = groups
                .iter()
                .find(|one| one["metadata"]["name"] == crds::GROUP);
            let kinds = ours.and_then(|one| one["versions"][0]["resources"].as_array());
            let found = kinds.map_or(0, Vec::len);
            ensure!(found == count, "{found} of {count}");
            Ok(())
        })
        .await?;
        // `kubectl` and controllers expect it, and only the controller-manager would make it.
        self.default_account("default").await
    }

    /// Creates the policies of `deploy/admission`, and after them one that shows when all are in
    /// force.
    pub(super) async fn create_policies(&self) -> Result<()> {
        let client = self.client()?;
        let folder = deploy().join("admission");
        let parts = std::fs::read_to_string(folder.join("kustomization.yaml"))?;
        for file in parts.lines().filter_map(|line| line.strip_prefix("  - ")) {
            let text = std::fs::read_to_string(folder.join(file)).context(file.to_owned())?;
            for document in text.split("\n---\n") {
                create(&client, document).await.context(file.to_owned())?;
            }
        }
        create(&client, &last_policy().to_string()).await?;
        create(&client, &last_binding().to_string()).await
    }

    /// Waits until all policies are in force: they come into force in the order in which they, and
    /// in which their bindings, were made, and the last one refuses what nothing else does.
    pub(super) async fn await_policies(&self) -> Result<()> {
        let client = self.client()?;
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(LAST.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        eventually(TIMEOUT, "the last policy", || async {
            refused(maps.create(&params, &map).await, LAST)
        })
        .await?;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        bindings.delete(LAST, &DeleteParams::default()).await?;
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(client);
        policies.delete(LAST, &DeleteParams::default()).await?;

        let unprivileged = Who::user("e2e:policy-check");
        self.grant(&unprivileged).await?;
        let api: Api<crds::VirtualMachineSnapshot> =
            Api::namespaced(self.client_as(&unprivileged)?, "default");
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
        eventually(TIMEOUT, "the policies", || async {
            refused(
                api.create(&params, &forbidden).await,
                "ValidatingAdmissionPolicy",
            )
        })
        .await?;
        self.await_parameters(&unprivileged).await
    }

    /// Waits until the API server can read the parameters of policies: it begins to watch them when
    /// the policy comes into force, and refuses machines until then.
    async fn await_parameters(&self, who: &Who) -> Result<()> {
        let api: Api<crds::VirtualMachine> = Api::namespaced(self.client_as(who)?, "default");
        let machine = crds::VirtualMachine::new(
            "check",
            crds::VirtualMachineSpec {
                image_name: Some("check".to_owned()),
                running: Some(true),
                ..Default::default()
            },
        );
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(TIMEOUT, "the parameters of policies", || async {
            api.create(&params, &machine).await?;
            Ok(())
        })
        .await
    }
}

/// An error unless it was refused with this text.
fn refused<T: std::fmt::Debug>(answer: kube::Result<T>, words: &str) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.message.contains(words) => Ok(()),
        other => bail!("not refused with {words:?}: {other:?}"),
    }
}

/// Creates a policy or a binding from a document in YAML, which JSON is, too.
async fn create(client: &Client, document: &str) -> Result<()> {
    let is_binding = document.contains(ValidatingAdmissionPolicyBinding::KIND);
    let plural = if is_binding {
        ValidatingAdmissionPolicyBinding::URL_PATH_SEGMENT
    } else {
        ValidatingAdmissionPolicy::URL_PATH_SEGMENT
    };
    let path = format!("/apis/{}/{plural}", ValidatingAdmissionPolicy::API_VERSION);
    let request = http::Request::post(format!("{path}?fieldValidation=Strict"))
        .header("content-type", "application/yaml")
        .body(document.as_bytes().to_vec())?;
    client
        .request::<Value>(request)
        .await
        .map(drop)
        .context(path)
}

fn get(path: &str, accept: &str) -> Result<http::Request<Vec<u8>>> {
    let request = http::Request::get(path).header("accept", accept);
    Ok(request.body(Vec::new())?)
}

fn last_policy() -> Value {
    json!({
        "apiVersion": ValidatingAdmissionPolicy::API_VERSION,
        "kind": ValidatingAdmissionPolicy::KIND,
        "metadata": { "name": LAST },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
            }] },
            "validations": [{ "expression": format!("object.metadata.name != '{LAST}'"), "message": LAST }],
        },
    })
}

fn last_binding() -> Value {
    json!({
        "apiVersion": ValidatingAdmissionPolicyBinding::API_VERSION,
        "kind": ValidatingAdmissionPolicyBinding::KIND,
        "metadata": { "name": LAST },
        "spec": { "policyName": LAST, "validationActions": ["Deny"] },
    })
}

/// The folder of manifests.
fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

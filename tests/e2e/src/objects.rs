//! Objects of our kinds as plain JSON, so that tests can say what no type of ours could.
//!
//! Invariant: a refusal is an answer, not an error: it is what these tests are about.
//! Failure: an error is anything that the API server did not say about the object.

use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionSpec;
use kube::Client;
use kube::core::Status;
use serde_json::{Value, json};

/// Making a schema takes longer than asking the API server.
static KINDS: LazyLock<Vec<CustomResourceDefinitionSpec>> = LazyLock::new(|| {
    let definitions = crds::schema::definitions().into_iter();
    definitions.map(|definition| definition.spec).collect()
});

/// What the API server reports about an object: the object, or the sentence of the refusal.
pub type Answer = std::result::Result<Value, String>;

/// Objects in one namespace, as one user sees them.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: String,
}

/// Whether a request has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It has.
    Real,
    /// The API server only returns what it would do.
    DryRun,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Objects {
    /// Objects of a namespace, for whom the client acts.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    /// Creates an object of `kind`, `apiVersion` being clear from that.
    pub async fn create(&self, kind: &str, object: &Value, effect: Effect) -> Result<Answer> {
        let mut object = object.clone();
        object["kind"] = json!(kind);
        object["apiVersion"] = json!(match kind {
            "Pod" | "Binding" => "v1".to_owned(),
            _ => format!("{}/{}", crds::GROUP, crds::VERSION),
        });
        let path = self.path(kind, "", effect)?;
        self.send("POST", &path, "application/json", &object).await
    }

    /// Says on which node a pod runs, as a scheduler does.
    pub async fn bind(&self, pod: &str, binding: &Value, effect: Effect) -> Result<Answer> {
        let mut binding = binding.clone();
        binding["kind"] = json!("Binding");
        binding["apiVersion"] = json!("v1");
        let path = self.path("Pod", &format!("{pod}/binding"), effect)?;
        self.send("POST", &path, "application/json", &binding).await
    }

    /// Merges a patch into an object; `name` may continue with `/status`.
    pub async fn patch(
        &self,
        kind: &str,
        name: &str,
        patch: &Value,
        effect: Effect,
    ) -> Result<Answer> {
        let path = self.path(kind, name, effect)?;
        self.send("PATCH", &path, "application/merge-patch+json", patch)
            .await
    }

    /// Reads an object.
    pub async fn get(&self, kind: &str, name: &str) -> Result<Answer> {
        let path = self.path(kind, name, Effect::Real)?;
        self.send("GET", &path, "application/json", &Value::Null)
            .await
    }

    /// Deletes an object; with finalizers it stays until they no longer exist.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<Answer> {
        let path = self.path(kind, name, Effect::Real)?;
        self.send("DELETE", &path, "application/json", &Value::Null)
            .await
    }

    fn path(&self, kind: &str, rest: &str, effect: Effect) -> Result<String> {
        let namespace = &self.namespace;
        let collection = if let "Pod" | "Binding" = kind {
            let plural = format!("{}s", kind.to_lowercase());
            format!("/api/v1/namespaces/{namespace}/{plural}")
        } else {
            let kind = KINDS.iter().find(|one| one.names.kind == kind);
            let spec = kind.context("there is no such kind")?;
            let scope = match spec.scope.as_str() {
                "Namespaced" => format!("namespaces/{namespace}/"),
                _ => String::new(),
            };
            let group = crds::GROUP;
            let version = crds::VERSION;
            format!("/apis/{group}/{version}/{scope}{}", spec.names.plural)
        };
        let slash = if rest.is_empty() { "" } else { "/" };
        let query = match effect {
            Effect::Real => "",
            Effect::DryRun => "&dryRun=All",
        };
        Ok(format!(
            "{collection}{slash}{rest}?fieldValidation=Strict{query}"
        ))
    }

    async fn send(&self, verb: &str, path: &str, form: &str, body: &Value) -> Result<Answer> {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = http::Request::builder()
            .method(verb)
            .uri(path)
            .header("content-type", form)
            .body(body)?;
        match self.client.request::<Value>(request).await {
            Ok(object) => Ok(Ok(object)),
            Err(kube::Error::Api(status)) => {
                let Status { message, .. } = *status;
                Ok(Err(message))
            }
            Err(error) => bail!("{verb} {path}: {error}"),
        }
    }
}

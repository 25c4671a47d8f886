//! The real API server takes what the controller writes.
//!
//! The controller's scenarios run against an API server in memory. What they write is on record in
//! `tests/fixtures/controller-requests.jsonl`, each request with the object that it changes.
//!
//! Invariant: the controller's own account sends each as a dry run, unknown fields being errors; our
//! kinds and policies are in force. Kinds of others take any field.
//! Failure: each request that is refused, and why.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::foreign::definition;
use e2e::{Control, Who, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const RECORD: &str = "../fixtures/controller-requests.jsonl";
const WITHIN: Duration = Duration::from_secs(180);
/// The namespace of the scenarios, beside the controller's.
const NAMESPACE: &str = "ns";
const CREATE: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// A request of the controller.
#[derive(Debug, Clone, Deserialize)]
struct Request {
    verb: String,
    path: String,
    query: String,
    form: String,
    /// The object that it changes.
    before: Option<Value>,
    body: Value,
}

impl Request {
    /// The same about an object with a name of its own.
    fn named(mut self, name: &str) -> Self {
        let Some(before) = &mut self.before else {
            return self;
        };
        let old = before["metadata"]["name"].as_str().unwrap_or_default();
        self.path = replaced(&self.path, old, name);
        before["metadata"]["name"] = json!(name);
        if self.body["metadata"]["name"].is_string() {
            self.body["metadata"]["name"] = json!(name);
        }
        self
    }

    /// The path of the object's collection.
    fn collection(&self, name: &str) -> &str {
        let end = self
            .path
            .find(&format!("/{name}"))
            .unwrap_or(self.path.len());
        &self.path[..end]
    }

    fn shown(&self) -> String {
        let Self { verb, path, .. } = self;
        format!("{verb} {path} {}", self.body)
    }
}

/// A path with another name in the place of the object's.
fn replaced(path: &str, old: &str, name: &str) -> String {
    let mut parts: Vec<_> = path.split('/').collect();
    if let Some(place) = parts.iter().rposition(|part| *part == old) {
        parts[place] = name;
    }
    parts.join("/")
}

/// Adds what the API server needs of objects that are not ours, and scenarios leave out.
fn completed(collection: &str, object: &Value) -> Value {
    let mut object = object.clone();
    let needed = match collection.rsplit('/').next() {
        Some("pods") => json!({ "containers": [{ "name": "vm", "image": "r.example/guest" }] }),
        Some("persistentvolumeclaims") => json!({
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        }),
        _ => return object,
    };
    for (field, value) in needed.as_object().into_iter().flatten() {
        let had = &mut object["spec"][field];
        if had.is_null() || had.as_array().is_some_and(Vec::is_empty) {
            *had = value.clone();
        }
    }
    object
}

/// Sends a request; the reason when it is refused.
async fn sent(
    client: &Client,
    verb: &str,
    path: &str,
    form: &str,
    body: &Value,
) -> Result<Option<String>> {
    let request = http::Request::builder()
        .method(verb)
        .uri(path)
        .header("content-type", form)
        .body(body.to_string().into_bytes())?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error).with_context(|| format!("{verb} {path}")),
    }
}

/// Makes the object that a request changes, and sends the request as a dry run; the reason when either
/// is refused.
async fn judged(
    admin: Client,
    controller: Client,
    name: String,
    request: Request,
) -> Result<Option<String>> {
    let request = request.named(&name);
    if let Some(before) = &request.before {
        let collection = request.collection(&name);
        let path = format!("/{collection}?fieldValidation=Strict");
        let whole = completed(collection, before);
        let refused = sent(&admin, "POST", &path, CREATE, &whole).await?;
        if let Some(why) = refused {
            return Ok(Some(format!("{before}\ncannot be made: {why}")));
        }
        if before["status"].is_object() {
            let status = json!({ "status": before["status"] });
            let path = format!("/{collection}/{name}/status?fieldValidation=Strict");
            let refused = sent(&admin, "PATCH", &path, MERGE, &status).await?;
            if let Some(why) = refused {
                return Ok(Some(format!("{status}\ncannot be its status: {why}")));
            }
        }
    }
    let Request {
        verb,
        path,
        query,
        form,
        body,
        ..
    } = &request;
    let path = format!("/{path}?dryRun=All&fieldValidation=Strict&{query}");
    let refused = sent(&controller, verb, &path, form, body).await?;
    Ok(refused.map(|why| format!("{}\nis refused: {why}", request.shown())))
}

/// The account of the controller, and what its objects name.
async fn prepared(control: &Control) -> Result<Client> {
    control.install_rights()?;
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    let cluster = control.cluster();
    cluster.kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    for (group, version, kind, plural) in [
        ("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
        (
            "snapshot.storage.k8s.io",
            "v1",
            "VolumeSnapshot",
            "volumesnapshots",
        ),
    ] {
        cluster.apply(&definition(group, version, kind, plural))?;
        eventually(WITHIN, plural, || async {
            cluster.kubectl(&["get", plural]).map(drop)
        })
        .await?;
    }
    control.namespace(NAMESPACE).await?;
    let account = Who::service_account("vmlet-system", "vmlet-controller");
    let controller = control.client_as(&account)?;
    let pods: Api<Pod> = Api::all(controller.clone());
    eventually(WITHIN, "the controller's rights", || async {
        pods.list(&ListParams::default().limit(1)).await?;
        Ok(())
    })
    .await?;
    Ok(controller)
}

/// The last case: kinds of others are installed.
pub(super) async fn what_the_controller_writes_is_taken(control: &Control) -> Result<()> {
    let controller = prepared(control).await?;
    let admin = control.client()?;
    let mut all = JoinSet::new();
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    let record = std::fs::read_to_string(record)?;
    for (index, line) in record.lines().enumerate() {
        let request: Request = serde_json::from_str(line)?;
        let name = format!("request-{index}");
        all.spawn(judged(admin.clone(), controller.clone(), name, request));
    }
    ensure!(!all.is_empty(), "there is no record");
    let mut refused = Vec::new();
    while let Some(one) = all.join_next().await {
        refused.extend(one??);
    }
    ensure!(refused.is_empty(), "{}", refused.join("\n\n"));
    Ok(())
}

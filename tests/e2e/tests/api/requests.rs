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

/// An object as it can be made, and the edits after which it is as it was.
fn made_in_steps(collection: &str, object: &Value) -> (Value, Vec<Value>) {
    let mut made = completed(collection, object);
    let mut edits = Vec::new();
    if !collection.ends_with("/virtualmachines") {
        return (made, edits);
    }
    for field in ["nextRestartTime", "currentSnapshotName", "powerState"] {
        let value = made["spec"][field].take();
        if !value.is_null() {
            edits.push(json!({ "spec": { field: value } }));
        }
    }
    // A machine is off, or Suspended, only after it was on.
    let has_state = object["spec"]["powerState"].is_string();
    made["spec"]["powerState"] = json!(has_state.then_some("PoweredOn"));
    if let Some(spec) = made["spec"].as_object_mut() {
        spec.retain(|_, value| !value.is_null());
    }
    (made, edits)
}

/// What an object of a scenario has as its status.
fn status(collection: &str, object: &Value) -> Option<Value> {
    let status = if collection.ends_with("/persistentvolumeclaims") {
        json!({ "phase": "Bound" })
    } else {
        object["status"].clone()
    };
    // No request of the controller depends on what kubelet reports.
    let is_needed = status.is_object() && !collection.ends_with("/pods");
    is_needed.then(|| json!({ "status": status }))
}

/// Makes the object that a request changes; the reason when it is refused.
async fn made(admin: &Client, collection: &str, object: &Value) -> Result<Option<String>> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let (first, edits) = made_in_steps(collection, object);
    let path = format!("/{collection}?fieldValidation=Strict");
    if let Some(why) = sent(admin, "POST", &path, CREATE, &first).await? {
        return Ok(Some(format!("{first}\ncannot be made: {why}")));
    }
    let of_object = format!("/{collection}/{name}");
    let edits = edits.into_iter().map(|edit| (of_object.clone(), edit));
    let status = status(collection, object);
    let status = status.map(|status| (format!("{of_object}/status"), status));
    for (path, edit) in edits.chain(status) {
        let path = format!("{path}?fieldValidation=Strict");
        if let Some(why) = sent(admin, "PATCH", &path, MERGE, &edit).await? {
            return Ok(Some(format!("{path}: {edit}\ncannot be made: {why}")));
        }
    }
    Ok(None)
}

/// Makes the object that a request changes, and sends the request as a dry run; the reason when either
/// is refused.
async fn judged(
    admin: Client,
    controller: Client,
    name: String,
    request: Request,
) -> Result<Option<String>> {
    let mut request = request.named(&name);
    if let Some(before) = &request.before {
        let refused = made(&admin, request.collection(&name), before).await?;
        if refused.is_some() {
            return Ok(refused);
        }
    }
    // A claim that is made of a snapshot is like the claim that the snapshot was taken of.
    if request.body["spec"]["dataSource"].is_object() {
        request.body = completed(request.collection(&name), &request.body);
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
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "1000" });
    for named in [
        // A pod is resized on its node.
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
            "status": { "capacity": room, "allocatable": room } }),
        json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": { "name": "other" }, "handler": "other" }),
        json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": "high" }, "value": 1 }),
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": "sc" }, "provisioner": "example.com/none",
            "allowVolumeExpansion": true }),
    ] {
        cluster.apply(&named)?;
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

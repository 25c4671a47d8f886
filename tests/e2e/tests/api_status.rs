//! The real controller keeps the status of the installation, against a real API server.
//!
//! Invariant: what a cluster's own controllers would write (counts of a DaemonSet, a node's lease) this test writes.
//! Failure: the object as it was last seen.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use crds::{Health, Vmlet, VmletStatus};
use e2e::{Control, eventually};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const SOON: Duration = Duration::from_secs(40);
const NAMESPACE: &str = "vmlet-system";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Longer than the controller lets pass between two looks.
const TWO_LOOKS: Duration = Duration::from_secs(13);

/// Starts the controller; it ends with the returned process.
fn start(control: &Control, listen: &str) -> Result<Child> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/vmlet-controller");
    let child = Command::new(program)
        .args(["--lease", "false", "--listen", listen, "--kubeconfig"])
        .arg(control.kubeconfig()?)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

async fn apply<K>(api: &Api<K>, name: &str, object: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + serde::Serialize,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"]["name"] = json!(name);
    let params = PatchParams::apply("e2e").force();
    api.patch(name, &params, &Patch::Apply(&object)).await?;
    if object.get("status").is_some() {
        api.patch_status(name, &params, &Patch::Apply(&object))
            .await?;
    }
    Ok(())
}

fn workload(extra: &Value) -> Value {
    let labels = json!({"app": "vmlet"});
    let mut spec = json!({
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"nodeSelector": {"vmlet.dev/node": "true"},
                "containers": [{"name": "c", "image": "i"}]},
        },
    });
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    spec
}

fn set(available: i32) -> Value {
    json!({
        "spec": workload(&json!({})),
        "status": {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": available,
            "updatedNumberScheduled": 1, "numberAvailable": available, "numberMisscheduled": 0,
            "observedGeneration": 1},
    })
}

/// Everything that a healthy installation has.
async fn install(client: &Client) -> Result<()> {
    let sets = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE);
    apply(&sets, "vmlet-node", set(1)).await?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = json!({
        "spec": workload(&json!({"replicas": 1})),
        "status": {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
            "observedGeneration": 1, "conditions": [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]},
    });
    apply(&deployments, "vmlet-controller", deployment).await?;
    let node = json!({
        "metadata": {"labels": {"vmlet.dev/node": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    });
    apply(&Api::<Node>::all(client.clone()), "n1", node).await?;
    renew(client).await
}

/// What the agent of the node does every ten seconds.
async fn renew(client: &Client) -> Result<()> {
    let facts = json!({
        "daemon": {"reachable": true, "version": VERSION},
        "proxy": {"reachable": true, "version": VERSION, "runtimeReady": true},
    });
    let now = humantime();
    let lease = json!({
        "metadata": {"labels": {"vmlet.dev/node-lease": "true"},
            "annotations": {"vmlet.dev/node-facts": facts.to_string()}},
        "spec": {"renewTime": now, "leaseDurationSeconds": 40, "holderIdentity": "n1"},
    });
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    apply(&leases, "vmlet-node-n1", lease).await
}

/// Now, as Kubernetes writes it.
fn humantime() -> Value {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    json!(MicroTime(jiff::Timestamp::now()))
}

/// Waits until a condition has a status and a reason.
async fn await_condition(api: &Api<Vmlet>, name: &str, wanted: [&str; 3]) -> Result<VmletStatus> {
    eventually(SOON, &format!("{name} {wanted:?}"), || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        let is = |c: &&_| {
            let c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition = c;
            [c.type_.as_str(), &c.status, &c.reason] == wanted
        };
        ensure!(status.conditions.iter().find(is).is_some(), "{status:#?}");
        Ok(status)
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_status_of_the_installation_follows_its_parts() -> Result<()> {
    let control = Control::up().await?;
    control.namespace(NAMESPACE).await?;
    let client = control.client()?;
    let api = Api::<Vmlet>::all(client.clone());
    let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let mut controller = start(&control, &listen)?;

    // Nothing is installed: the part that is visited last gives the reason, and every part has its say.
    let object = |components: Value| json!({"spec": {"watch": {"admissionPolicies": []}, "components": components}});
    apply(&api, "default", object(json!([]))).await?;
    let wanted = ["Available", "False", "RuntimeConditions"];
    let status = await_condition(&api, "default", wanted).await?;
    ensure!(status.conditions.len() == 5, "{status:#?}");
    ensure!(status.health == Some(Health::Error), "{status:#?}");
    let message = &status.conditions.iter().find(|c| c.type_ == "Available");
    let message = &message.unwrap().message;
    ensure!(message.contains("Controller resource"), "{message}");

    // All parts are there.
    install(&client).await?;
    let status =
        await_condition(&api, "default", ["Available", "True", "ReconcileCompleted"]).await?;
    let upgradeable = ["Upgradeable", "True", "ReconcileCompleted"];
    let status = match status.health {
        Some(Health::Healthy) => status,
        _ => await_condition(&api, "default", upgradeable).await?,
    };
    ensure!(status.health == Some(Health::Healthy), "{status:#?}");
    ensure!(status.versions[0].version == VERSION, "{status:#?}");
    let nodes = status.nodes.clone().unwrap_or_default();
    ensure!((nodes.targeted, nodes.ready) == (1, 1), "{nodes:?}");
    let kinds: Vec<_> = status
        .related_objects
        .iter()
        .map(|o| o.kind.as_str())
        .collect();
    ensure!(
        kinds.starts_with(&["DaemonSet", "Deployment", "CustomResourceDefinition"]),
        "{kinds:?}"
    );

    // A quiet system writes nothing.
    renew(&client).await?;
    let before = api.get("default").await?.resource_version();
    tokio::time::sleep(TWO_LOOKS).await;
    ensure!(
        api.get("default").await?.resource_version() == before,
        "it was written"
    );

    // A part fails: at once for those who look, and for metrics.
    let sets = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE);
    apply(&sets, "vmlet-node", set(0)).await?;
    renew(&client).await?;
    await_condition(
        &api,
        "default",
        ["Available", "False", "RuntimeNotAvailable"],
    )
    .await?;
    let metrics = metrics(&listen).await?;
    ensure!(
        metrics.contains("vmlet_system_health_status 2"),
        "{metrics}"
    );
    apply(&sets, "vmlet-node", set(1)).await?;

    // A resource of somebody else counts when it is listed.
    let other = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": NAMESPACE, "name": "absent"}]);
    apply(&api, "default", object(other)).await?;
    renew(&client).await?;
    await_condition(
        &api,
        "default",
        ["Available", "False", "DeploymentConditions"],
    )
    .await?;
    apply(&api, "default", object(json!([]))).await?;

    // A version that is not rolled out everywhere: the upgrade is shown, and ends by itself.
    let patch = json!({"status": {"versions": [{"name": "operator", "version": "0.0.1"}]}});
    api.patch_status("default", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    renew(&client).await?;
    eventually(SOON, "the upgrade ends", || async {
        let status = api.get("default").await?.status.unwrap_or_default();
        ensure!(status.versions[0].version == VERSION, "{status:#?}");
        Ok(())
    })
    .await?;

    controller.kill().await?;
    control.down()
}

async fn metrics(listen: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(listen).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

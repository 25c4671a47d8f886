//! `vmletctl try` against the real API server: its pod, and what becomes of it.
//!
//! Invariant: no scheduler and no kubelet runs: what they would report is written by the test.
//! Failure: the command's own output.

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Control, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::vmletctl::Ctl;

const WITHIN: Duration = Duration::from_secs(180);
const NAME: &str = "vmlet-try";

/// A cluster, and the part of kubelet in it.
struct Stage<'a> {
    ctl: &'a Ctl,
    pods: Api<Pod>,
}

impl Stage<'_> {
    fn begin(&self) -> Result<Child> {
        let mut command = self.ctl.command("try --image r.example/guest --timeout 1h");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("run vmletctl")
    }

    /// The pod of a run, which is not that one.
    async fn pod(&self, other: Option<&str>) -> Result<String> {
        eventually(WITHIN, "a pod of its own", || async {
            let pod = self.pods.get(NAME).await?;
            let uid = pod.metadata.uid.context("a UID")?;
            ensure!(Some(uid.as_str()) != other, "that of the run before");
            Ok(uid)
        })
        .await
    }

    async fn report(&self, status: Value) -> Result<()> {
        let change = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        self.pods.patch_status(NAME, &params, &change).await?;
        Ok(())
    }

    async fn schedule(&self) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": NAME }, "target": { "kind": "Node", "name": "n1" },
        });
        let params = PostParams::default();
        let bound = self
            .pods
            .create_subresource("binding", NAME, &params, &binding);
        bound.await.map(|_: Value| ()).context("bind the pod")
    }

    /// Ends a pod that is being deleted, as kubelet does.
    async fn end(&self) -> Result<()> {
        eventually(WITHIN, "the deletion", || async {
            let pod = self.pods.get(NAME).await?;
            ensure!(
                pod.metadata.deletion_timestamp.is_some(),
                "it is not deleted"
            );
            Ok(())
        })
        .await?;
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(NAME, &at_once).await?;
        Ok(())
    }

    async fn is_gone(&self) -> Result<()> {
        let left = self.pods.get_opt(NAME).await?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    }
}

async fn ended(child: Child) -> Result<(Output, String)> {
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await??;
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    Ok((output, String::from_utf8(text)?))
}

/// A pod that is made, found up and deleted; and all that ends otherwise.
pub(super) async fn guests_are_tried(control: &Control, ctl: &Ctl) -> Result<()> {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    control
        .cluster()
        .kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    let stage = Stage {
        ctl,
        pods: Api::namespaced(control.client()?, "default"),
    };

    // A run that is killed leaves its pod to the next one.
    let mut killed = stage.begin()?;
    let left = stage.pod(None).await?;
    killed.kill()?;
    killed.wait()?;
    let run = stage.begin()?;
    stage.pod(Some(&left)).await?;
    stage.schedule().await?;
    stage
        .report(
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }),
        )
        .await?;
    stage.end().await?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.success(), "{text}");
    ensure!(text.contains("a guest was up on node n1"), "{text}");
    stage.is_gone().await?;

    // A guest that ends is none.
    let run = stage.begin()?;
    stage.pod(None).await?;
    stage
        .report(json!({ "phase": "Failed", "reason": "Evicted", "message": "no memory" }))
        .await?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.code() == Some(1), "{text}");
    ensure!(
        text.contains("pod vmlet-try ended: Evicted: no memory"),
        "{text}"
    );
    stage.is_gone().await?;

    // An interrupted run tidies up.
    let run = stage.begin()?;
    stage.pod(None).await?;
    kill(Pid::from_raw(run.id().try_into()?), Signal::SIGTERM)?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.code() == Some(130), "{text}");
    stage.is_gone().await?;

    // One of another origin stays.
    control.cluster().apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": NAME, "namespace": "default" },
        "spec": { "containers": [{ "name": "vm", "image": "r.example/other" }] },
    }))?;
    let foreign = ctl.refused("try --image r.example/guest")?;
    ensure!(
        foreign.contains("was not made by this command"),
        "{foreign}"
    );
    stage.pods.get(NAME).await?;
    Ok(())
}

//! `vmletctl try` against the real API server: its pod, and what becomes of it.
//!
//! Invariant: no scheduler and no kubelet runs: what they would report is written by the test.
//! Failure: the command's own output.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Control, eventually, in_time, program};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::vmletctl::Ctl;

const WITHIN: Duration = Duration::from_secs(180);
const NAME: &str = "vmlet-try";

/// The part of scheduler and kubelet for one pod.
pub(super) struct Kubelet {
    pub(super) pods: Api<Pod>,
    pub(super) name: &'static str,
}

impl Kubelet {
    /// The UID of the pod, which is not that one.
    pub(super) async fn pod(&self, other: Option<&str>) -> Result<String> {
        eventually(WITHIN, "a pod of its own", || async {
            let pod = self.pods.get(self.name).await?;
            let uid = pod.metadata.uid.context("a UID")?;
            ensure!(Some(uid.as_str()) != other, "that of the run before");
            Ok(uid)
        })
        .await
    }

    pub(super) async fn report(&self, status: Value) -> Result<()> {
        let change = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        self.pods.patch_status(self.name, &params, &change).await?;
        Ok(())
    }

    /// Binds the pod to a node, and reports that it is ready.
    pub(super) async fn start(&self) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": self.name }, "target": { "kind": "Node", "name": "n1" },
        });
        let params = PostParams::default();
        let bound = self
            .pods
            .create_subresource("binding", self.name, &params, &binding);
        bound.await.map(|_: Value| ()).context("bind the pod")?;
        let ready = json!({ "type": "Ready", "status": "True" });
        self.report(json!({ "phase": "Running", "conditions": [ready] }))
            .await
    }

    /// Ends the pod once it is being deleted.
    pub(super) async fn end(&self) -> Result<()> {
        eventually(WITHIN, "the deletion", || async {
            let pod = self.pods.get(self.name).await?;
            let deleted = pod.metadata.deletion_timestamp;
            deleted.map(|_| ()).context("it is not being deleted")
        })
        .await?;
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(self.name, &at_once).await?;
        Ok(())
    }

    async fn is_gone(&self) -> Result<()> {
        let left = self.pods.get_opt(self.name).await?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    }
}

fn begin(ctl: &Ctl) -> Result<Child> {
    let mut command = ctl.command("try --image r.example/guest --timeout 1h");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("run vmletctl")
}

pub(super) async fn ended(child: Child) -> Result<(Output, String)> {
    let output =
        tokio::task::spawn_blocking(|| program::ended("vmletctl or helm", child)).await??;
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    Ok((output, String::from_utf8(text)?))
}

/// A pod that is made, found up and deleted; and all that ends otherwise.
pub(super) async fn guests_are_tried(control: &Control, ctl: &Ctl) -> Result<()> {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    control
        .cluster()
        .kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    let kubelet = Kubelet {
        pods: Api::namespaced(control.client()?, "default"),
        name: NAME,
    };

    // A run that is killed leaves its pod to the next one.
    let mut killed = begin(ctl)?;
    let left = kubelet.pod(None).await?;
    killed.kill()?;
    killed.wait()?;
    let mut run = begin(ctl)?;
    kubelet.pod(Some(&left)).await?;
    // An API server that is away for a while ends nothing.
    control.stop_api().await?;
    let reports = run.stderr.take().context("standard error")?;
    let (sender, reported) = oneshot::channel();
    // Reads to the end: a program that cannot write its messages fails.
    let reader = tokio::task::spawn_blocking(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(reports).lines().map_while(Result::ok) {
            if line.contains("the cluster does not answer") {
                sender.take().map(|sender| sender.send(line));
            }
        }
    });
    let report = async { reported.await.context("no report of the failure") };
    in_time(WITHIN, "a report of the failure", report).await?;
    control.start_api()?;
    kubelet.start().await?;
    kubelet.end().await?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.success(), "{text}");
    ensure!(text.contains("a guest was up on node n1"), "{text}");
    reader.await?;
    kubelet.is_gone().await?;

    // A guest that ends is none.
    let run = begin(ctl)?;
    kubelet.pod(None).await?;
    kubelet
        .report(json!({ "phase": "Failed", "reason": "Evicted", "message": "no memory" }))
        .await?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.code() == Some(1), "{text}");
    ensure!(
        text.contains("pod vmlet-try ended: Evicted: no memory"),
        "{text}"
    );
    kubelet.is_gone().await?;

    // An interrupted run tidies up.
    let run = begin(ctl)?;
    kubelet.pod(None).await?;
    kill(Pid::from_raw(run.id().try_into()?), Signal::SIGTERM)?;
    let (output, text) = ended(run).await?;
    ensure!(output.status.code() == Some(130), "{text}");
    kubelet.is_gone().await?;

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
    kubelet.pods.get(NAME).await?;
    Ok(())
}

//! Replica sets with the real controller, autoscaler and garbage collector, against a real API server
//! without nodes that do anything.
//!
//! Invariant: the machines are paused by an annotation of their template, so that only the test says
//! whether they are ready.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::machines::{class, condition, image};
use e2e::{Cluster, Control, Effect, Objects, eventually};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(240);
const VM: &str = "VirtualMachine";
const SET: &str = "VirtualMachineReplicaSet";

struct Story<'a> {
    cluster: &'a Cluster,
    objects: Objects,
}

#[tokio::test]
#[ignore = "needs root"]
async fn replica_sets_scale_adopt_and_replace_their_machines() -> Result<()> {
    let control = Control::up().await?;
    let cluster = control.cluster();
    cluster.apply(&class("tiny", "64Mi"))?;
    cluster.apply(&image("registry.example/guest:1"))?;
    control.start_controller_manager()?;
    let controller = control
        .controller("controller", &["--lease-enabled", "false"])
        .await?;
    let story = Story {
        cluster,
        objects: control.objects("default")?,
    };
    let chapters = async {
        story.scales().await?;
        story.orphans_and_adopts().await?;
        story.replaces().await?;
        story.reports_a_refused_template().await?;
        story.keeps_claims().await
    };
    let ended: Result<()> = chapters.await;
    ended.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

/// A set of machines that are paused.
fn set(name: &str, spec: &Value) -> Value {
    let labels = json!({ "app": name });
    let mut set = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": SET, "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels, "annotations": { "vmlet.dev/paused": "" } },
                "spec": { "className": "tiny", "imageName": "guest", "runStrategy": "Halted" },
            },
        },
    });
    if let Some(all) = set["spec"].as_object_mut()
        && let Some(fields) = spec.as_object()
    {
        all.extend(fields.clone());
    }
    set
}

impl Story<'_> {
    /// The set, once it is as awaited.
    async fn awaited(&self, name: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(SOON, &format!("set {name}"), || async {
            let set = self.objects.get(SET, name).await?.map_err(Error::msg)?;
            ensure!(is_it(&set), "{set:#}");
            Ok(set)
        })
        .await
    }

    async fn has(&self, name: &str, replicas: u64) -> Result<Value> {
        self.awaited(name, |set| {
            let status = &set["status"];
            let is_seen = status["observedGeneration"] == set["metadata"]["generation"];
            is_seen && set["spec"]["replicas"] == replicas && status["replicas"] == replicas
        })
        .await
    }

    async fn vm(&self, name: &str) -> Result<Value> {
        self.objects.get(VM, name).await?.map_err(Error::msg)
    }

    async fn is_gone(&self, kind: &str, name: &str) -> Result<()> {
        eventually(SOON, &format!("{name} is gone"), || async {
            ensure!(
                self.objects.get(kind, name).await?.is_err(),
                "{name} is there"
            );
            Ok(())
        })
        .await
    }

    async fn patch(&self, kind: &str, name: &str, change: Value) -> Result<()> {
        let patched = self
            .objects
            .patch(kind, name, &change, Effect::Real)
            .await?;
        patched.map(drop).map_err(Error::msg)
    }

    async fn becomes_ready(&self, name: &str) -> Result<()> {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let change = json!({ "status": { "conditions": [ready] } });
        self.patch(VM, &format!("{name}/status"), change).await
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.kubectl(words)
    }

    async fn scales(&self) -> Result<()> {
        self.cluster.apply(&set("web", &json!({ "replicas": 2 })))?;
        self.has("web", 2).await?;
        self.kubectl(&["scale", "vmrs", "web", "--replicas=3"])?;
        self.has("web", 3).await?;
        let path =
            "/apis/vmlet.dev/v1alpha1/namespaces/default/virtualmachinereplicasets/web/scale";
        let scale: Value = serde_json::from_str(&self.kubectl(&["get", "--raw", path])?)?;
        ensure!(scale["spec"]["replicas"] == 3, "{scale}");
        ensure!(scale["status"]["replicas"] == 3, "{scale}");
        ensure!(scale["status"]["selector"] == "app=web", "{scale}");
        // An autoscaler without metrics still keeps the number within its bounds.
        let target = json!({ "apiVersion": "vmlet.dev/v1alpha1", "kind": SET, "name": "web" });
        let cpu =
            json!({ "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } });
        self.cluster.apply(&json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "web" },
            "spec": {
                "scaleTargetRef": target, "minReplicas": 5, "maxReplicas": 6,
                "metrics": [{ "type": "Resource", "resource": cpu }],
            },
        }))?;
        self.has("web", 5).await?;
        self.vm("web-4").await?;
        self.kubectl(&["delete", "hpa", "web"])?;
        self.kubectl(&["scale", "vmrs", "web", "--replicas=2"])?;
        self.has("web", 2).await?;
        for name in ["web-2", "web-3", "web-4"] {
            self.is_gone(VM, name).await?;
        }
        Ok(())
    }

    async fn orphans_and_adopts(&self) -> Result<()> {
        let uid = |vm: &Value| vm["metadata"]["uid"].clone();
        let before = uid(&self.vm("web-1").await?);
        self.kubectl(&["delete", "vmrs", "web", "--cascade=orphan"])?;
        self.is_gone(SET, "web").await?;
        let orphan = self.vm("web-1").await?;
        ensure!(uid(&orphan) == before, "{orphan:#}");
        ensure!(
            orphan["metadata"]["ownerReferences"].is_null(),
            "{orphan:#}"
        );
        self.cluster.apply(&set("web", &json!({ "replicas": 2 })))?;
        let made = self.has("web", 2).await?;
        let adopted = self.vm("web-1").await?;
        ensure!(uid(&adopted) == before, "{adopted:#}");
        ensure!(
            adopted["metadata"]["ownerReferences"][0]["uid"] == uid(&made),
            "{adopted:#}"
        );
        ensure!(made["status"]["updatedReplicas"] == 2, "{made:#}");

        // Released: it is not deleted with the set.
        self.kubectl(&["label", "vm", "web-1", "app=debug", "--overwrite"])?;
        let set = self
            .awaited("web", |set| {
                condition(set, "ReplicaFailure")["reason"] == "NameTaken"
            })
            .await?;
        ensure!(set["status"]["replicas"] == 1, "{set:#}");
        self.kubectl(&["delete", "vmrs", "web"])?;
        self.is_gone(VM, "web-0").await?;
        let released = self.vm("web-1").await?;
        ensure!(uid(&released) == before, "{released:#}");
        self.kubectl(&["delete", "vm", "web-1"]).map(drop)
    }

    async fn replaces(&self) -> Result<()> {
        let rolling = json!({
            "replicas": 2,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "50%" } },
        });
        self.cluster.apply(&set("db", &rolling))?;
        let made = self.has("db", 2).await?;
        for name in ["db-0", "db-1"] {
            self.becomes_ready(name).await?;
        }
        let is_ready = |set: &Value| condition(set, "Ready")["status"] == "True";
        self.awaited("db", is_ready).await?;
        let first = self.vm("db-0").await?["metadata"]["uid"].clone();
        // A power state is the machine's own, and replaces nothing.
        let power = json!({ "runStrategy": "Manual" });
        let larger = json!({ "runStrategy": "Manual", "bootDiskCapacity": "2Gi" });
        for spec in [power, larger] {
            let change = json!({ "spec": { "template": { "spec": spec } } });
            self.patch(SET, "db", change).await?;
            self.has("db", 2).await?;
        }
        let half = self
            .awaited("db", |set| set["status"]["updatedReplicas"] == 1)
            .await?;
        ensure!(
            half["status"]["currentRevision"] == made["status"]["updateRevision"],
            "{half:#}"
        );
        ensure!(
            self.vm("db-0").await?["metadata"]["uid"] == first,
            "the second one waits"
        );
        ensure!(self.vm("db-1").await?["spec"]["bootDiskCapacity"] == "2Gi");
        self.becomes_ready("db-1").await?;
        let all = self
            .awaited("db", |set| set["status"]["updatedReplicas"] == 2)
            .await?;
        ensure!(
            all["status"]["currentRevision"] == all["status"]["updateRevision"],
            "{all:#}"
        );
        ensure!(self.vm("db-0").await?["metadata"]["uid"] != first);
        self.kubectl(&["delete", "vmrs", "db"])?;
        self.is_gone(VM, "db-0").await
    }

    async fn reports_a_refused_template(&self) -> Result<()> {
        let mut odd = set("odd", &json!({ "replicas": 1 }));
        let annotations = json!({ "vmlet.dev/paused": "", "no key": "" });
        odd["spec"]["template"]["metadata"]["annotations"] = annotations;
        self.cluster.apply(&odd)?;
        let failure = |set: &Value| condition(set, "ReplicaFailure");
        let set = self
            .awaited("odd", |set| failure(set)["reason"] == "CreateRefused")
            .await?;
        let words = failure(&set)["message"].to_string();
        ensure!(
            words.contains("odd-0") && words.contains("no key"),
            "{words}"
        );
        let change = json!({ "spec": { "template": { "metadata": { "annotations": { "no key": null } } } } });
        self.patch(SET, "odd", change).await?;
        let set = self.has("odd", 1).await?;
        ensure!(failure(&set).is_null(), "{set:#}");
        self.kubectl(&["delete", "vmrs", "odd"]).map(drop)
    }

    async fn keeps_claims(&self) -> Result<()> {
        let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
        let mut disks = set(
            "disks",
            &json!({
                "replicas": 2,
                "volumeClaimTemplates": [{ "name": "data", "size": "1Gi" }],
                "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Delete" },
            }),
        );
        disks["spec"]["template"]["spec"]["volumes"] = json!([volume]);
        self.cluster.apply(&disks)?;
        self.has("disks", 2).await?;
        let claim = self.cluster.get_json(&["pvc", "data-disks-1"])?;
        ensure!(claim["metadata"]["ownerReferences"].is_null(), "{claim:#}");
        self.kubectl(&["scale", "vmrs", "disks", "--replicas=1"])?;
        let gone = ["wait", "pvc/data-disks-1", "--for=delete", "--timeout=240s"];
        self.kubectl(&gone)?;
        self.kubectl(&["delete", "vmrs", "disks"])?;
        self.is_gone(VM, "disks-0").await?;
        // The collector is done with what belonged to the machine.
        let kept = self.cluster.get_json(&["pvc", "data-disks-0"])?;
        let going = &kept["metadata"]["deletionTimestamp"];
        ensure!(going.is_null(), "{kept:#}");
        Ok(())
    }
}

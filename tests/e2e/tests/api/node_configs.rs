//! `NodeConfig` objects from the API server to a daemon, and what their status says.
//!
//! Invariant: agent and controller have the rights of `deploy`; their policies are in force.
//! Failure: the object, what the daemon was given, and the agent's log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::NodeConfig;
use crds::conditions::{READY, find};
use crds::names::NODE_SETTINGS;
use crds::node_settings::NodeSettingsReport;
use e2e::{Agent, Control, NodeServer, eventually};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::agent_facts::{client_of, refused};

const SOON: Duration = Duration::from_secs(120);

/// A daemon, its agent and a controller.
struct Installation {
    agent: Agent,
    daemon: NodeServer,
    nodes: Api<Node>,
    configs: Api<NodeConfig>,
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_objects_that_match_a_node_are_settings_of_its_daemon_and_say_so() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let (mut agent, daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
    agent.start()?;
    let controller = control.controller("configs", &[]).await?;
    let client = control.client()?;
    let mut here = Installation {
        agent,
        daemon,
        nodes: Api::all(client.clone()),
        configs: Api::all(client),
    };
    here.objects_are_merged().await?;
    here.labels_count().await?;
    here.refusals_are_named().await?;
    here.a_restart_writes_nothing().await?;
    here.an_old_daemon_is_reported().await?;
    here.without_objects_nothing_is_said().await?;
    agent_may_write_its_report_only(&here.agent).await?;
    here.agent.kill()?;
    controller.stop().await?;
    control.down()
}

impl Installation {
    async fn objects_are_merged(&self) -> Result<()> {
        let low = json!({ "logLevel": "debug", "defaultVcpus": 2 });
        self.create("low", &json!({ "config": low })).await?;
        let high = json!({ "defaultVcpus": 3, "defaultMemory": "512Mi" });
        let high = json!({ "priority": 10, "nodeName": "n1", "config": high });
        self.create("high", &high).await?;
        let other = json!({ "nodeName": "n2", "config": { "maxDownload": "1Gi" } });
        self.create("other", &other).await?;
        self.await_given(&[
            ("log.level", "debug"),
            ("vm.default_memory", "512Mi"),
            ("vm.default_vcpus", "3"),
        ])
        .await?;
        for (name, nodes) in [("low", 1), ("high", 1), ("other", 0)] {
            self.await_ready(name, nodes, "True", "Applied", "").await?;
        }
        let report = self.report().await?.context("no report")?;
        let vcpus = &report.settings["vm.default_vcpus"];
        ensure!(
            vcpus.node_config == "high" && vcpus.value == "3",
            "{report:?}"
        );
        ensure!(report.observed.len() == 2, "{report:?}");
        Ok(())
    }

    async fn labels_count(&self) -> Result<()> {
        let spec = json!({ "nodeSelector": { "example.com/kvm": "false" }, "config": { "accelerator": "tcg" } });
        self.create("labelled", &spec).await?;
        self.await_ready("labelled", 0, "True", "Applied", "")
            .await?;
        self.label(Some("false")).await?;
        self.await_ready("labelled", 1, "True", "Applied", "")
            .await?;
        ensure!(self.daemon.settings().0["vm.accelerator"] == "tcg");
        self.label(None).await?;
        self.await_ready("labelled", 0, "True", "Applied", "")
            .await?;
        ensure!(!self.daemon.settings().0.contains_key("vm.accelerator"));
        self.delete("labelled").await
    }

    async fn refusals_are_named(&self) -> Result<()> {
        self.daemon
            .set_settings_manner(false, Some("vm.default_memory"));
        self.change("high", &json!({ "config": { "defaultMemory": "768Mi" } }))
            .await?;
        let words = "node n1: vm.default_memory: not on this node";
        self.await_ready("high", 1, "False", "Refused", words)
            .await?;
        self.await_ready("low", 1, "True", "Applied", "").await?;
        self.daemon.set_settings_manner(false, None);
        self.change("high", &json!({ "config": { "defaultMemory": "512Mi" } }))
            .await?;
        self.await_ready("high", 1, "True", "Applied", "").await
    }

    /// An agent that starts finds on the Node what it would write.
    async fn a_restart_writes_nothing(&mut self) -> Result<()> {
        let before = self.nodes.get("n1").await?;
        let times = self.daemon.settings().1;
        self.agent.kill()?;
        self.agent.start()?;
        eventually(SOON, "the settings are sent again", || async {
            ensure!(self.daemon.settings().1 > times);
            Ok(())
        })
        .await?;
        let after = self.nodes.get("n1").await?;
        ensure!(after.annotations() == before.annotations());
        Ok(())
    }

    async fn an_old_daemon_is_reported(&self) -> Result<()> {
        self.daemon.set_settings_manner(true, None);
        self.change("low", &json!({ "config": { "logLevel": "warn" } }))
            .await?;
        let words = "too old for settings of NodeConfig objects";
        self.await_ready("low", 1, "False", "Refused", words)
            .await?;
        self.daemon.set_settings_manner(false, None);
        self.change("low", &json!({ "config": { "logLevel": "info" } }))
            .await?;
        self.await_ready("low", 1, "True", "Applied", "").await
    }

    async fn without_objects_nothing_is_said(&self) -> Result<()> {
        for name in ["low", "high", "other"] {
            self.delete(name).await?;
        }
        self.await_given(&[]).await?;
        eventually(SOON, "the report ends", || async {
            let report = self.report().await?;
            ensure!(report.is_none(), "{report:?}");
            Ok(())
        })
        .await
    }

    async fn create(&self, name: &str, spec: &Value) -> Result<()> {
        let object = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "NodeConfig",
            "metadata": { "name": name }, "spec": spec,
        });
        let object = serde_json::from_value(object)?;
        let params = PostParams::default();
        self.configs.create(&params, &object).await?;
        Ok(())
    }

    async fn change(&self, name: &str, spec: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        self.configs.patch(name, &params, &patch).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let params = DeleteParams::default();
        self.configs.delete(name, &params).await?;
        Ok(())
    }

    async fn label(&self, value: Option<&str>) -> Result<()> {
        let labels = json!({ "metadata": { "labels": { "example.com/kvm": value } } });
        let params = PatchParams::default();
        self.nodes
            .patch("n1", &params, &Patch::Merge(labels))
            .await?;
        Ok(())
    }

    async fn report(&self) -> Result<Option<NodeSettingsReport>> {
        let node = self.nodes.get("n1").await?;
        let text = node.annotations().get(NODE_SETTINGS);
        Ok(text.and_then(|text| NodeSettingsReport::read(text)))
    }

    async fn await_given(&self, expected: &[(&str, &str)]) -> Result<()> {
        let expected = expected.iter();
        let expected: BTreeMap<_, _> = expected
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        eventually(SOON, "the settings of the daemon", || async {
            let given = self.daemon.settings().0;
            let log = self.agent.log();
            ensure!(given == expected, "{given:?}, not {expected:?}\n{log}");
            Ok(())
        })
        .await
    }

    async fn await_ready(
        &self,
        name: &str,
        nodes: u32,
        status: &str,
        reason: &str,
        words: &str,
    ) -> Result<()> {
        eventually(SOON, "the status of a NodeConfig", || async {
            let object = self.configs.get(name).await?;
            let found = object.status.clone().unwrap_or_default();
            let ready = find(&found.conditions, READY).context("no condition")?;
            let is_so = found.nodes == nodes
                && found.observed_generation == object.metadata.generation
                && ready.status == status
                && ready.reason == reason
                && ready.message.contains(words)
                && (!words.is_empty() || ready.message.is_empty());
            ensure!(is_so, "{name}: {found:?}\n{}", self.agent.log());
            Ok(())
        })
        .await
    }
}

/// What an agent that an attacker has taken over may not do.
async fn agent_may_write_its_report_only(agent: &Agent) -> Result<()> {
    let client = client_of(agent).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    let note = |key: &str, value: &str| {
        Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }))
    };
    nodes
        .patch("n1", &params, &note(NODE_SETTINGS, "{}"))
        .await?;
    let long = note(NODE_SETTINGS, &"x".repeat(crds::node_settings::LIMIT + 1));
    let answer = nodes.patch("n1", &params, &long).await;
    refused("a long report", answer, "at most 32768 characters")?;
    let answer = nodes.patch("n1", &params, &note("other", "x")).await;
    refused(
        "another annotation",
        answer,
        "an agent writes only its settings",
    )?;
    let configs: Api<NodeConfig> = Api::all(client);
    let status = Patch::Merge(json!({ "status": { "nodes": 7 } }));
    let answer = configs.patch_status("x", &params, &status).await;
    refused("a status", answer, "forbidden")
}

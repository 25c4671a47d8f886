//! A release of the chart in an API server: what `helm` and the service accounts of its hooks may and do.
//!
//! Invariant: no node runs, so that nothing waits for pods; helm is the administrator.
//! Failure: Helm's own message.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use e2e::{Control, program};

use super::{deploy, helm, text};

pub(super) const NAMESPACE: &str = "machines";
pub(super) const RELEASE: &str = "vmlet";

/// Helm for one cluster and namespace.
pub(super) struct Helm<'a>(pub(super) &'a Control);

impl Helm<'_> {
    pub(super) fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = helm(words)?;
        let home = self.0.stack().dir().join("helm");
        command.args(["--namespace", NAMESPACE, "--kubeconfig"]);
        command.arg(self.0.kubeconfig()?);
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, &home);
        }
        Ok(command)
    }

    pub(super) fn output(&self, words: &[&str]) -> Result<Output> {
        program::output(&mut self.command(words)?)
    }

    pub(super) fn ok(&self, words: &[&str]) -> Result<String> {
        text(self.output(words)?, &words)
    }

    /// Installs or upgrades the chart, with these further words.
    pub(super) fn set(&self, verb: &str, words: &[&str]) -> Result<String> {
        let chart = deploy("chart");
        let chart = chart.to_str().context("a path in UTF-8")?;
        self.ok(&[&[verb, RELEASE, chart][..], words].concat())
    }

    /// What exists of the release, of all kinds.
    pub(super) fn exists(&self) -> Result<()> {
        let manifest = self.ok(&["get", "manifest", RELEASE])?;
        let file = self.0.stack().dir().join("manifest.yaml");
        std::fs::write(&file, manifest)?;
        let file = file.to_str().context("a path in UTF-8")?;
        let found = self
            .0
            .cluster()
            .kubectl(&["get", "-f", file, "-o", "name"])?;
        ensure!(found.lines().count() > 40, "{found}");
        Ok(())
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_release_in_another_namespace_is_installed_and_upgraded() -> Result<()> {
    let control = Control::bare().await?;
    let helm = Helm(&control);
    let kubectl = |words: &[&str]| control.cluster().kubectl(words);
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    kubectl(&["create", "namespace", NAMESPACE])?;
    kubectl(&["label", "namespace", NAMESPACE, restricted])?;
    let refused = helm.set("install", &[]);
    let words = format!("{refused:?}");
    ensure!(
        words.contains("pod-security.kubernetes.io/enforce=privileged"),
        "{words}"
    );
    let privileged = "pod-security.kubernetes.io/enforce=privileged";
    kubectl(&["label", "namespace", NAMESPACE, "--overwrite", privileged])?;
    let notes = helm.set("install", &[])?;
    ensure!(notes.contains("spec.watch.namespace: machines"), "{notes}");
    helm.exists()?;

    let template = [
        "-o",
        "jsonpath={.metadata.generation} {.spec.template.spec.volumes[?(@.name==\"config\")].configMap.name}",
    ];
    let place = |what: &str| -> Result<(String, String)> {
        let found = kubectl(&[&["get", "-n", NAMESPACE, what][..], &template].concat())?;
        let words = found.split_once(' ').context("two words")?;
        Ok((words.0.to_owned(), words.1.to_owned()))
    };
    let before = place("daemonset/vmlet-node")?;
    let controller = place("deployment/vmlet-controller")?;
    let settings = "node.settings=[vm]\ndefault_vcpus = 2";
    helm.set("upgrade", &["--set", settings])?;
    helm.exists()?;
    let after = place("daemonset/vmlet-node")?;
    ensure!(
        before.0 != after.0 && before.1 != after.1,
        "{before:?} {after:?}"
    );
    ensure!(
        controller == place("deployment/vmlet-controller")?,
        "it is rolled out"
    );
    let name = after.1.as_str();
    let data = kubectl(&["get", "configmap", "-n", NAMESPACE, name, "-o", "yaml"])?;
    ensure!(data.contains("default_vcpus = 2"), "{data}");
    // A second release would be the same objects.
    let chart = deploy("chart");
    let chart = chart.to_string_lossy();
    let second = helm.output(&["install", "second", &chart])?;
    ensure!(!second.status.success(), "{second:?}");
    control.down()
}

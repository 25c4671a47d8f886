//! What the chart renders: the objects of the kustomization, on every platform, in every namespace.
//!
//! Invariant: no cluster is needed.
//! Failure: the objects that differ.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::program;
use serde_json::{Value, json};

use super::objects::{by_key, find, is_hook, named, parse, pod, settings};
use super::{deploy, helm, refusal, template, text, tool};

/// Takes away what kustomize adds and the API server does not see.
fn as_the_api_server_sees(object: &mut Value) -> Result<()> {
    let kind = object["kind"].as_str().unwrap_or("?").to_owned();
    let metadata = object["metadata"].as_object_mut();
    let metadata = metadata.context("metadata")?;
    if kind.starts_with("ValidatingAdmission") {
        // It does not know that these kinds belong to no namespace.
        metadata.remove("namespace");
    }
    if kind == "ValidatingAdmissionPolicy" {
        // It writes folded text with an empty line more.
        let text = object.to_string().replace("\\n\\n", "\\n");
        *object = serde_json::from_str(&text)?;
    } else if kind == "CustomResourceDefinition" {
        // Helm takes the kinds from files as they are.
        let labels = metadata.remove("labels").unwrap_or_default();
        let wanted = json!({ "app.kubernetes.io/part-of": "vmlet" });
        ensure!(labels == wanted, "{labels}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn the_defaults_are_the_objects_of_the_kustomization() -> Result<()> {
    let mut kustomize = Command::new(tool("kubectl")?);
    let output = program::output(kustomize.arg("kustomize").arg(deploy("")))?;
    let mut wanted = parse(&text(output, &"kubectl kustomize")?)?;
    // Helm creates it, or finds it.
    wanted.retain(|one| one["kind"] != "Namespace");
    for object in &mut wanted {
        as_the_api_server_sees(object)?;
    }
    let mut found = template("vmlet-system", &["--include-crds"])?;
    found.retain(|one| !is_hook(one));
    let wanted = by_key(wanted)?;
    let found = by_key(found)?;
    let one_sided = wanted.keys().filter(|key| !found.contains_key(*key));
    let other_sided = found.keys().filter(|key| !wanted.contains_key(*key));
    let differ: Vec<_> = one_sided.chain(other_sided).collect();
    ensure!(differ.is_empty(), "on one side only: {differ:#?}");
    for (key, wanted) in &wanted {
        let found = &found[key];
        ensure!(found == wanted, "{key} is\n{found:#}\nand not\n{wanted:#}");
    }
    Ok(())
}

/// Paths of a platform's nodes.
#[derive(Debug, Clone, Copy)]
struct Paths {
    config: &'static str,
    plugins: &'static str,
    plugins_mount: &'static str,
    kubelet: &'static str,
    folders: usize,
}

const USUAL: Paths = Paths {
    config: "/etc/cni/net.d",
    plugins: "/opt/cni/bin",
    plugins_mount: "/opt/cni/bin",
    kubelet: "/var/lib/kubelet",
    folders: 0,
};
const K0S: Paths = Paths {
    kubelet: "/var/lib/k0s/kubelet",
    ..USUAL
};
const K3S: Paths = Paths {
    config: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    plugins: "/var/lib/rancher/k3s/data/cni",
    plugins_mount: "/var/lib/rancher/k3s/data",
    ..USUAL
};
const MICROK8S: Paths = Paths {
    config: "/var/snap/microk8s/current/args/cni-network",
    plugins: "/var/snap/microk8s/current/opt/cni/bin",
    plugins_mount: "/var/snap/microk8s/current/opt/cni/bin",
    kubelet: "/var/snap/microk8s/common/var/lib/kubelet",
    folders: 3,
};

#[test]
#[ignore = "needs root"]
fn a_platform_sets_the_paths_of_its_nodes() -> Result<()> {
    for (platform, paths) in [
        ("kubeadm", USUAL),
        ("rke2", USUAL),
        ("k0s", K0S),
        ("k3s", K3S),
        ("microk8s", MICROK8S),
    ] {
        let objects = template("vmlet-system", &["--set", &format!("platform={platform}")])?;
        let pod = pod(find(&objects, "DaemonSet vmlet-node")?);
        for (volume, container, path) in [
            ("cni-conf", "tapmanager", paths.config),
            ("cni-bin", "tapmanager", paths.plugins_mount),
            ("cni-state", "tapmanager", "/var/lib/cni"),
            ("kubelet", "daemon", paths.kubelet),
            ("pod-logs", "daemon", "/var/log/pods"),
        ] {
            let found = &named(&pod["volumes"], volume)?["hostPath"]["path"];
            ensure!(found == path, "{platform}: {volume} is {found}");
            let mounts = &named(&pod["containers"], container)?["volumeMounts"];
            let found = &named(mounts, volume)?["mountPath"];
            ensure!(found == path, "{platform}: {volume} at {found}");
        }
        // Its script looks there.
        let first = &pod["initContainers"][0]["volumeMounts"];
        let place = &named(first, "cni-conf")?["mountPath"];
        ensure!(place == USUAL.config, "{first}");
        let toml = settings(&objects, "DaemonSet vmlet-node")?["tapmanager.toml"].to_string();
        for (setting, value, default) in [
            ("cni_conf_dir", paths.config, USUAL.config),
            ("cni_bin_dir", paths.plugins, USUAL.plugins),
        ] {
            let is_usual = value == default;
            ensure!(toml.contains(setting) != is_usual, "{platform}: {toml}");
            let word = format!("\\\"{value}\\\"");
            ensure!(is_usual || toml.contains(&word), "{platform}: {toml}");
        }
        let folders = pod["volumes"]
            .to_string()
            .matches("network-folder-")
            .count();
        ensure!(folders == paths.folders, "{platform}: {folders}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn a_path_of_ones_own_is_in_the_place_of_the_platforms() -> Result<()> {
    let words = [
        "--set",
        "platform=k3s,paths.cniPlugins=/srv/cni,paths.podLogs=/srv/logs",
    ];
    let objects = template("vmlet-system", &words)?;
    let pod = pod(find(&objects, "DaemonSet vmlet-node")?);
    for (volume, path) in [("cni-bin", "/srv/cni"), ("pod-logs", "/srv/logs")] {
        let found = named(&pod["volumes"], volume)?;
        ensure!(found["hostPath"]["path"] == path, "{found}");
    }
    let elsewhere = refusal(&[
        "--set",
        "paths.cniPlugins=/srv/cni,paths.cniPluginsMount=/opt",
    ])?;
    ensure!(
        elsewhere.contains("does not contain the plugins"),
        "{elsewhere}"
    );
    Ok(())
}

/// Values that bring every optional object.
pub(super) const EVERYTHING: &str = "agent.readSources=true,monitoring.podMonitors=true,monitoring.rules=true,\
    monitoring.nodeMetrics.enabled=true,monitoring.nodeMetrics.readers[0].namespace=monitoring,\
    monitoring.nodeMetrics.readers[0].name=prometheus,controller.podDisruptionBudget.enabled=true,\
    privileged.users={dora},privileged.groups={admins},privileged.serviceAccounts[0].namespace=velero,\
    privileged.serviceAccounts[0].name=velero,imagePullSecrets={registry}";

#[test]
#[ignore = "needs root"]
fn nothing_names_another_namespace_than_the_releases() -> Result<()> {
    let objects = template("machines", &["--set", EVERYTHING])?;
    let cluster = ["ClusterRole", "ClusterRoleBinding", "RuntimeClass"];
    for object in &objects {
        let kind = object["kind"].as_str().unwrap_or("?");
        let text = object.to_string();
        ensure!(!text.contains("vmlet-system"), "{text}");
        let is_of_cluster = cluster.contains(&kind) || kind.starts_with("ValidatingAdmission");
        let namespace = &object["metadata"]["namespace"];
        let wanted = if is_of_cluster {
            Value::Null
        } else {
            json!("machines")
        };
        ensure!(*namespace == wanted, "{kind} {namespace}");
    }
    let policy = find(&objects, "ValidatingAdmissionPolicy vmlet-internal")?.to_string();
    ensure!(
        policy.contains("system:serviceaccount:machines:vmlet-agent"),
        "{policy}"
    );
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn helm_lint_finds_nothing() -> Result<()> {
    let chart = deploy("chart");
    let chart = chart.to_string_lossy();
    for values in ["platform=kubeadm", EVERYTHING] {
        let mut lint = helm(&["lint", "--strict", &chart, "--set", values])?;
        let output = program::output(&mut lint)?;
        let text = text(output, &values)?;
        ensure!(text.contains("0 chart(s) failed"), "{text}");
        ensure!(!text.contains("[WARNING]"), "{text}");
    }
    Ok(())
}

//! Hooks of the chart: the check of `helm uninstall`, and the guest of `helm test`.
//!
//! Invariant: a hook's own command runs, with the rights of its own service account; the test has the
//! part of kubelet: it reports how the command ended.
//! Failure: Helm's own message, or the command's.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Control, eventually, program};
use kube::Api;
use serde_json::{Value, json};

use super::release::{Helm, NAMESPACE, RELEASE};
use crate::trial::{Kubelet, ended};
use crate::vmletctl::Ctl;

const WITHIN: Duration = Duration::from_secs(180);
const CHECK: &str = "vmlet-uninstall-check";

/// The command of a hook's pod, as the account of the pod.
fn command(ctl: &Ctl, pod: &Value) -> Result<Command> {
    let spec = &pod["spec"];
    let command = spec["containers"][0]["command"].as_array();
    let words = command.context("a command")?.iter();
    let words: Vec<_> = words.filter_map(Value::as_str).collect();
    let (program, words) = words.split_first().context("a program")?;
    ensure!(*program == "/usr/bin/vmletctl", "{program}");
    let account = spec["serviceAccountName"].as_str().context("an account")?;
    let line = format!(
        "--as system:serviceaccount:{NAMESPACE}:{account} --as-group system:authenticated \
         --as-group system:serviceaccounts:{NAMESPACE} {}",
        words.join(" ")
    );
    let mut command = ctl.command(&line);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// What kubelet would report.
fn report(control: &Control, pod: &Value, code: i32) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let status = json!({ "status": { "phase": phase, "containerStatuses": [{
        "name": pod["spec"]["containers"][0]["name"], "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": { "terminated": { "exitCode": code } },
    }] } });
    let status = status.to_string();
    let patch = ["patch", "pod", "-n", NAMESPACE, name, "--type=merge"];
    let what = ["--subresource=status", "-p", &status];
    let kubectl = control.cluster().kubectl(&[&patch[..], &what].concat());
    kubectl.map(drop)
}

fn begin(control: &Control, verb: &str) -> Result<Child> {
    let mut helm = Helm(control).command(&[verb, RELEASE, "--timeout", "10m"])?;
    helm.stdout(Stdio::piped()).stderr(Stdio::piped());
    helm.spawn().context("run helm")
}

/// The pod of a hook, which has not ended.
async fn pod(control: &Control, name: &str) -> Result<Value> {
    let selector = format!("--selector=app.kubernetes.io/name={name}");
    eventually(WITHIN, "the hook's pod", || async {
        let words = ["pods", "-n", NAMESPACE, &selector];
        let pods = control.cluster().get_json(&words)?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let mut waiting = pods.filter(|pod| pod["status"]["phase"] == "Pending");
        waiting.next().cloned().context("no pod")
    })
    .await
}

/// Runs `helm uninstall` beside the hook's pod; whether it succeeded, and what it printed.
async fn uninstall(control: &Control, ctl: &Ctl) -> Result<(bool, String)> {
    let helm = begin(control, "uninstall")?;
    let pod = pod(control, CHECK).await?;
    let output = program::output(&mut command(ctl, &pod)?)?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(errors.is_empty(), "too few rights: {errors}");
    report(control, &pod, output.status.code().context("a code")?)?;
    let (output, text) = ended(helm).await?;
    Ok((output.status.success(), text))
}

/// Runs `helm test`, whose command makes a pod of its own.
async fn test(control: &Control, ctl: &Ctl) -> Result<()> {
    let helm = begin(control, "test")?;
    let pod = pod(control, "vmlet-test").await?;
    let child = command(ctl, &pod)?.spawn()?;
    let guest = Kubelet {
        pods: Api::namespaced(control.client()?, NAMESPACE),
        name: "vmlet-test-guest",
    };
    guest.pod(None).await?;
    guest.start().await?;
    guest.end().await?;
    let (output, text) = ended(child).await?;
    ensure!(output.status.success(), "{text}");
    report(control, &pod, 0)?;
    let (output, text) = ended(helm).await?;
    ensure!(output.status.success(), "{text}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_release_is_tested_and_not_uninstalled_while_a_machine_exists() -> Result<()> {
    let control = Control::bare().await?;
    control.start_controller_manager()?;
    let ctl = Ctl::new(&control)?;
    let helm = Helm(&control);
    let kubectl = |words: &[&str]| control.cluster().kubectl(words);
    // No kubelet has the log of a guest.
    let words = ["--create-namespace", "--set", "test.console="];
    helm.set("install", &words)?;
    test(&control, &ctl).await?;
    eventually(WITHIN, "the kinds", || async {
        ctl.ok("create vm web --image debian --memory 64Mi --run-strategy Halted --apply")
    })
    .await?;

    let (is_done, text) = uninstall(&control, &ctl).await?;
    ensure!(!is_done && text.contains(CHECK), "{text}");
    helm.exists()?;
    // Helm has noted that it began. An administrator who wants to stay takes the same revision again.
    helm.ok(&["rollback", RELEASE, "1"])?;
    let status = helm.ok(&["status", RELEASE])?;
    ensure!(status.contains("STATUS: deployed"), "{status}");
    helm.set("upgrade", &["--set", "controller.replicas=3"])?;
    for rights in ["clusterrole", "clusterrolebinding"] {
        let left = kubectl(&["get", rights, CHECK, "--ignore-not-found"])?;
        ensure!(left.is_empty(), "{left}");
    }

    kubectl(&["delete", "vm", "web"])?;
    let (is_done, text) = uninstall(&control, &ctl).await?;
    ensure!(is_done, "{text}");
    let left = kubectl(&[
        "get",
        "clusterroles,clusterrolebindings,runtimeclasses,validatingadmissionpolicies,\
         daemonsets,deployments,configmaps",
        "--all-namespaces",
        "--selector=app.kubernetes.io/part-of=vmlet",
    ])?;
    ensure!(left.is_empty(), "{left}");
    let kinds = kubectl(&["get", "crd", "-o", "name"])?;
    ensure!(kinds.contains("virtualmachines.vmlet.dev"), "{kinds}");
    control.down()
}

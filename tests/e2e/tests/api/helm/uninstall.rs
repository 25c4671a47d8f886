//! `helm uninstall`, with the hook that looks whether anything is left.
//!
//! Invariant: the hook's own command runs, with the rights of its own service account; the test has the part of
//! kubelet: it reports how the command ended.
//! Failure: Helm's own message, or the command's.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Control, eventually};
use serde_json::{Value, json};

use super::release::{Helm, NAMESPACE, RELEASE};
use crate::vmletctl::Ctl;

const WITHIN: Duration = Duration::from_secs(180);
const HOOK: &str = "vmlet-uninstall-check";

/// The exit code of the command of the hook's pod, as the account of the pod.
fn run_command(ctl: &Ctl, pod: &Value) -> Result<i32> {
    let command = &pod["spec"]["containers"][0]["command"];
    let words = command.as_array().context("a command")?.iter();
    let words: Vec<_> = words.filter_map(Value::as_str).collect();
    let (program, words) = words.split_first().context("a program")?;
    ensure!(
        Path::new(program) == Path::new("/usr/bin/vmletctl"),
        "{command}"
    );
    let account = format!("--as system:serviceaccount:{NAMESPACE}:{HOOK}");
    let groups =
        format!("--as-group system:serviceaccounts:{NAMESPACE} --as-group system:authenticated");
    let output = ctl.run(&format!("{account} {groups} {}", words.join(" ")))?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(
        errors.is_empty(),
        "the account has too few rights: {errors}"
    );
    output.status.code().context("an exit code")
}

/// What kubelet would report.
fn report(control: &Control, pod: &Value, code: i32) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let status = json!({ "status": { "phase": phase, "containerStatuses": [{
        "name": "check", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": code } },
    }] } });
    let status = status.to_string();
    let patch = [
        "patch",
        "pod",
        "-n",
        NAMESPACE,
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    control.cluster().kubectl(&patch).map(drop)
}

/// Runs `helm uninstall` beside the hook's pod; whether it succeeded, and what it printed.
async fn uninstall(control: &Control, ctl: &Ctl) -> Result<(bool, String)> {
    let mut helm = Helm(control).command(&["uninstall", RELEASE, "--timeout", "10m"])?;
    let helm = helm.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let selector = format!("--selector=job-name={HOOK}");
    let pod = eventually(WITHIN, "the hook's pod", || async {
        let pods = control
            .cluster()
            .get_json(&["pods", "-n", NAMESPACE, &selector])?;
        let pod = pods["items"].as_array().and_then(|all| all.last().cloned());
        let pod = pod.filter(|pod| pod["status"]["phase"] == "Pending");
        pod.context("no pod")
    })
    .await?;
    report(control, &pod, run_command(ctl, &pod)?)?;
    let output = tokio::task::spawn_blocking(|| helm.wait_with_output()).await??;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(text)?))
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_uninstallation_is_refused_while_a_machine_exists_and_leaves_the_kinds() -> Result<()> {
    let control = Control::bare().await?;
    control.start_controller_manager()?;
    let ctl = Ctl::new(&control)?;
    let helm = Helm(&control);
    let kubectl = |words: &[&str]| control.cluster().kubectl(words);
    helm.set("install", &["--create-namespace"])?;
    eventually(WITHIN, "the kinds", || async {
        ctl.ok("create vm web --image debian --memory 64Mi --run-strategy Halted --apply")
    })
    .await?;

    let (is_done, text) = uninstall(&control, &ctl).await?;
    ensure!(!is_done, "{text}");
    ensure!(text.contains(HOOK), "{text}");
    helm.exists()?;
    // Helm has noted that it began. An administrator who wants to stay takes the same revision again.
    helm.ok(&["rollback", RELEASE, "1"])?;
    let status = helm.ok(&["status", RELEASE])?;
    ensure!(status.contains("STATUS: deployed"), "{status}");
    helm.set("upgrade", &["--set", "controller.replicas=3"])?;
    for rights in ["clusterrole", "clusterrolebinding"] {
        let left = kubectl(&["get", rights, HOOK, "--ignore-not-found"])?;
        ensure!(left.is_empty(), "{left}");
    }

    kubectl(&["delete", "vm", "web"])?;
    let (is_done, text) = uninstall(&control, &ctl).await?;
    ensure!(is_done, "{text}");
    let left = kubectl(&[
        "get",
        "clusterroles,clusterrolebindings,runtimeclasses,validatingadmissionpolicies,daemonsets,deployments,configmaps,jobs",
        "--all-namespaces",
        "--selector=app.kubernetes.io/part-of=vmlet",
    ])?;
    ensure!(left.is_empty(), "{left}");
    let kinds = kubectl(&["get", "crd", "-o", "name"])?;
    ensure!(kinds.contains("virtualmachines.vmlet.dev"), "{kinds}");
    control.down()
}

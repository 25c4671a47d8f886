//! Starts the programs of a node in the order in which they need each other, as many at once as can
//! be.
//!
//! Invariant: when the last node is up, it is Ready and pods can be created.
//! Failure: the first program that does not answer is the error, with the end of its log.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    Guests, MAX_NODES, NODE_LABEL, Node, PROCESSES, Plan, RUNTIME, agent, commands, configs,
    containerd_socket, images, install, kubeconfig, links, pki, worker_dir,
};
use crate::run;
use crate::stack::bring_up::{start, wait_for};
use crate::stack::{Layout, Program};

/// How long the cluster may take to take a new node in.
const TIMEOUT: &str = "--timeout=300s";

/// Writes the configuration of a new node and starts everything.
pub(crate) fn bring_up_node(layout: &Layout, node: &Node, plan: &Plan) -> Result<()> {
    if node.is_control() {
        pki::issue(&layout.path("pki"), plan).context("certificates")?;
        kubeconfig::write_all(node, plan)?;
        configs::write_audit_policy(layout)?;
    } else if node.guests != Guests::Runtimes {
        let control = Layout::existing(&node.control)?;
        links::connect(&control, layout, node.number).context("join")?;
    }
    if node.guests == Guests::NoNode {
        return boot_api(layout);
    }
    configs::write_all(layout, node)?;
    boot(layout, node)
}

/// Connects a node again after its network namespace was made again.
pub(crate) fn rejoin(node: &Node) -> Result<()> {
    let control = Layout::existing(&node.control)?;
    for number in 2..=MAX_NODES {
        let is_affected = node.is_control() || node.number == number;
        if let Ok(worker) = Layout::existing(&worker_dir(control.dir(), number))
            && is_affected
        {
            links::connect(&control, &worker, number).context("join")?;
        }
    }
    Ok(())
}

/// Starts everything of a node.
pub(crate) fn boot(layout: &Layout, node: &Node) -> Result<()> {
    if node.is_control() {
        start(layout, Program::Etcd)?;
    }
    let socket = containerd_socket(layout);
    symlink("../host/run/containerd/containerd.sock", &socket)
        .with_context(|| format!("link {}", socket.display()))?;
    start(layout, Program::Containerd)?;
    if node.has_stack() {
        start(layout, Program::Libvirtd)?;
        start(layout, Program::VmletTapmanager)?;
    }
    if node.is_control() {
        wait_for(layout, Program::Etcd)?;
        start(layout, Program::KubeApiserver)?;
    }
    wait_for(layout, Program::Containerd)?;
    images::import(layout).context("images")?;
    if node.has_stack() {
        wait_for(layout, Program::Libvirtd)?;
        wait_for(layout, Program::VmletTapmanager)?;
        start(layout, Program::Vmlet)?;
        wait_for(layout, Program::Vmlet)?;
    }
    start(layout, Program::VmletCriproxy)?;
    wait_for(layout, Program::VmletCriproxy)?;
    if node.guests == Guests::Runtimes {
        return Ok(());
    }
    let mut last = vec![Program::Kubelet, Program::KubeProxy];
    if node.is_control() {
        wait_for(layout, Program::KubeApiserver)?;
        last.extend([Program::KubeControllerManager, Program::KubeScheduler]);
    }
    for program in &last {
        start(layout, *program)?;
    }
    if node.has_controller() {
        // Kubernetes' own programs take longer to get ready than this does.
        install::kinds_and_rights(node)?;
        start(layout, Program::VmletController)?;
        last.push(Program::VmletController);
    }
    if node.has_agent() {
        agent::admit(layout, node).context("the agent's token")?;
        start(layout, Program::VmletAgent)?;
        last.push(Program::VmletAgent);
    }
    last.iter()
        .try_for_each(|program| wait_for(layout, *program))
}

/// Starts what there is of a cluster without nodes.
fn boot_api(layout: &Layout) -> Result<()> {
    for program in [Program::Etcd, Program::KubeApiserver] {
        start(layout, program)?;
        wait_for(layout, program)?;
    }
    Ok(())
}

/// Makes the cluster ready for pods: nodes, RuntimeClass, the account that pods run as.
pub(crate) fn wait_until_ready(node: &Node, plan: &Plan) -> Result<()> {
    if plan.guests == Guests::Vmlet {
        for handler in [RUNTIME, PROCESSES] {
            apply(node, &runtime_class(handler))?;
        }
    }
    if matches!(plan.guests, Guests::NoNode | Guests::Runtimes) {
        return Ok(());
    }
    let wait = |arguments: &[&str]| -> Result<String> {
        run::output(
            commands::kubectl(node)
                .arg("wait")
                .arg(TIMEOUT)
                .args(arguments),
        )
    };
    for number in 1..=plan.nodes {
        let name = format!("node/{}", super::node_name(number));
        wait(&["--for=create", &name])?;
        wait(&["--for=condition=Ready", &name])?;
        if plan.guests == Guests::Vmlet {
            run::output(commands::kubectl(node).args(["label", &name, NODE_LABEL]))?;
        }
    }
    wait(&["--for=create", "serviceaccount/default"]).map(drop)
}

/// Beside the memory of its guest QEMU takes about 90 MiB under software emulation.
fn runtime_class(handler: &str) -> serde_json::Value {
    json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": { "name": handler },
        "handler": handler,
        "overhead": { "podFixed": { "cpu": "10m", "memory": "160Mi" } },
        "scheduling": { "nodeSelector": { "vmlet.dev/node": "true" } },
    })
}

fn apply(node: &Node, object: &serde_json::Value) -> Result<()> {
    let mut kubectl = commands::kubectl(node);
    kubectl.args(["apply", "--filename", "-"]);
    let mut child = kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run kubectl")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(object.to_string().as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl apply: {}", words.trim());
    Ok(())
}

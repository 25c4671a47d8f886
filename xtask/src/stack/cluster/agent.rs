//! Configuration and token of a node's agent.
//!
//! Invariant: the token is bound to the node, and the agent has a user of its own, so that the limits
//! of `deploy/agent` hold here as they do for a pod.
//! Failure: a node that kubelet does not register, or kubectl's own message.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::{AGENT_HEALTH_PORT, Node, commands, node_address};
use crate::run;
use crate::stack::Layout;
use crate::stack::config::toml_string;
use crate::stack::layout::{AGENT_UID, NODE_SOCKET, STATUS_SOCKET};

/// Waits until the node is registered, gets a token, and writes what the agent reads.
pub(super) fn admit(layout: &Layout, node: &Node) -> Result<()> {
    let name = node.name();
    let object = format!("node/{name}");
    let wait = ["wait", "--timeout=300s", "--for=create", &object];
    run::output(commands::kubectl(node).args(wait))?;
    let mut create = commands::kubectl(node);
    create.args(["-n", "vmlet-system", "create", "token", "vmlet-agent"]);
    create.args(["--bound-object-kind=Node", "--duration=48h"]);
    create.arg(format!("--bound-object-name={name}"));
    let token = run::output(&mut create)?;
    let authority = layout.path("agent.ca.crt");
    let from = node.pki("ca.crt");
    let certificate =
        fs::read_to_string(&from).with_context(|| format!("read {}", from.display()))?;
    write(&authority, &certificate)?;
    let kubeconfig = layout.path("agent.kubeconfig");
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": {
            "server": format!("https://{}:{}", node_address(1), node.api_port),
            "certificate-authority": authority,
        }}],
        "users": [{ "name": "agent", "user": { "token": token.trim() } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "agent" } }],
        "current-context": "test",
    });
    write(&kubeconfig, &file.to_string())?;
    let socket = |path: &Path| toml_string(&path.to_string_lossy());
    let lines = [
        format!("node = {}", toml_string(&name)),
        format!("kubeconfig = {}", socket(&kubeconfig)),
        format!("node_endpoint = {}", socket(&layout.path(NODE_SOCKET))),
        format!("proxy_endpoint = {}", socket(&layout.path(STATUS_SOCKET))),
        format!("boot_id_file = {}", socket(&layout.path("boot-id"))),
        format!("health_listen = \"127.0.0.1:{AGENT_HEALTH_PORT}\"\n"),
    ];
    write(&layout.path("agent.toml"), &lines.join("\n"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    // Made again, so that the mode is ours.
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        fchown(&file, Some(AGENT_UID), Some(AGENT_UID))
    });
    written.with_context(|| format!("write {}", path.display()))
}

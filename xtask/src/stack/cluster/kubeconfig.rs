//! The kubeconfig files of a cluster's programs and users.
//!
//! Invariant: a file names its certificates by path and holds no secret itself.
//! Failure: a file that cannot be written is named.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Node, Plan, node_address, pki};

/// Writes the files of all users; those of programs that run on any node name the first node's
/// address.
pub(super) fn write_all(node: &Node, plan: &Plan) -> Result<()> {
    let everywhere = node_address(1);
    write(node, &node.kubeconfig(), "127.0.0.1", "admin")?;
    for user in [
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "vmlet-controller",
    ] {
        write(node, &path(node, user), &everywhere, user)?;
    }
    for number in 1..=plan.nodes {
        let user = pki::kubelet(number);
        write(node, &path(node, &user), &everywhere, &user)?;
    }
    Ok(())
}

/// The file of a user other than the administrator.
pub(super) fn path(node: &Node, user: &str) -> std::path::PathBuf {
    node.pki(&format!("{user}.kubeconfig"))
}

fn write(node: &Node, path: &Path, host: &str, user: &str) -> Result<()> {
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": {
            "server": format!("https://{host}:{}", node.api_port),
            "certificate-authority": node.pki("ca.crt"),
        }}],
        "users": [{ "name": user, "user": {
            "client-certificate": node.pki(&format!("{user}.crt")),
            "client-key": node.pki(&format!("{user}.key")),
        }}],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
        "current-context": "test",
    });
    let text = serde_json::to_string_pretty(&file)? + "\n";
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

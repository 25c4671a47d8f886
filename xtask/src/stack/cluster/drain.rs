//! Empties a node whose kubelet has been stopped.
//!
//! Invariant: sandboxes that still run are named: they are pods that a test left, not leaks.
//! Stopped ones wait for kubelet's next round of collection, once a minute, and are not reported.
//! Failure: a runtime that does not answer is reported; what it holds shows up among the leaks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Guests, Node, containerd_socket};
use crate::stack::Layout;
use crate::{run, workspace};

/// How long a runtime may take over one request; removing a VM waits for its end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A pod as a runtime knows it.
#[derive(Debug, Deserialize)]
pub(crate) struct Sandbox {
    id: String,
    metadata: Metadata,
    state: State,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
enum State {
    #[serde(rename = "SANDBOX_READY")]
    Ready,
    #[serde(rename = "SANDBOX_NOTREADY")]
    NotReady,
}

#[derive(Debug, Deserialize)]
struct Sandboxes {
    #[serde(default)]
    items: Vec<Sandbox>,
}

impl std::fmt::Display for Sandbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Metadata { name, namespace } = &self.metadata;
        write!(formatter, "{namespace}/{name}")
    }
}

/// What was found on a node.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    /// Sandboxes that ran; they no longer exist.
    pub(crate) found: Vec<Sandbox>,
    /// What did not work.
    pub(crate) trouble: Vec<String>,
}

/// Removes every sandbox from both runtimes.
pub(crate) fn drain(layout: &Layout, node: &Node) -> Drained {
    let mut sockets = vec![containerd_socket(layout)];
    if node.has_stack() {
        sockets.push(layout.cri_socket());
    }
    let mut drained = Drained::default();
    if node.guests == Guests::NoNode {
        return drained;
    }
    for socket in sockets {
        match remove_all(&socket) {
            Ok(sandboxes) => drained.found.extend(sandboxes),
            Err(error) => {
                let trouble = format!("empty {}: {error:#}", socket.display());
                drained.trouble.push(trouble);
            }
        }
    }
    drained
}

fn remove_all(socket: &Path) -> Result<Vec<Sandbox>> {
    if !socket.exists() {
        return Ok(Vec::new());
    }
    let list = crictl(socket, &["pods", "--output", "json"])?;
    let mut list: Sandboxes = serde_json::from_str(&list).context("parse the list of sandboxes")?;
    for sandbox in &list.items {
        crictl(socket, &["rmp", "--force", &sandbox.id])
            .with_context(|| format!("remove the sandbox of {sandbox}"))?;
    }
    list.items.retain(|sandbox| sandbox.state == State::Ready);
    Ok(list.items)
}

fn crictl(socket: &Path, arguments: &[&str]) -> Result<String> {
    let mut crictl = run::command(workspace::tools_bin().join("crictl"));
    crictl
        .arg("--runtime-endpoint")
        .arg(format!("unix://{}", socket.display()));
    crictl
        .arg("--image-endpoint")
        .arg(format!("unix://{}", socket.display()));
    crictl
        .arg("--timeout")
        .arg(format!("{}s", TIMEOUT.as_secs()))
        .args(arguments);
    match run::capture_within(&mut crictl, TIMEOUT)? {
        Some(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Some(output) => bail!("{}", run::tail(&String::from_utf8_lossy(&output.stderr), 3)),
        None => bail!("no answer within {} s", TIMEOUT.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crictl_shows_running_and_stopped_sandboxes() {
        let list: Sandboxes = serde_json::from_str(
            r#"{"items": [
                {"id": "a", "metadata": {"name": "x", "namespace": "n", "uid": "u"}, "state": "SANDBOX_READY"},
                {"id": "b", "metadata": {"name": "y", "namespace": "n"}, "state": "SANDBOX_NOTREADY"}
            ]}"#,
        )
        .unwrap();
        let states: Vec<_> = list.items.iter().map(|sandbox| &sandbox.state).collect();
        assert_eq!(states, [&State::Ready, &State::NotReady]);
        assert_eq!(list.items[0].to_string(), "n/x");
        assert!(
            serde_json::from_str::<Sandboxes>("{}")
                .unwrap()
                .items
                .is_empty()
        );
    }
}

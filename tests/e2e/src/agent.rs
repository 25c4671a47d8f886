//! The real `vmlet-agent` as a child of a test, with the rights that `deploy/agent` gives to the
//! agent of one node.
//!
//! Invariant: it never outlives its test; its token is bound to a Node, as one in a pod is.
//! Failure: a test that fails shows the end of its log.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::control::Control;
use crate::node_server::NodeServer;
use crate::stack::programs;
use crate::wait::eventually;

const NAMESPACE: &str = "vmlet-system";

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    dir: PathBuf,
    child: Option<Child>,
}

impl Agent {
    /// Where its socket, log and crash points are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket at which it looks for a daemon.
    pub fn node_socket(&self) -> PathBuf {
        self.dir.join("node.sock")
    }

    /// The same as [`Self::prepare`], beside a daemon that the test plays, which has started.
    pub async fn beside_daemon(
        control: &Control,
        dir: &Path,
        node: &str,
    ) -> Result<(Self, NodeServer)> {
        let agent = Self::prepare(control, dir, node).await?;
        let mut daemon = NodeServer::new(&agent.node_socket());
        daemon.start()?;
        Ok((agent, daemon))
    }

    /// Installs rights and policy, makes the Node, and writes a configuration; not started.
    pub async fn prepare(control: &Control, dir: &Path, node: &str) -> Result<Self> {
        let cluster = control.cluster();
        let kubeconfig = match control.namespace(NAMESPACE).await {
            Ok(()) => install(control).await,
            // Another agent of the same test was first.
            Err(_) => Ok(()),
        };
        kubeconfig?;
        cluster.apply(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": node },
        }))?;
        std::fs::create_dir_all(dir.join("faults"))?;
        let token = node_token(control, node)?;
        let file = kubeconfig_of(&control.kubeconfig()?, &token)?;
        std::fs::write(dir.join("kubeconfig"), file.to_string())?;
        let config = format!(
            "node = \"{node}\"\nkubeconfig = \"{dir}/kubeconfig\"\nnode_endpoint = \"{dir}/node.sock\"\n\
             proxy_endpoint = \"\"\n[log]\nlevel = \"debug\"\n[limits]\nprogress = \"1s\"\n\
             guest_facts = \"2s\"\ncompleted_tasks = \"10m\"\n",
            dir = dir.display(),
        );
        std::fs::write(dir.join("agent.toml"), config)?;
        Ok(Self {
            dir: dir.to_owned(),
            child: None,
        })
    }

    /// Appends to its configuration, table `limits`.
    pub fn limit(&self, key: &str, value: &str) -> Result<()> {
        let file = self.dir.join("agent.toml");
        let text = std::fs::read_to_string(&file)?;
        let kept = text.lines().filter(|line| !line.starts_with(key));
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        Ok(std::fs::write(
            file,
            format!("{kept}{key} = \"{value}\"\n"),
        )?)
    }

    /// Starts it.
    pub fn start(&mut self) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("agent.log"))?;
        let program = programs()?.join("vmlet-agent");
        let child = Command::new(&program)
            .arg("--config")
            .arg(self.dir.join("agent.toml"))
            .env("VMLET_FAULT_DIR", self.dir.join("faults"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}: was it built?", program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Arms a crash point.
    pub fn arm(&self, point: &str) -> Result<()> {
        Ok(std::fs::write(self.dir.join("faults").join(point), "")?)
    }

    /// Waits until it has ended, at a crash point say.
    pub async fn await_death(&mut self, within: Duration) -> Result<()> {
        let child = self.child.take().context("it does not run")?;
        let child = std::sync::Mutex::new(child);
        eventually(within, "the agent's death", || async {
            let mut child = child
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            ensure!(child.try_wait()?.is_some(), "it lives");
            Ok(())
        })
        .await
    }

    /// All it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.kill().is_ok() && std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- end of agent.log\n{tail}");
        }
    }
}

/// Account, roles and policy as `deploy/` has them; waits until the policy works.
async fn install(control: &Control) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent");
    for file in ["serviceaccount.yaml", "node-limits.yaml", "sources.yaml"] {
        let file = folder.join(file);
        let arguments = ["apply", "-f", &file.to_string_lossy()];
        control.cluster().kubectl(&arguments)?;
    }
    // A token without a node may not even do this.
    let unbound =
        control
            .cluster()
            .kubectl(&["-n", NAMESPACE, "create", "token", "vmlet-agent"])?;
    let file = control.stack().dir().join("unbound.kubeconfig");
    let access = kubeconfig_of(&control.kubeconfig()?, unbound.trim())?;
    std::fs::write(&file, access.to_string())?;
    let access = format!("--kubeconfig={}", file.display());
    let lease = lease_file(control)?;
    eventually(Duration::from_secs(120), "the agents' policy", || async {
        let arguments = [&access, "create", "--dry-run=server", "-f", &lease];
        let refused = control.cluster().kubectl(&arguments);
        let words = format!("{refused:?}");
        ensure!(words.contains("not bound to a pod or a node"), "{words}");
        Ok(())
    })
    .await
}

fn lease_file(control: &Control) -> Result<String> {
    let file = control.stack().dir().join("lease.json");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "vmlet-node-policy-check", "namespace": NAMESPACE },
    });
    std::fs::write(&file, lease.to_string())?;
    Ok(file.to_string_lossy().into_owned())
}

/// A token of the agents' account that is bound to a Node.
pub fn node_token(control: &Control, node: &str) -> Result<String> {
    let token = control.cluster().kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "token",
        "vmlet-agent",
        "--bound-object-kind=Node",
        &format!("--bound-object-name={node}"),
        "--duration=4h",
    ])?;
    Ok(token.trim().to_owned())
}

/// The administrator's file with a token in place of his certificate.
fn kubeconfig_of(admin: &Path, token: &str) -> Result<Value> {
    let text = std::fs::read_to_string(admin)?;
    let mut file: Value = serde_json::from_str(&text)?;
    file["users"][0]["user"] = json!({ "token": token });
    Ok(file)
}

//! A Kubernetes cluster, started and stopped by `cargo xtask up --cluster` and `down`.
//!
//! Invariant: a node is a [`Stack`] with everything that a stack has; the cluster is the first
//! one's.
//! Failure: `down` names what any node leaked. A test that fails shows pods, events and the ends of
//! logs.

use std::fmt::Display;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::kept;
use crate::leftovers::CLEAN;
use crate::outcome::{self, Late};
use crate::program;
use crate::reader::{self, Reader};
use crate::stack::{Endpoint, Stack, streams};
use crate::wait::{allowed, eventually};

/// What a cluster is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How many nodes.
    pub nodes: u8,
    /// Nodes without libvirtd, vmlet-tapmanager and vmlet.
    pub no_vmlet: bool,
    /// Registries at [`crate::REGISTRY`] and [`crate::REGISTRY_WITH_LOGIN`] in the first node.
    pub registries: bool,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// In order; taking the first one down takes all of them down.
    nodes: Vec<Stack>,
    down: bool,
    reader: Reader,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 1,
            no_vmlet: false,
            registries: false,
        }
    }
}

impl Cluster {
    /// Starts a cluster of one node.
    pub fn up() -> Result<Self> {
        Self::with(Options::default())
    }

    /// Starts a cluster; when this returns all nodes are Ready.
    pub fn with(options: Options) -> Result<Self> {
        let count = options.nodes.to_string();
        let mut arguments = vec!["--cluster", "--nodes", &count];
        arguments.extend(options.no_vmlet.then_some("--no-vmlet"));
        arguments.extend(options.registries.then_some("--registries"));
        let control = Stack::up_with(&arguments)?;
        let mut nodes = vec![control];
        for number in 2..=options.nodes {
            nodes.push(Stack::worker(&nodes[0], number)?);
        }
        Ok(Self {
            nodes,
            down: false,
            reader: Reader::default(),
        })
    }

    /// Starts etcd and the API server, and no node: see [`crate::Control`].
    pub(crate) fn without_nodes() -> Result<Self> {
        Ok(Self {
            nodes: vec![Stack::up_with(&["--cluster", "--no-node"])?],
            down: false,
            reader: Reader::default(),
        })
    }

    /// Stops the cluster; an error when it leaked anything.
    pub fn down(mut self) -> Result<()> {
        self.down = true;
        self.nodes.swap_remove(0).down()
    }

    /// The first node, which also has the control plane.
    pub fn stack(&self) -> &Stack {
        &self.nodes[0]
    }

    /// A node by its number, from 1 on.
    pub fn node(&self, number: usize) -> &Stack {
        &self.nodes[number - 1]
    }

    /// All nodes in their order.
    pub fn nodes(&self) -> impl Iterator<Item = &Stack> {
        self.nodes.iter()
    }

    /// A kubectl command line, for tests that read a stream. A deadline that it keeps itself,
    /// `--timeout=180s`, is that of [`crate::eventually`].
    pub fn kubectl_command(&self, arguments: &[&str]) -> Result<Command> {
        let stack = self.stack();
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| on_this_machine(argument))
            .collect::<Result<_>>()?;
        let mut command = Command::new("kubectl");
        command
            .env("PATH", stack.var("PATH")?)
            .env("KUBECONFIG", stack.var("KUBECONFIG")?)
            .arg("--cache-dir")
            .arg(stack.dir().join("kubectl-cache"))
            .args(arguments)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs kubectl and returns what it printed; an error shows both streams.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = program::output(&mut self.kubectl_command(arguments)?)?;
        succeeded(arguments, &output)?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// What `kubectl get` says about something.
    pub fn get_json(&self, arguments: &[&str]) -> Result<Value> {
        if let Some(path) = reader::path(arguments) {
            let kubeconfig = Path::new(self.stack().var("KUBECONFIG")?);
            let read = self.reader.get(kubeconfig, &path);
            return read.with_context(|| format!("get {arguments:?}"));
        }
        let text = self.kubectl(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("parse kubectl's answer")
    }

    /// What the container of a pod in the namespace `default` has logged.
    pub fn logs(&self, pod: &str) -> Result<String> {
        let kubeconfig = Path::new(self.stack().var("KUBECONFIG")?);
        let path = format!("/api/v1/namespaces/default/pods/{pod}/log");
        let read = self.reader.text(kubeconfig, &path);
        // The API server asks the node: its own deadline passes when a program of ours hangs.
        read.map_err(|error| anyhow!("logs of {pod}: {error:#}"))
    }

    /// Applies manifests: YAML text, or a JSON value.
    pub fn apply(&self, manifests: &(impl Display + ?Sized)) -> Result<()> {
        self.apply_with(manifests, &[])
    }

    /// Queries the API server whether it would take manifests; fields that it does not know are
    /// errors.
    pub fn dry_run(&self, manifests: &(impl Display + ?Sized)) -> Result<()> {
        self.apply_with(manifests, &["--dry-run=server", "--validate=strict"])
    }

    fn apply_with(&self, manifests: &(impl Display + ?Sized), options: &[&str]) -> Result<()> {
        let mut file = tempfile::tempfile()?;
        file.write_all(manifests.to_string().as_bytes())?;
        file.rewind()?;
        let mut kubectl =
            self.kubectl_command(&[&["apply", "--filename", "-"], options].concat())?;
        let output = program::output_of(kubectl.stdin(file))?;
        succeeded(&["apply"], &output)
    }

    /// Waits until `kind/name` is ready, in the sense of its kind.
    pub fn await_ready(&self, kind_name: &str, within: Duration) -> Result<()> {
        let condition = match kind_name.split_once('/').map(|(kind, _)| kind) {
            Some("deployment") => "condition=Available",
            Some("job") => "condition=Complete",
            _ => "condition=Ready",
        };
        self.await_condition(kind_name, condition, within)
    }

    /// Waits until something no longer exists.
    pub fn await_gone(&self, kind_name: &str, within: Duration) -> Result<()> {
        self.await_condition(kind_name, "delete", within)
    }

    /// `kubectl wait --for=CONDITION`; the error shows what the thing looks like.
    pub fn await_condition(
        &self,
        kind_name: &str,
        condition: &str,
        within: Duration,
    ) -> Result<()> {
        let condition = format!("--for={condition}");
        let within = format!("--timeout={}s", within.as_secs());
        self.kubectl(&["wait", &condition, &within, kind_name])
            .map(drop)
            .with_context(|| self.kubectl(&["describe", kind_name]).unwrap_or_default())
    }

    /// Waits for an event of a pod whose message contains `words`, which may be empty.
    pub async fn await_event(
        &self,
        pod: &str,
        reason: &str,
        words: &str,
        within: Duration,
    ) -> Result<()> {
        let selector = format!("--field-selector=involvedObject.name={pod},reason={reason}");
        eventually(within, &format!("event {reason} of {pod}"), || async {
            let events = self.get_json(&["events", &selector])?["items"].take();
            let events = events.as_array().context("items")?;
            let reported =
                |event: &Value| event["message"].as_str().is_some_and(|m| m.contains(words));
            ensure!(events.iter().any(reported), "no {words:?} in {events:?}");
            Ok(())
        })
        .await
    }

    /// Changes the configuration of the first node's kubelet, and starts it again.
    pub fn configure_kubelet(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let file = self.stack().dir().join("kubelet.json");
        let mut settings = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        change(&mut settings);
        std::fs::write(&file, settings.to_string())?;
        self.stack().restart("kubelet")
    }

    /// Deletes something and waits until it no longer exists.
    pub fn delete(&self, kind_name: &str, within: Duration) -> Result<()> {
        let within = format!("--timeout={}s", within.as_secs());
        self.kubectl(&["delete", kind_name, "--wait", &within])
            .map(drop)
    }

    /// The address of a pod.
    pub fn pod_ip(&self, name: &str) -> Result<String> {
        let pod = self.get_json(&["pod", name])?;
        let ip = pod["status"]["podIP"].as_str();
        let ip = ip.with_context(|| format!("pod {name} has no address yet"))?;
        Ok(ip.to_owned())
    }

    /// Waits until no node holds anything of any pod. Sandboxes that kubelet has stopped are
    /// removed here: itself it does that once a minute.
    pub async fn await_clean(&self) -> Result<()> {
        for node in &self.nodes {
            eventually(CLEAN, "stopped sandboxes", || async {
                let running = node.crictl_at(Endpoint::Proxy, &["pods", "-q", "-s", "ready"])?;
                ensure!(running.is_empty(), "still running: {running}");
                let stopped = node.crictl_at(Endpoint::Proxy, &["pods", "-q"])?;
                for id in stopped.lines() {
                    node.crictl_at(Endpoint::Proxy, &["rmp", id])?;
                }
                Ok(())
            })
            .await?;
            node.await_clean()
                .await
                .with_context(|| node.dir().display().to_string())?;
        }
        Ok(())
    }
}

/// An error with both streams of a kubectl that failed.
fn succeeded(arguments: &[&str], output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let error = anyhow!("kubectl {arguments:?}: {}", streams(output));
    let stderr = String::from_utf8_lossy(&output.stderr);
    if outcome::is_late_kubectl(arguments, &stderr) {
        return Err(error.context(Late));
    }
    Err(error)
}

/// An argument of kubectl; a deadline is that of this machine.
fn on_this_machine(argument: &str) -> Result<String> {
    let seconds = argument.strip_prefix("--timeout=");
    let Some(seconds) = seconds.and_then(|text| text.strip_suffix('s')) else {
        return Ok(argument.to_owned());
    };
    let within = Duration::from_secs(seconds.parse().with_context(|| argument.to_owned())?);
    // Without any time kubectl does not look at all.
    Ok(format!("--timeout={}s", allowed(within)?.as_secs().max(1)))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.down {
            return;
        }
        // The test failed.
        for what in ["pods", "events"] {
            let text = self.kubectl(&["get", what, "--all-namespaces", "-o", "wide"]);
            eprintln!(
                "--- {what}\n{}",
                text.unwrap_or_else(|error| format!("{error:#}"))
            );
        }
        if let Some(folder) = kept::folder() {
            // The folder comes with the first stack that is kept.
            let _ = std::fs::create_dir_all(&folder);
            for kinds in ["pods,nodes,events,leases", "vm,virtualmachinetasks"] {
                let objects = self.kubectl(&["get", kinds, "-A", "-o", "yaml"]);
                let objects = objects.unwrap_or_else(|error| format!("{error:#}"));
                let _ = std::fs::write(folder.join(format!("{kinds}.yaml")), objects);
            }
        }
        for node in &self.nodes[1..] {
            kept::keep(node.dir());
        }
        for node in &self.nodes {
            for program in ["kube-apiserver", "kubelet", "vmlet-criproxy"] {
                let log = node.log(program);
                if log.is_empty() {
                    continue;
                }
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(30)..].join("\n");
                eprintln!(
                    "--- end of {program}.log in {}\n{tail}",
                    node.dir().display()
                );
            }
        }
    }
}

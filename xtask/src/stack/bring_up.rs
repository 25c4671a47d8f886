//! Starts a stack, or one program of it.
//!
//! Invariant: when this returns well every program has answered on its socket, and the daemon is
//! connected to libvirt.
//! Failure: the stack is taken down again; the error ends with the log of the program that did not
//! answer.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::cluster::{self, Guests, Node, Plan};
use super::control::{self, Ports, Request};
use super::record::REGISTRIES;
use super::{
    Layout, Logs, Program, Record, config, kvm, libvirtd, list, netns, registry, take_down,
};
use crate::{run, suite};

/// How often a program that does not answer yet is tried again.
const RETRY: Duration = Duration::from_millis(20);
const LOG_TAIL_LINES: usize = 20;

/// What to run, and where.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The stack's directory, absent or empty.
    pub(crate) dir: PathBuf,
    /// The folder with our built programs.
    pub(crate) built: PathBuf,
    /// The cluster to make of it, if any.
    pub(crate) cluster: Option<Plan>,
    /// Whether the stack, or the first node of the cluster, has registries.
    pub(crate) registries: bool,
}

/// Brings a new stack up.
pub(crate) fn bring_up(options: &Options) -> Result<(Layout, Record)> {
    let layout = Layout::create(&options.dir)?;
    list::add(&layout)?;
    match bring_up_all(&layout, options) {
        Ok(record) => Ok((layout, record)),
        Err(error) => {
            // What is left over is of no interest now: the first error is.
            if let Err(trouble) = take_down(&layout, Logs::Remove) {
                eprintln!("xtask: clean-up after the failure below: {trouble:#}");
            }
            Err(error.context(format!("bring up the stack in {}", layout.dir().display())))
        }
    }
}

/// Stops a program if it runs, starts it, and waits until it answers.
pub(crate) fn restart(layout: &Layout, program: Program) -> Result<()> {
    if !Record::read(layout)?.programs().contains(&program) {
        bail!("there is no {program} in this stack");
    }
    control::call(layout, &Request::Stop(program))?;
    start(layout, program)?;
    wait_for(layout, program)
}

/// Requests the supervisor to start a program.
pub(super) fn start(layout: &Layout, program: Program) -> Result<()> {
    control::call(layout, &Request::Start(program)).map(drop)
}

fn bring_up_all(layout: &Layout, options: &Options) -> Result<Record> {
    let Some(plan) = &options.cluster else {
        return bring_up_alone(layout, options);
    };
    let node = |number, api_port| Node {
        number,
        control: layout.dir().to_owned(),
        api_port,
        guests: plan.guests,
    };
    let record = bring_up_node(layout, options, node(1, 0), plan)?;
    let port = record.node.as_ref().map_or(0, |node| node.api_port);
    for number in 2..=plan.nodes {
        let worker = Layout::create(&layout.path(&format!("node{number}")))?;
        let options = Options {
            registries: false,
            ..options.clone()
        };
        bring_up_node(&worker, &options, node(number, port), plan)?;
    }
    cluster::wait_until_ready(&node(1, port), plan)?;
    Ok(record)
}

fn bring_up_node(layout: &Layout, options: &Options, node: Node, plan: &Plan) -> Result<Record> {
    let address = node.address();
    let record = prepare(layout, options, &address, Some(node))?;
    let node = record.node.as_ref().context("a node without a place")?;
    cluster::bring_up_node(layout, node, plan)?;
    Ok(record)
}

fn bring_up_alone(layout: &Layout, options: &Options) -> Result<Record> {
    let record = prepare(layout, options, netns::NODE_ADDRESS, None)?;
    for program in [Program::Libvirtd, Program::VmletTapmanager] {
        start(layout, program)?;
    }
    wait_for(layout, Program::Libvirtd)?;
    wait_for(layout, Program::VmletTapmanager)?;
    start(layout, Program::Vmlet)?;
    wait_for(layout, Program::Vmlet)?;
    wait_until_connected(layout, &options.built)?;
    Ok(record)
}

/// Waits until the daemon reports that it can start machines. In a cluster kubelet requests this.
fn wait_until_connected(layout: &Layout, built: &Path) -> Result<()> {
    let last = RefCell::new(String::new());
    let waited = wait_until(
        layout,
        Program::Vmlet,
        "is not connected to libvirt",
        || {
            *last.borrow_mut() = match libvirt_finding(layout, built) {
                Ok(finding) if finding.level == "ok" => return true,
                Ok(finding) => finding.what,
                Err(error) => format!("{error:#}"),
            };
            false
        },
    );
    let others = [Program::Libvirtd, Program::VmletTapmanager];
    waited.with_context(|| {
        let logs = others.map(|program| log_tail(layout, program.name()));
        format!(
            "vmletctl reported last: {}; {}",
            last.take(),
            logs.join("\n")
        )
    })
}

/// What the doctor reports about libvirt.
fn libvirt_finding(layout: &Layout, built: &Path) -> Result<Finding> {
    let mut doctor = run::command(built.join("vmletctl"));
    let doctor = doctor
        .args(["node", "doctor", "--json"])
        .env("CONTAINER_RUNTIME_ENDPOINT", layout.cri_socket());
    // It exits with an error when anything of the node is amiss.
    let output = doctor.output()?;
    let text = || String::from_utf8_lossy(&output.stdout).into_owned();
    let report: NodeReport = serde_json::from_slice(&output.stdout).with_context(text)?;
    let mut findings = report.findings.into_iter();
    findings
        .find(|finding| finding.check == "libvirt")
        .with_context(text)
}

/// What `vmletctl node doctor` prints.
#[derive(Debug, Deserialize)]
struct NodeReport {
    findings: Vec<Finding>,
}

/// A line of it.
#[derive(Debug, Deserialize)]
struct Finding {
    check: String,
    level: String,
    what: String,
}

/// Everything but the programs: namespaces, supervisor, configuration.
fn prepare(
    layout: &Layout,
    options: &Options,
    address: &str,
    node: Option<Node>,
) -> Result<Record> {
    let has_node = node
        .as_ref()
        .is_none_or(|node| node.guests != Guests::NoNode);
    let mut record = Record {
        kvm: has_node && kvm::is_usable().context("probe KVM")?,
        kernel_links: Vec::new(),
        http_port: None,
        registries: options.registries,
        node,
    };
    record.write(layout)?;
    if has_node {
        config::install_programs(layout, &options.built, &record)?;
        libvirtd::install(layout)?;
    }
    found(layout, &mut record, address)?;
    if has_node {
        config::write_all(layout, &record)?;
    } else {
        config::write_environment(layout, &record)?;
    }
    if record.registries {
        registry::install(layout).context("registries")?;
        for program in REGISTRIES {
            start(layout, program)?;
            wait_for(layout, program)?;
        }
    }
    Ok(record)
}

/// Namespaces, control group and supervisor: what is gone after a power cut.
pub(super) fn found(layout: &Layout, record: &mut Record, address: &str) -> Result<()> {
    record.kernel_links = netns::create(layout, address).context("network namespace")?;
    if record.node.is_some() {
        cluster::create_cgroup(layout).context("control group")?;
    }
    let ports = supervise(layout).context("start the supervisor")?;
    record.http_port = Some(ports.images);
    if let Some(node) = &mut record.node
        && node.is_control()
    {
        node.api_port = ports.api;
        netns::reserve_port(layout, ports.api)?;
    }
    record.write(layout)
}

/// Starts the supervisor; returns the ports that it listens on.
fn supervise(layout: &Layout) -> Result<Ports> {
    let log = File::create(layout.log("supervisor"))?;
    let mut command = run::command("/proc/self/exe");
    command
        .arg0("vmlet-stack-supervisor")
        .arg("supervise")
        .arg("--dir")
        .arg(layout.dir());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/")
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Ends when it has said its port, or when it ended.
        BufReader::new(stdout).read_line(&mut line)?;
    }
    serde_json::from_str(&line)
        .ok()
        .with_context(|| log_tail(layout, "supervisor"))
}

/// Waits until a program answers.
pub(super) fn wait_for(layout: &Layout, program: Program) -> Result<()> {
    wait_until(layout, program, "does not answer", || {
        program.answers(layout)
    })
}

fn wait_until(
    layout: &Layout,
    program: Program,
    trouble: &str,
    is_so: impl Fn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + program.timeout();
    while !is_so() {
        if Instant::now() > deadline {
            // By it the runner knows whether a program of ours was late.
            let mark = suite::late_mark(program.name()).unwrap_or_default();
            bail!(
                "{program} {trouble} after {} s {mark}\n{}",
                program.timeout().as_secs(),
                log_tail(layout, program.name())
            );
        }
        // A wait that ends early when there is nothing left to wait for.
        if let Some(how) = control::call(layout, &Request::Watch(program, RETRY))?.ended {
            bail!("{program} {how}\n{}", log_tail(layout, program.name()));
        }
    }
    Ok(())
}

fn log_tail(layout: &Layout, program: &str) -> String {
    let path = layout.log(program);
    match fs::read(&path) {
        Ok(text) if text.is_empty() => format!("{} is empty", path.display()),
        Ok(text) => {
            let tail = run::tail(&String::from_utf8_lossy(&text), LOG_TAIL_LINES);
            format!("the end of {}:\n{tail}", path.display())
        }
        Err(error) => format!("{} cannot be read: {error}", path.display()),
    }
}

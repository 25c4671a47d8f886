//! The real controller against a real API server without nodes.
//!
//! Invariant: it has the rights of `deploy/` and no others; it is stopped when the value goes.
//! Failure: the end of its log is in the error.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::control::Control;
use crate::stack::programs;
use crate::wait::eventually;

/// How long it may take to listen, or to end.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Where its names and rights are.
const ACCOUNT: &str = "pki/vmlet-controller.kubeconfig";

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    child: Child,
    log: PathBuf,
    address: SocketAddr,
    probes: SocketAddr,
    read: Mutex<Read>,
}

/// What was read of its log: a long one is not read again and again.
#[derive(Debug, Default)]
struct Read {
    until: u64,
    lines: Vec<Line>,
}

/// A line of its log about the result of a pass of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `queued`, `dispatched`, `done` and others.
    pub outcome: String,
    /// `namespace/name`.
    pub key: String,
    /// Its priority at that moment.
    pub priority: i64,
    /// The kind of the object by which it was queued; empty for other outcomes.
    pub by: String,
    /// When it was written.
    pub at: Option<jiff::Timestamp>,
}

impl Control {
    /// Starts a controller with these flags besides; several may run, each with a name of its own.
    pub async fn controller(&self, name: &str, flags: &[&str]) -> Result<Controller> {
        let program = program()?;
        self.install_rights()?;
        let log = self.stack().dir().join(format!("log/{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let begun = file.metadata()?.len();
        let kubeconfig = self.host_kubeconfig()?;
        let child = Command::new(program)
            .args(["--log-format", "json", "--lease-identity", name])
            .args([
                "--log-level",
                "info,controller::runner=debug,controller::intake=debug,controller::operator=debug",
            ])
            .args(["--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()?;
        let mut controller = Controller {
            child,
            log,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            probes: SocketAddr::from(([127, 0, 0, 1], 0)),
            read: Mutex::default(),
        };
        let listens = eventually(TIMEOUT, "the controller listens", || async {
            addresses(&controller.log, begun)
        });
        (controller.address, controller.probes) =
            listens.await.with_context(|| controller.tail())?;
        // A leader is ready once its stores are filled.
        let is_ready = eventually(TIMEOUT, "the controller is ready", || {
            controller.probe("/readyz")
        });
        is_ready.await.with_context(|| controller.tail())?;
        Ok(controller)
    }

    /// Applies the controller's account and rights.
    pub fn install_rights(&self) -> Result<()> {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let path = |name: &str| deploy.join(name).to_string_lossy().into_owned();
        let namespace = path("namespace.yaml");
        let rights = path("controller/serviceaccount.yaml");
        let apply = ["apply", "--server-side", "-f", &namespace, "-f", &rights];
        self.cluster().kubectl(&apply).map(drop)
    }

    /// The controller's kubeconfig names the API server as nodes see it; from the host it is on
    /// loopback.
    fn host_kubeconfig(&self) -> Result<PathBuf> {
        let dir = self.stack().dir();
        let mut own: Value = parse(&dir.join(ACCOUNT))?;
        let admin: Value = parse(&self.kubeconfig()?)?;
        own["clusters"] = admin["clusters"].clone();
        let path = dir.join("vmlet-controller-on-host.kubeconfig");
        fs::write(&path, own.to_string())?;
        Ok(path)
    }
}

/// Where a controller serves metrics and probes, from what its log says behind these first bytes,
/// which another one of its name wrote.
fn addresses(log: &Path, begun: u64) -> Result<(SocketAddr, SocketAddr)> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(begun))?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let reported = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    let reported: Vec<_> = reported.collect();
    let of = |message: &str| -> Result<SocketAddr> {
        let mut lines = reported.iter().filter(|line| line["message"] == message);
        let address = lines.find_map(|line| line["address"].as_str());
        Ok(address.context("its log names no address")?.parse()?)
    };
    Ok((of("metrics server started")?, of("health server started")?))
}

/// What a line of the log says of a machine, if it says anything.
fn line(text: &str) -> Option<Line> {
    let value = serde_json::from_str::<Value>(text).ok()?;
    let field = |name: &str| {
        [&value[name], &value["span"][name]]
            .into_iter()
            .find(|v| !v.is_null())
    };
    Some(Line {
        outcome: value["outcome"].as_str().unwrap_or_default().to_owned(),
        key: field("key")?.as_str().unwrap_or_default().to_owned(),
        priority: field("priority")?.as_i64().unwrap_or_default(),
        by: value["by"].as_str().unwrap_or_default().to_owned(),
        at: value["timestamp"].as_str().and_then(|at| at.parse().ok()),
    })
}

fn parse(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

/// `cargo xtask test` and `cargo xtask e2e` have built it; the environment may name another build.
fn program() -> Result<PathBuf> {
    let program = match std::env::var_os("VMLET_E2E_CONTROLLER") {
        Some(other) => PathBuf::from(other),
        None => programs()?.join("vmlet-controller"),
    };
    ensure!(program.exists(), "{}: was it built?", program.display());
    Ok(program)
}

impl Controller {
    /// Where it serves metrics, and where probes.
    pub const fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.address, self.probes)
    }

    /// What it serves beside probes.
    pub async fn page(&self, path: &str) -> Result<String> {
        fetch(self.address, path).await
    }

    /// What it answers to a probe, which must succeed.
    pub async fn probe(&self, path: &str) -> Result<String> {
        fetch(self.probes, path).await
    }

    /// The value of a series; the series is named with its labels.
    pub async fn metric(&self, series: &str) -> Result<f64> {
        let page = self.page("/metrics").await?;
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        let value = line.with_context(|| format!("no {series} in\n{page}"))?;
        Ok(value.trim().parse()?)
    }

    /// What became of machines, in order.
    pub fn lines(&self) -> Result<Vec<Line>> {
        self.with_lines(<[Line]>::to_vec)
    }

    /// Looks at what became of machines, in order, without a copy.
    pub fn with_lines<T>(&self, look: impl FnOnce(&[Line]) -> T) -> Result<T> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(read.until))?;
        let mut file = BufReader::new(file);
        let mut text = String::new();
        // The last line may still be written.
        while file.read_line(&mut text)? > 0 && text.ends_with('\n') {
            read.until += u64::try_from(text.len())?;
            read.lines.extend(line(&text));
            text.clear();
        }
        Ok(look(&read.lines))
    }

    /// The whole log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of the log.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Processor time in seconds and resident memory in KiB.
    pub fn usage(&self) -> Result<(f64, u64)> {
        let pid = self.child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after_name = stat.rsplit_once(") ").context("a stat line")?.1;
        let ticks = |index: usize| -> Result<f64> {
            let field = after_name.split(' ').nth(index);
            Ok(field.context("a field")?.parse()?)
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.split_whitespace().next());
        // The kernel counts 100 ticks a second.
        let seconds = (ticks(11)? + ticks(12)?) / 100.0;
        Ok((seconds, resident.context("VmRSS")?.parse()?))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).context("signal the controller")
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let child = Mutex::new(&mut self.child);
        eventually(TIMEOUT, "the controller ends", || async {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            child.try_wait()?.context("it runs")
        })
        .await
    }

    /// Asks it to end, and waits.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.ended().await
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may have ended already, or be stopped by a signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page by HTTP.
async fn fetch(address: SocketAddr, path: &str) -> Result<String> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(path)
        .header("host", "localhost")
        .body(String::new())?;
    let answer = sender.send_request(request).await?;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    let body = http_body_util::BodyExt::collect(answer.into_body()).await?;
    drop(sender);
    connection.abort();
    Ok(String::from_utf8(body.to_bytes().to_vec())?)
}

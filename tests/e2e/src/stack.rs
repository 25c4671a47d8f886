//! One node stack, started and stopped by `cargo xtask up` and `down`; or one that is up, or stays up
//! (`attach`).
//!
//! Invariant: everything of a stack is below its directory or in its network namespace.
//! Failure: `down` names what the stack leaked, and the test fails with that text.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attach;
use crate::cri::Cri;
use crate::kept;
use crate::node::NodeApi;
use crate::program;
pub(crate) use crate::wait::eventually;
use crate::wait::scaled;

/// Longest time of one of crictl's requests.
const REQUEST: Duration = Duration::from_secs(60);

/// A registry of images in the network of a stack.
pub const REGISTRY: &str = "127.0.0.1:5000";

/// One with TLS and the same images, for the user `me` with the password `hush`.
pub const REGISTRY_WITH_LOGIN: &str = "127.0.0.1:5443";

/// A CRI socket of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Our daemon's.
    Vmlet,
    /// containerd's; only in a cluster.
    Containerd,
    /// The proxy's, which is kubelet's; only in a cluster.
    Proxy,
}

/// A running node stack.
#[derive(Debug)]
pub struct Stack {
    dir: PathBuf,
    env: BTreeMap<String, String>,
    down: bool,
    /// It was there before the test, and stays.
    claim: Option<File>,
    _scratch: Option<tempfile::TempDir>,
}

impl Stack {
    /// Starts a stack in a fresh directory; `cargo xtask test` has built what it needs.
    pub fn up() -> Result<Self> {
        Self::up_with(&[])
    }

    /// The same with registries at [`REGISTRY`] and [`REGISTRY_WITH_LOGIN`].
    pub fn up_with_registries() -> Result<Self> {
        Self::up_with(&["--registries"])
    }

    /// The same with further options of `cargo xtask up`.
    pub(crate) fn up_with(options: &[&str]) -> Result<Self> {
        if let Some(dir) = attach::named() {
            return Self::attached(&dir, options);
        }
        let scratch = tempfile::Builder::new()
            .prefix("vmlet-")
            .tempdir_in("/tmp")?;
        let mut dir = scratch.path().join("s");
        let mut scratch = Some(scratch);
        if attach::is_kept() {
            dir = scratch.take().map_or(dir, tempfile::TempDir::keep);
        }
        xtask(&[&["up", "--no-build", "--dir", path(&dir)], options].concat())?;
        Ok(Self {
            env: read_env(&dir.join("env.sh"))?,
            dir,
            down: false,
            claim: None,
            _scratch: scratch,
        })
    }

    /// The stack in `dir`, which is up.
    fn attached(dir: &Path, options: &[&str]) -> Result<Self> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("no stack in {}", dir.display()))?;
        let claim = attach::claim(&dir, options)?;
        let stack = Self {
            env: read_env(&dir.join("env.sh"))?,
            dir,
            down: false,
            claim: Some(claim),
            _scratch: None,
        };
        attach::ensure_empty(&stack)?;
        Ok(stack)
    }

    /// Whether the stack stays when the test ends; the output then says how to use it.
    fn stays(&self) -> bool {
        let stays = self.claim.is_some() || attach::is_kept();
        if stays {
            attach::print_usage(&self.dir);
        }
        stays
    }

    /// A further node of a cluster, which goes down with the first one.
    pub(crate) fn worker(control: &Self, number: u8) -> Result<Self> {
        let dir = control.dir.join(format!("node{number}"));
        Ok(Self {
            env: read_env(&dir.join("env.sh"))?,
            dir,
            down: true,
            claim: None,
            _scratch: None,
        })
    }

    /// Stops the stack; an error when it leaked anything. One that is kept goes on.
    pub fn down(mut self) -> Result<()> {
        self.down = true;
        if self.stays() {
            return Ok(());
        }
        xtask(&["down", "--dir", path(&self.dir)]).map(drop)
    }

    /// The stack's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A variable of `env.sh`.
    pub fn var(&self, name: &str) -> Result<&str> {
        self.env
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("env.sh has no {name}"))
    }

    /// The name of the image that boots.
    pub fn image(&self) -> Result<&str> {
        self.var("VMLET_TEST_IMAGE")
    }

    /// A client of the stack's daemon.
    pub async fn cri(&self) -> Result<Cri> {
        Cri::connect(&self.dir.join("run/vmlet.sock")).await
    }

    /// A client of the daemon's node API.
    pub async fn node(&self) -> Result<NodeApi> {
        NodeApi::connect(&self.dir.join("run/node/node.sock")).await
    }

    /// A command inside the stack's network namespace, with the stack's environment.
    pub fn command(&self, program: &str) -> Command {
        let netns = self
            .env
            .get("VMLET_NETNS")
            .map(String::as_str)
            .unwrap_or_default();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{netns}"))
            .arg(program)
            .envs(&self.env);
        command
    }

    /// The same, also inside the mount namespace that a cluster's node has.
    pub fn command_inside(&self, program: &str) -> Result<Command> {
        let supervisor = self.pid("supervisor")?;
        let netns = self.var("VMLET_NETNS")?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{netns}"))
            .arg(format!("--mount=/proc/{supervisor}/ns/mnt"))
            .arg(program)
            .envs(&self.env);
        Ok(command)
    }

    /// A listener on a free port of the loopback device in the stack's network namespace.
    pub fn listen(&self) -> Result<TcpListener> {
        let netns = File::open(Path::new("/run/netns").join(self.var("VMLET_NETNS")?))?;
        // A thread of its own, which ends in that namespace.
        let bound = std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            TcpListener::bind(("127.0.0.1", 0)).context("listen in the stack's network")
        });
        bound.join().map_err(|_| anyhow!("the thread panicked"))?
    }

    /// Runs crictl and returns what it printed; an error shows both streams.
    pub fn crictl(&self, arguments: &[&str]) -> Result<String> {
        self.crictl_at(Endpoint::Vmlet, arguments)
    }

    /// The same, against another runtime of the node.
    pub fn crictl_at(&self, endpoint: Endpoint, arguments: &[&str]) -> Result<String> {
        let endpoint = self.var(match endpoint {
            Endpoint::Vmlet => "CONTAINER_RUNTIME_ENDPOINT",
            Endpoint::Containerd => "VMLET_CONTAINERD_ENDPOINT",
            Endpoint::Proxy => "VMLET_PROXY_ENDPOINT",
        })?;
        let within = format!("{}s", scaled(REQUEST)?.as_secs());
        let mut crictl = self.command("crictl");
        crictl.args(["-r", endpoint, "-i", endpoint, "-t", &within]);
        let output = program::output(crictl.args(arguments))?;
        ensure!(
            output.status.success(),
            "crictl {arguments:?}: {}",
            streams(&output)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The body of a page, fetched from inside the namespace; waits until it can be had.
    pub async fn fetch(&self, url: &str, within: Duration) -> Result<String> {
        eventually(within, &format!("GET {url}"), || async {
            let mut curl = self.command("curl");
            let output = program::output(curl.args(["-fsS", "-m", "3", url]))?;
            ensure!(output.status.success(), "curl: {}", streams(&output));
            Ok(String::from_utf8(output.stdout)?)
        })
        .await
    }

    /// The process id of one of the stack's programs.
    pub fn pid(&self, program: &str) -> Result<Pid> {
        let file = self.dir.join(format!("{program}.pid"));
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {file:?}"))?;
        Ok(Pid::from_raw(text.trim().parse()?))
    }

    /// Sends a signal to one of the stack's programs and waits until it no longer exists.
    pub async fn kill(&self, program: &str, signal: Signal) -> Result<()> {
        // A program that ends normally removes the file: read it before.
        let pid = self.pid(program)?;
        kill(pid, signal)?;
        let stat = PathBuf::from(format!("/proc/{pid}/stat"));
        let within = Duration::from_secs(120);
        eventually(within, &format!("the end of {program}"), || async {
            // A zombie is dead: its parent has not looked yet.
            let state = std::fs::read_to_string(&stat).unwrap_or_default();
            let dead = state.is_empty() || state.contains(") Z ");
            ensure!(dead, "{program} still runs");
            Ok(())
        })
        .await
    }

    /// Whether a program runs.
    pub fn is_alive(&self, program: &str) -> bool {
        self.pid(program).is_ok_and(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        })
    }

    /// Starts a program again, after stopping it if it runs.
    pub fn restart(&self, program: &str) -> Result<()> {
        xtask(&["restart", "--dir", path(&self.dir), program]).map(drop)
    }

    /// Cuts the power of a cluster's node and boots it again.
    pub fn reboot(&self) -> Result<()> {
        xtask(&["reboot", "--dir", path(&self.dir)]).map(drop)
    }

    /// Arms a crash point: whichever program reaches it dies there, once.
    pub fn arm(&self, point: &str) -> Result<()> {
        let dir = self.dir.join("faults");
        std::fs::create_dir_all(&dir)?;
        Ok(std::fs::write(dir.join(point), "")?)
    }

    /// Whether a crash point is armed and was not reached.
    pub fn is_armed(&self, point: &str) -> bool {
        self.dir.join("faults").join(point).exists()
    }

    /// The log of a program.
    pub fn log(&self, program: &str) -> String {
        let file = self.dir.join(format!("log/{program}.log"));
        String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if self.down {
            return;
        }
        // The test failed: show what the programs reported, then clean up whatever is there.
        for program in ["vmlet", "vmlet-tapmanager"] {
            let log = self.log(program);
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("--- end of {program}.log\n{tail}");
        }
        kept::keep(&self.dir);
        if self.stays() {
            return;
        }
        if let Err(error) = xtask(&["down", "--dir", path(&self.dir)]) {
            eprintln!("--- down: {error:#}");
        }
    }
}

/// Runs a chore of the repository and returns what it printed; an error shows both streams. One that
/// goes on when the test's time is over is killed, and named.
pub fn xtask(arguments: &[&str]) -> Result<String> {
    let program = programs()?.join("xtask");
    ensure!(
        program.exists(),
        "{} does not exist: run `cargo xtask test --only stacks`, which builds it",
        program.display()
    );
    let output = program::chore(Command::new(&program).args(arguments))?;
    if !output.status.success() {
        bail!("xtask {arguments:?}: {}", streams(&output));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The directory that cargo builds programs into: our own, or the one above that of a test.
pub(crate) fn programs() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.parent().filter(|dir| !dir.ends_with("deps"));
    dir.or_else(|| exe.ancestors().nth(2))
        .map(Path::to_owned)
        .ok_or_else(|| anyhow!("{exe:?} is not in a target folder"))
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

pub(crate) fn streams(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!(
        "{}; stdout: {}; stderr: {}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// The exported variables, as a shell that reads the file has them.
fn read_env(file: &Path) -> Result<BTreeMap<String, String>> {
    let mut shell = Command::new("sh");
    let output = program::output(shell.args(["-c", ". \"$0\" && env -0", path(file)]))?;
    ensure!(
        output.status.success(),
        "read {}: {}",
        file.display(),
        streams(&output)
    );
    let text = String::from_utf8(output.stdout)?;
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    Ok(pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

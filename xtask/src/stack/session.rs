//! A stack for the length of one chore: brought up, used, taken down, also when the chore is
//! interrupted.
//!
//! Invariant: a guard process outlives this one; when it is left alone with the stack it takes it
//! down.
//! Failure: a chore that fails drops its session; the guard then cleans up in silence.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::unistd::setsid;

use super::{Layout, Logs, Record, config, take_down};
use crate::run;

/// A running stack with its guard.
#[derive(Debug)]
pub(crate) struct Session {
    layout: Layout,
    record: Record,
    guard: Child,
}

impl Session {
    /// Brings a stack up in `/tmp`, with programs and guest image as they are.
    pub(crate) fn up(purpose: &str) -> Result<Self> {
        Self::up_with(purpose, &[])
    }

    /// The same with registries.
    pub(crate) fn up_with_registries(purpose: &str) -> Result<Self> {
        Self::up_with(purpose, &["--registries"])
    }

    /// The same with release builds.
    pub(crate) fn up_release(purpose: &str) -> Result<Self> {
        Self::up_with(purpose, &["--release"])
    }

    /// The same with containerd and the CRI proxy beside them.
    pub(crate) fn up_beside_containerd(purpose: &str) -> Result<Self> {
        Self::up_with(purpose, &["--release", "--containerd"])
    }

    fn up_with(purpose: &str, options: &[&str]) -> Result<Self> {
        // Not where TMPDIR points: that may be closed to QEMU's user.
        let dir = PathBuf::from(format!("/tmp/vmlet-{purpose}-{}", std::process::id()));
        let mut guard = run::myself_as_root()?;
        guard.arg("guard").arg("--dir").arg(&dir);
        let guard = guard
            .stdin(Stdio::piped())
            .spawn()
            .context("start the guard")?;
        let mut up = run::myself_as_root()?;
        up.args(["up", "--no-build"]).args(options);
        run::check(up.arg("--dir").arg(&dir))?;
        let layout = Layout::existing(&dir)?;
        let record = Record::read(&layout)?;
        Ok(Self {
            layout,
            record,
            guard,
        })
    }

    /// The paths of the stack.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The guest image's name in the stack.
    pub(crate) fn image(&self) -> String {
        config::test_image()
    }

    /// A command inside the stack's network namespace, and inside the mount namespace of its node
    /// if it has one, with its environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = run::root_command("nsenter");
        command.arg(format!("--net={}", self.layout.netns_path().display()));
        if let Some(view) = self.view() {
            command.arg(format!("--mount={view}"));
        }
        command.arg("env");
        command.arg(format!("PATH={}", config::search_path(&self.layout)));
        for (name, value) in config::variables(&self.layout, &self.record) {
            command.arg(format!("{name}={value}"));
        }
        command.arg(program);
        command
    }

    /// The mount namespace that a node beside containerd has.
    fn view(&self) -> Option<String> {
        self.record.node.as_ref()?;
        let pid = fs::read_to_string(self.layout.pid_file("supervisor")).ok()?;
        Some(format!("/proc/{}/ns/mnt", pid.trim()))
    }

    /// Takes the stack down; an error names what it leaked.
    pub(crate) fn down(mut self) -> Result<()> {
        let mut down = run::myself_as_root()?;
        let outcome = run::check(down.arg("down").arg("--dir").arg(self.layout.dir()));
        // The guard finds nothing to do.
        drop(self.guard.stdin.take());
        self.guard.wait().context("collect the guard")?;
        outcome
    }
}

/// Waits until the chore is over, then takes down what it left.
pub(crate) fn guard(dir: &Path) -> Result<()> {
    // Ctrl-C at the terminal is not for us. Fails only for the leader of a group, which we then
    // are.
    let _ = setsid();
    let mut nothing = Vec::new();
    std::io::stdin()
        .read_to_end(&mut nothing)
        .context("wait for the end")?;
    match Layout::existing(dir) {
        Ok(layout) => take_down(&layout, Logs::Remove).map(drop),
        Err(_) => Ok(()),
    }
}

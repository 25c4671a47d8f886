//! The guest of the test image: commands inside it, what is typed on its console, and what it says
//! there.
//!
//! Invariant: of the console only whole lines are read; a line that is cut or foreign is passed
//! over.
//! Failure: a command that fails in the guest shows both of its streams.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde_json::Value;

use crate::stack::Stack;
use crate::wait::while_early;

/// How much of a container's id names its console.
const FOLDER: usize = 20;

/// When an agent that never connects is an error.
const AGENT: Duration = Duration::from_secs(300);

/// The guest of a pod, reached through its agent.
#[derive(Debug)]
pub struct Guest<'a> {
    stack: &'a Stack,
    container: String,
}

impl<'a> Guest<'a> {
    /// The guest that runs now in the pod of this name; a restart makes another one.
    pub fn in_pod(stack: &'a Stack, pod: &str) -> Result<Self> {
        let name = format!("^{pod}$");
        let sandbox = stack.crictl(&["pods", "-q", "--state", "ready", "--name", &name])?;
        ensure!(!sandbox.is_empty(), "no sandbox of {pod} is ready");
        let container = stack.crictl(&["ps", "-q", "--pod", &sandbox])?;
        ensure!(!container.is_empty(), "no container of {pod} runs");
        Ok(Self { stack, container })
    }

    /// The id of its container.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Runs a command in the guest and returns what it printed. An agent that is not connected yet
    /// is awaited: on a busy machine the guest's web server may answer minutes before it.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        let arguments = [&["exec", "--sync", self.container.as_str()], command].concat();
        while_early(AGENT, is_without_agent, || self.stack.crictl(&arguments))
    }

    /// Powers the guest off. The guest may end before it has answered: only what comes of it
    /// counts.
    pub fn power_off(&self) -> Result<()> {
        self.run(&["true"])?;
        let _ = self.run(&["poweroff"]);
        Ok(())
    }

    /// The process of its emulator.
    pub fn emulator(&self) -> Result<Pid> {
        let text = self.stack.crictl(&["inspect", self.container.as_str()])?;
        let inspected: Value = serde_json::from_str(&text)?;
        let pid = inspected["info"]["pid"].as_i64().context("no pid")?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    /// From now on it ignores agent and power button when it is to power off, until
    /// [`Self::become_responsive`].
    /// May be repeated.
    pub fn become_unresponsive(&self) -> Result<()> {
        let replace = "[ -e $f.kept ] || mv $f $f.kept; printf '#!/bin/sh\\n' >$f; chmod +x $f";
        self.replace_handlers(replace)
    }

    /// Ends [`Self::become_unresponsive`]. May be repeated.
    pub fn become_responsive(&self) -> Result<()> {
        self.replace_handlers("[ ! -e $f.kept ] || mv $f.kept $f")
    }

    fn replace_handlers(&self, what: &str) -> Result<()> {
        let script = format!("for f in /sbin/shutdown /etc/acpi/PWRF/00000080; do {what}; done");
        self.run(&["sh", "-c", &script]).map(drop)
    }

    /// A page, fetched by the guest.
    pub fn wget(&self, url: &str) -> Result<String> {
        self.run(&["timeout", "5", "wget", "-q", "-O", "-", url])
    }
}

fn is_without_agent(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("need an agent in the guest, and none is connected")
}

/// The input of a guest's serial console, where a shell takes what is typed, whatever becomes of
/// the agent.
#[derive(Debug)]
pub struct Console(File);

impl Console {
    /// Opens the line.
    pub fn open(stack: &Stack, container: &str) -> Result<Self> {
        let console = stack.dir().join("state/console");
        let input = console.join(format!("{}.raw.in", &container[..FOLDER]));
        // Without an emulator that reads it, this is an error and does not wait for one.
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let line = File::options().write(true).custom_flags(flags).open(&input);
        Ok(Self(line.with_context(|| input.display().to_string())?))
    }

    /// Types a line; the guest runs it at a time of its own. The console repeats what is typed, so
    /// that a command whose answer is awaited has to say something else.
    pub fn type_line(&mut self, line: &str) -> Result<()> {
        Ok(self.0.write_all(format!("{line}\n").as_bytes())?)
    }
}

/// A line `VMLET-TICK <n> uptime=<seconds>`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Counts from the guest's boot.
    pub count: u64,
    /// Seconds since the guest's kernel started.
    pub uptime: f64,
}

/// The ticks in a CRI log, in order.
pub fn ticks(log: &str) -> Vec<Tick> {
    log.lines().filter_map(tick).collect()
}

fn tick(line: &str) -> Option<Tick> {
    let (_, rest) = line.split_once("VMLET-TICK ")?;
    let (count, uptime) = rest.split_once(" uptime=")?;
    let uptime = uptime.split_whitespace().next()?;
    Some(Tick {
        count: count.parse().ok()?,
        uptime: uptime.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_among_other_lines() {
        let log = "t stdout F hello\nt stdout F VMLET-TICK 7 uptime=12.5\nt stdout P VMLET-TI\n";
        assert_eq!(
            ticks(log),
            [Tick {
                count: 7,
                uptime: 12.5
            }]
        );
    }
}

//! The service manager of the node.
//!
//! Invariant: every call can be repeated. A call has a deadline: systemctl waits for a unit that never
//! becomes ready as long as the unit does.
//! Failure: the call, and what systemctl has printed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::health;
use crate::root::Root;

/// How systemctl of the node is called.
#[derive(Debug)]
pub(crate) struct Services {
    /// The program, with what stands before its own arguments.
    words: Vec<PathBuf>,
    /// Longest wait for a call.
    timeout: Duration,
}

const PAUSE: Duration = Duration::from_millis(10);

impl Services {
    /// With a root that is mounted elsewhere, systemctl runs there: its version and its sockets are the
    /// node's.
    pub(crate) fn new(root: &Root, program: Option<&Path>, timeout: Duration) -> Self {
        let words = match program {
            Some(program) => vec![program.to_owned()],
            None if root.is_own() => vec!["systemctl".into()],
            None => vec![
                "/proc/self/exe".into(),
                "in-root".into(),
                root.folder().to_owned(),
                "systemctl".into(),
            ],
        };
        Self { words, timeout }
    }

    /// Runs `systemctl` with these arguments; an error has what it printed.
    pub(crate) fn call(&self, arguments: &[&str]) -> Result<()> {
        let output = self.output(arguments)?;
        if !output.status.success() {
            let printed = String::from_utf8_lossy(&output.stderr);
            bail!(
                "failed to run systemctl {}: {}: {}",
                arguments.join(" "),
                output.status,
                printed.trim()
            );
        }
        Ok(())
    }

    /// Whether a unit `is-active` or `is-enabled`.
    pub(crate) fn query(&self, query: &str, unit: &str) -> Result<bool> {
        Ok(self.output(&[query, "--quiet", unit])?.status.success())
    }

    fn output(&self, arguments: &[&str]) -> Result<Output> {
        let mut words = self.words.iter();
        let program = words.next().context("systemctl has no name")?;
        let child = Command::new(program)
            .args(words)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child =
            child.with_context(|| format!("failed to execute {}", program.display()))?;
        let begun = Instant::now();
        while child
            .try_wait()
            .context("failed to wait for systemctl")?
            .is_none()
        {
            if begun.elapsed() > self.timeout {
                // What it has asked for goes on.
                child
                    .kill()
                    .and_then(|()| child.wait())
                    .context("failed to end systemctl")?;
                bail!(
                    "systemctl {} has not ended within {:?}",
                    arguments.join(" "),
                    self.timeout
                );
            }
            health::pause(PAUSE);
        }
        child
            .wait_with_output()
            .context("failed to read what systemctl printed")
    }
}

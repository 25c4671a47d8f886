//! The proxy and its backends as processes in a directory of their own.
//!
//! Invariant: the proxy has two backends, as on a node: the one that is measured, and one without
//! machines.
//! Failure: what could not be started; dropping ends whatever was.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The running processes.
#[derive(Debug)]
pub(crate) struct Parts {
    dir: TempDir,
    endpoint: Option<PathBuf>,
    processes: Vec<Child>,
}

impl Parts {
    /// Starts what is not there yet.
    pub(crate) fn start(proxy: &Path, endpoint: Option<&Path>) -> Result<Self> {
        let dir = tempfile::tempdir().context("make a directory")?;
        let endpoint = endpoint.map(Path::to_owned);
        let mut parts = Self {
            dir,
            endpoint,
            processes: Vec::new(),
        };
        let myself = std::env::current_exe().context("find this program's file")?;
        if parts.endpoint.is_none() {
            let socket = parts.direct();
            parts.spawn(
                Command::new(&myself)
                    .args(["serve", "--listen"])
                    .arg(socket),
            )?;
        }
        let socket = parts.dir.path().join("empty.sock");
        parts.spawn(
            Command::new(&myself)
                .args(["serve", "--empty", "--listen"])
                .arg(&socket),
        )?;
        let config = parts.dir.path().join("criproxy.toml");
        std::fs::write(&config, parts.config(&socket)).context("write the configuration")?;
        parts.spawn(Command::new(proxy).arg("--config").arg(config).arg("serve"))?;
        Ok(parts)
    }

    /// The socket of the backend that is measured.
    pub(crate) fn direct(&self) -> PathBuf {
        let fake = || self.dir.path().join("primary.sock");
        self.endpoint.clone().unwrap_or_else(fake)
    }

    /// The socket of the proxy.
    pub(crate) fn proxied(&self) -> PathBuf {
        self.dir.path().join("proxy.sock")
    }

    fn config(&self, secondary: &Path) -> String {
        format!(
            "listen = {:?}\nstatus_listen = \"\"\nstate_dir = {:?}\n\n[primary]\nname = \"primary\"\nsocket = {:?}\n\n\
             [[secondary]]\nname = \"vmlet\"\nsocket = {:?}\nhandlers = \
                 [\"vmlet\"]\n\n[log]\nlevel = \"warn\"\n",
            self.proxied(),
            self.dir.path().join("state"),
            self.direct(),
            secondary,
        )
    }

    fn spawn(&mut self, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        self.processes.push(child);
        Ok(())
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            // One that has ended by itself needs no more than to be waited for.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

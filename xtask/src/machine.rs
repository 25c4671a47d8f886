//! A machine as users have it: Debian with systemd, cgroup v2, AppArmor, the distribution's own
//! kernel, containerd and libvirt, booted by QEMU.
//!
//! ```text
//! packages ─mmdebstrap─► machine.qcow2 ◄─backing─ booted/disk.qcow2 ◄─backing─ run/disk.qcow2
//!                                                 booted/memory.zst ─────────► memory of the run
//! ```
//!
//! Invariant: each run begins with the same instant after the first boot: it writes to a disk and a
//! memory of its own. No network reaches the machine; any user who may open the sockets of its run has
//! root in it. A lock keeps a second run of the same system away.
//! Failure: names the step; `run/console.log` has what the kernel said.

mod agent;
mod channel;
mod files;
mod kubeadm;
mod monitor;
mod power;
mod qemu;
mod results;
mod shell;
mod snapshot;
mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

pub(crate) use kubeadm::Cluster;
pub(crate) use power::{Machine, Stay, build, down};
pub(crate) use shell::open as shell;
pub(crate) use steps::Step;

use crate::image::debian::System;
use crate::workspace;

/// Enough for images and guests; the file holds only what was written.
const DISK_BYTES: u64 = 24 << 30;

/// How long anything may take that is not a boot or a step: the machine is emulated.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two attempts. Each question costs a slow processor time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The distribution in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Os {
    /// Debian 12: libvirt 9.0, QEMU 7.2.
    #[value(name = "debian-12")]
    Debian12,
    /// Debian 13: libvirt 11.3, QEMU 10.0.
    #[value(name = "debian-13")]
    Debian13,
}

impl Os {
    /// As the command line and folders call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Debian12 => "debian-12",
            Self::Debian13 => "debian-13",
        }
    }

    const fn release(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian13 => "trixie",
        }
    }

    /// The folder for everything of this machine.
    pub(crate) fn folder(self) -> PathBuf {
        workspace::target().join("machine").join(self.name())
    }

    /// Sockets, logs and results of the current or the last run.
    pub(crate) fn run_folder(self) -> PathBuf {
        self.folder().join("run")
    }

    fn system(self) -> System {
        let sources = workspace::root().join("xtask");
        System {
            release: self.release(),
            hooks: vec![sources.join("debian"), sources.join("machine")],
            bytes: DISK_BYTES,
            work: self.folder(),
            image: self.folder().join("machine.qcow2"),
        }
    }
}

/// Repeats `attempt` until it has a result. An error of it ends the wait at once.
fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut pause = SHORTEST_PAUSE;
    loop {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
        if Instant::now() >= end {
            bail!("{what}: not within {deadline:?}");
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_result_the_error_or_the_deadline() {
        let mut attempts = 0;
        let third = wait_for("three", PATIENCE, || {
            attempts += 1;
            Ok((attempts == 3).then_some(attempts))
        });
        assert_eq!(third.unwrap(), 3);

        let error = wait_for::<()>("nothing", PATIENCE, || bail!("gone")).unwrap_err();
        assert_eq!(error.to_string(), "gone");

        let late = wait_for::<()>("the agent", Duration::ZERO, || Ok(None)).unwrap_err();
        assert!(late.to_string().starts_with("the agent: not within"));
    }
}

//! A volume whose server is a process that a test stops and kills.
//!
//! Invariant: the test itself looks at the directory behind the volume only, which always answers.
//! With the value the server and the mount go, whatever became of the test.
//! Failure: the mount that is not there, or a server that does not stop.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fuse;

/// The directory of a volume, in a process that serves it.
const SERVED: &str = "VMLET_TEST_VOLUME";
const SOON: Duration = Duration::from_secs(60);

/// A mounted volume.
pub(super) struct Volume {
    scratch: tempfile::TempDir,
    server: Child,
}

/// Serves a volume if this process was started for that.
pub(super) fn serve() -> Option<Result<()>> {
    let scratch = PathBuf::from(std::env::var_os(SERVED)?);
    let [behind, place, stop] = ["behind", "mount", "stop"].map(|name| scratch.join(name));
    Some(fuse::serve(&behind, &place, stop))
}

impl Volume {
    /// Starts a server: the test of this name in another process, which begins with [`serve`].
    pub(super) async fn new(test: &str) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("volume-").tempdir()?;
        for name in ["behind", "mount"] {
            fs::create_dir(scratch.path().join(name))?;
        }
        let server = Command::new(std::env::current_exe()?)
            .args(["--exact", "--ignored", "--nocapture"])
            .arg(format!("hung_volume::{test}"))
            .env(SERVED, scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let volume = Self { scratch, server };
        let place = volume.path("mount").display().to_string();
        eventually(SOON, "the mount of the volume", || async {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            ensure!(mounts.contains(&place), "not mounted");
            Ok(())
        })
        .await?;
        Ok(volume)
    }

    /// A directory of the volume as the node has it, which any user may write to.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let behind = self.behind(name);
        fs::create_dir_all(&behind)?;
        fs::set_permissions(&behind, Permissions::from_mode(0o777))?;
        Ok(self.path("mount").join(name))
    }

    /// What is behind a path of the volume.
    pub(super) fn behind(&self, name: &str) -> PathBuf {
        self.path("behind").join(name)
    }

    /// Waits until the server has read a write of a client and stopped instead of replying.
    pub(super) async fn stop_at_write(&self) -> Result<()> {
        self.stop_at_next_write()?;
        self.await_stopped().await
    }

    /// The server is to stop at the next write.
    pub(super) fn stop_at_next_write(&self) -> Result<()> {
        Ok(fs::write(self.path("stop"), "")?)
    }

    /// Waits until the server has stopped.
    pub(super) async fn await_stopped(&self) -> Result<()> {
        let stat = format!("/proc/{}/stat", self.server.id());
        eventually(SOON, "a server that has stopped", || async {
            let stat = fs::read_to_string(&stat)?;
            ensure!(stat.contains(") T "), "{stat}");
            Ok(())
        })
        .await
    }

    /// The server continues.
    pub(super) fn proceed(&self) -> Result<()> {
        Ok(kill(self.pid()?, Signal::SIGCONT)?)
    }

    /// The server dies.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.kill()?;
        self.server.wait().map(drop).context("the end of a server")
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(self.server.id().try_into()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = self.kill();
        let place: &Path = &self.path("mount");
        let _ = umount2(place, MntFlags::MNT_DETACH);
    }
}

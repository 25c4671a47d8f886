//! A private libvirtd with real QEMU behind it, for tests.
//!
//! Invariant: all its state is in one scratch directory and in a mount namespace that dies with it;
//! several run side by side. Only processes whose pid files are in that directory are ever killed.
//! Failure: [`Error`] carries what libvirtd wrote. Needs root, libvirtd, and the user
//! `libvirt-qemu`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::sync::broadcast::error::RecvError;

use crate::{Event, Hypervisor, Libvirt, Settings};

/// Time for libvirtd to accept connections; its first start probes every emulator.
const READY: Duration = Duration::from_secs(120);
const START_SCRIPT: &str = include_str!("harness/start.sh");
const LIBVIRTD_CONF: &str =
    "unix_sock_ro_perms = \"0700\"\nunix_sock_rw_perms = \"0700\"\nauth_unix_rw = \"none\"\n";
/// No mount namespace per domain: it cannot be built on a private /dev. No cgroups: they are not
/// libvirt's.
const QEMU_CONF: &str = r#"user = "libvirt-qemu"
group = "libvirt-qemu"
dynamic_ownership = 1
stdio_handler = "file"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
"#;

/// A libvirtd that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scratch directory could not be prepared.
    #[error("prepare {path}")]
    Prepare {
        /// What was being made.
        path: PathBuf,
        /// Why it could not be.
        #[source]
        source: io::Error,
    },
    /// `unshare` could not be run.
    #[error("start libvirtd")]
    Spawn(#[source] io::Error),
    /// It runs, or ran, but accepts no connections.
    #[error("libvirtd accepts no connections: {log}")]
    NotReady {
        /// The end of what it wrote.
        log: String,
    },
}

/// A running libvirtd; dropping it ends it together with its domains.
#[derive(Debug)]
pub struct Libvirtd {
    dir: TempDir,
    child: Option<Child>,
}

impl Libvirtd {
    /// Starts one in a new scratch directory. It may not accept connections yet: see
    /// [`Self::connect`].
    pub fn start() -> Result<Self, Error> {
        let dir = TempDir::with_prefix("vmlet-libvirt-").map_err(|source| Error::Prepare {
            path: std::env::temp_dir(),
            source,
        })?;
        let mut this = Self { dir, child: None };
        this.prepare()?;
        this.launch()?;
        Ok(this)
    }

    /// The scratch directory. QEMU's user can reach what is in it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The URI to connect to.
    pub fn uri(&self) -> String {
        let socket = self.dir().join("sock/libvirt-sock");
        format!("qemu+unix:///system?socket={}", socket.display())
    }

    /// The daemon's process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Connects, and waits until the connection is up.
    pub async fn connect(&self, settings: Settings) -> Result<Libvirt, Error> {
        let libvirt = Libvirt::connect(self.uri(), settings);
        let mut events = libvirt.events();
        let up = async {
            while !libvirt.is_connected() {
                if let Ok(Event::Connected) | Err(RecvError::Closed) = events.recv().await {
                    break;
                }
            }
        };
        match tokio::time::timeout(READY, up).await {
            Ok(()) => Ok(libvirt),
            Err(_) => Err(Error::NotReady { log: self.log() }),
        }
    }

    /// Kills the daemon as `kill -9` does. Its domains run on.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; either way it is reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the daemon again after [`Self::kill`], on the same state.
    pub fn launch(&mut self) -> Result<(), Error> {
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", START_SCRIPT, "start.sh"])
            .arg(self.dir())
            .stdin(Stdio::null())
            .spawn()
            .map_err(Error::Spawn)?;
        self.child = Some(child);
        Ok(())
    }

    /// The processes of its domains that run now.
    pub fn emulators(&self) -> Vec<i32> {
        let Ok(entries) = fs::read_dir(self.dir().join("run/libvirt/qemu")) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "pid"))
            .filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
            .filter(|pid| self.is_ours(*pid))
            .collect()
    }

    /// The end of what the daemon has written.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for name in ["log/stderr", "log/libvirtd.log"] {
            text += &fs::read_to_string(self.dir().join(name)).unwrap_or_default();
        }
        let from = text.len().saturating_sub(4096);
        text.get(from..).unwrap_or(&text).to_owned()
    }

    /// A number in a pid file may belong to another program by now: the command lines of our
    /// emulators contain our directory.
    fn is_ours(&self, pid: i32) -> bool {
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&cmdline).contains("/var/lib/libvirt/qemu/domain-")
            && fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|mounts| mounts.contains(&*self.dir().to_string_lossy()))
    }

    fn prepare(&self) -> Result<(), Error> {
        let dir = self.dir();
        let step = |path: PathBuf, result: io::Result<()>| {
            result.map_err(|source| Error::Prepare { path, source })
        };
        let open = fs::Permissions::from_mode(0o755);
        step(dir.to_owned(), fs::set_permissions(dir, open))?;
        let etc = dir.join("etc");
        step(etc.clone(), fs::create_dir(&etc))?;
        let daemon = format!(
            "{LIBVIRTD_CONF}unix_sock_dir = \"{0}/sock\"\nlog_outputs = \
             \"2:file:{0}/log/libvirtd.log\"\n",
            dir.display()
        );
        let file = etc.join("libvirtd.conf");
        step(file.clone(), fs::write(&file, daemon))?;
        let file = etc.join("qemu.conf");
        step(file.clone(), fs::write(&file, QEMU_CONF))
    }
}

impl Drop for Libvirtd {
    fn drop(&mut self) {
        // The daemon first, so that it starts nothing meanwhile.
        self.kill();
        for pid in self.emulators() {
            // It may end by itself just now.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

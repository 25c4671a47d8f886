//! The paths of one stack below its directory.
//!
//! Invariant: the directory is absolute and free of symbolic links, so that its text can be
//! compared with mount points and command lines; every socket path in it fits into a socket
//! address.
//! Failure: a directory that is too deep, in use, or closed to QEMU's user is refused with the
//! reason.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::User;

use crate::stamp;

/// The user QEMU runs as; libvirt's packages create it.
pub(crate) const QEMU_USER: &str = "libvirt-qemu";
/// The user of `vmlet-agent`, as in `deploy/agent`.
pub(crate) const AGENT_UID: u32 = 1_899_999_999;
/// The socket of the node API, alone in its folder.
pub(crate) const NODE_SOCKET: &str = "run/node/node.sock";
/// The socket on which the proxy serves its status, alone in its folder.
pub(crate) const STATUS_SOCKET: &str = "run/proxy/status.sock";
/// `sun_path` less its final NUL.
const SOCKET_PATH_BYTES: usize = 107;

/// The paths of one stack.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    /// Creates the directory of a new stack, which must be absent or empty.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let is_new = !dir.exists();
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let layout = Self::existing(dir)?;
        if let Err(reason) = layout.check() {
            if is_new {
                fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))?;
            }
            return Err(reason);
        }
        for folder in [
            "bin",
            "cni/cache",
            "cni/conf",
            "cni/ipam",
            "faults",
            "libvirt/cache",
            "libvirt/dev",
            "libvirt/etc/qemu",
            "libvirt/lib",
            "libvirt/log",
            "libvirt/no-bus",
            "libvirt/run",
            "libvirt/sock",
            "log",
            "logs/pods",
            "manifests",
            "netns",
            "run",
            "state/network",
        ] {
            let folder = layout.dir.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        // The agent takes up its own points.
        let faults = layout.path("faults");
        std::os::unix::fs::chown(&faults, Some(AGENT_UID), None)
            .with_context(|| format!("give {} to the agent's user", faults.display()))?;
        // QEMU's user and the agent's pass through to its disks and sockets; it may not look around.
        for folder in [".", "libvirt", "run", "state"] {
            let folder = layout.dir.join(folder);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))
                .with_context(|| format!("set the mode of {}", folder.display()))?;
        }
        Ok(layout)
    }

    /// The stack in a directory that exists.
    pub(crate) fn existing(dir: &Path) -> Result<Self> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("no stack in {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// The stack's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below the directory.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }

    /// The log of a program.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.dir.join(format!("log/{program}.log"))
    }

    /// The file with the process id of a program, there while it runs.
    pub(crate) fn pid_file(&self, program: &str) -> PathBuf {
        self.dir.join(format!("{program}.pid"))
    }

    /// Where the supervisor takes orders.
    pub(crate) fn supervisor_socket(&self) -> PathBuf {
        self.path("supervisor.sock")
    }

    /// The daemon's CRI socket.
    pub(crate) fn cri_socket(&self) -> PathBuf {
        self.path("run/vmlet.sock")
    }

    /// The URI of the stack's libvirtd.
    pub(crate) fn libvirt_uri(&self) -> String {
        format!(
            "qemu+unix:///system?socket={}",
            self.path("libvirt/sock/libvirt-sock").display()
        )
    }

    /// The name of the stack's network namespace: the same for the same directory.
    pub(crate) fn netns_name(&self) -> String {
        let hash = stamp::fnv1a(self.dir.as_os_str().as_encoded_bytes());
        format!("vmlet-{:08x}", (hash ^ (hash >> 32)) & 0xffff_ffff)
    }

    /// Where `ip netns` keeps that namespace.
    pub(crate) fn netns_path(&self) -> PathBuf {
        Path::new("/run/netns").join(self.netns_name())
    }

    fn check(&self) -> Result<()> {
        if fs::read_dir(&self.dir)?.next().is_some() {
            bail!(
                "{} is not empty; is a stack up there already?",
                self.dir.display()
            );
        }
        self.check_socket_paths()?;
        self.check_reachable()
    }

    fn check_socket_paths(&self) -> Result<()> {
        let longest = self.path("libvirt/sock/libvirt-admin-sock");
        let length = longest.as_os_str().len();
        if length > SOCKET_PATH_BYTES {
            bail!(
                "{} has {length} bytes, a socket path may have {SOCKET_PATH_BYTES}: \
                 choose a directory {} bytes shorter",
                longest.display(),
                length - SOCKET_PATH_BYTES
            );
        }
        Ok(())
    }

    /// QEMU runs as a user of its own and must reach its files from the top.
    fn check_reachable(&self) -> Result<()> {
        let user = User::from_name(QEMU_USER)
            .context("look up QEMU's user")?
            .with_context(|| format!("there is no user {QEMU_USER}: run cargo xtask setup"))?;
        for ancestor in self.dir.ancestors().skip(1) {
            let metadata = fs::metadata(ancestor)
                .with_context(|| format!("look at {}", ancestor.display()))?;
            let may_pass = if metadata.uid() == user.uid.as_raw() {
                0o100
            } else if metadata.gid() == user.gid.as_raw() {
                0o010
            } else {
                0o001
            };
            if metadata.mode() & may_pass == 0 {
                bail!(
                    "user {QEMU_USER} cannot pass through {} (mode {:03o}), so QEMU could not open its \
                     disks below it: choose another directory, below /tmp for example",
                    ancestor.display(),
                    metadata.mode() & 0o777
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_too_deep_for_sockets_is_refused_with_the_number_of_bytes() {
        let fits = Layout {
            dir: PathBuf::from(format!("/{}", "x".repeat(74))),
        };
        fits.check_socket_paths().unwrap();
        let deep = Layout {
            dir: PathBuf::from(format!("/{}", "x".repeat(84))),
        };
        let error = deep.check_socket_paths().unwrap_err().to_string();
        assert!(error.contains("10 bytes shorter"), "{error}");
    }

    #[test]
    fn each_directory_has_a_namespace_name_of_its_own() {
        let name = |dir: &str| {
            Layout {
                dir: PathBuf::from(dir),
            }
            .netns_name()
        };
        assert_eq!(name("/tmp/a"), name("/tmp/a"));
        assert_ne!(name("/tmp/a"), name("/tmp/b"));
        assert_eq!(name("/tmp/a").len(), "vmlet-01234567".len());
    }
}

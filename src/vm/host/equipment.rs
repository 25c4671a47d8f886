//! What the node has for machines: Landlock, idmapped mounts, cgroups and AppArmor of its kernel, the
//! program for guests, firmware of UEFI, and a file system whose files can have the same blocks.
//!
//! Invariant: it is looked at on a thread with a deadline, at most once in [`HOLDS`]: profiles are
//! loaded and replaced while the daemon runs.
//! Failure: a node that does not answer in time is as it was last seen; `None` until it has
//! answered once.

#![allow(unsafe_code)] // Both probes have no safe form; a comment at each states why it is sound.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use service::apparmor;
use tokio::time::Instant;

use super::{uefi, vmlet_guest};
use crate::foreign::Foreign;
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::service::Containers;
use crate::vm::settings::Landlock;

/// Time for a look.
const LOOK: Duration = Duration::from_secs(1);
/// How long a look holds.
const HOLDS: Duration = Duration::from_secs(30);
/// The profile of all emulators (`deploy/apparmor/vmlet-qemu`).
const PROFILE: &str = "libvirt-vmlet";
/// Asks Landlock for its version instead of a ruleset.
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

/// What the node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equipment {
    /// Of its kernel.
    pub kernel: Kernel,
    /// Why programs that read images share the namespaces of the daemon, if they do: what the kernel
    /// refused.
    pub helpers_together: Option<String>,
    /// Why guests do not get `vmlet-guest` by their seed images, if they do not.
    pub vmlet_guest_missing: Option<String>,
    /// Why no machine can boot by UEFI, if that is so.
    pub uefi_missing: Option<String>,
    /// Whether copies of disks can have the blocks of their source; `None`: not known.
    pub copies_share_blocks: Option<bool>,
}

/// What the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Version of Landlock's interface; 0: none.
    pub landlock: u32,
    /// Whether a mount can show its files with other owners; `None`: not known.
    pub idmapped_mounts: Option<bool>,
    /// The version of cgroups that is mounted, if one is.
    pub cgroup: Option<CgroupVersion>,
    /// The profile of emulators.
    pub apparmor: apparmor::State,
}

/// A version of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy.
    V2,
}

/// The node as last seen.
#[derive(Debug, Default)]
pub(in crate::vm) struct LastLook {
    seen: Mutex<Option<(Instant, Equipment)>>,
    thread: Foreign<()>,
}

impl<P: Platform> Containers<P> {
    /// What the node has.
    pub async fn equipment(&self) -> Option<Equipment> {
        let last = self.equipment.lock().clone();
        if let Some((at, equipment)) = &last
            && at.elapsed() < HOLDS
        {
            return Some(equipment.clone());
        }
        let cgroup_root = self.settings.cgroup_root.clone();
        let node_root: PathBuf = self.settings.shares.root.clone();
        let program = self.settings.guest_agent.clone();
        let firmware = self.settings.firmware.clone();
        let disks = Arc::clone(&self.parts.disks);
        let look = move || Equipment {
            kernel: look(&cgroup_root, &node_root),
            helpers_together: crate::helper::refused_namespaces().map(str::to_owned),
            vmlet_guest_missing: vmlet_guest::missing(&program),
            uefi_missing: uefi::find(&firmware, None).err(),
            copies_share_blocks: disks.copies_share_blocks(),
        };
        let Some(equipment) = self.equipment.thread.read((), LOOK, look).await else {
            return last.map(|(_, equipment)| equipment);
        };
        *self.equipment.lock() = Some((Instant::now(), equipment.clone()));
        Some(equipment)
    }

    /// Refuses a start that would run without the confinement that the settings require. Where the
    /// kernel is not known, the wrapper of the emulator refuses it.
    pub(in crate::vm) async fn check_landlock(&self) -> Result<()> {
        if self.settings.landlock != Landlock::Required {
            return Ok(());
        }
        match self.equipment().await {
            Some(equipment) if equipment.kernel.landlock == 0 => Err(Error::NoLandlock),
            _ => Ok(()),
        }
    }
}

impl LastLook {
    /// Takes this for what the node has.
    #[cfg(test)]
    pub(in crate::vm) fn pretend(&self, equipment: Equipment) {
        *self.lock() = Some((Instant::now(), equipment));
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Equipment)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CgroupVersion {
    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

fn look(cgroup_root: &Path, node_root: &Path) -> Kernel {
    Kernel {
        landlock: landlock_version(),
        idmapped_mounts: idmapped_mounts(),
        cgroup: cgroup(cgroup_root),
        apparmor: apparmor::profile(node_root, PROFILE),
    }
}

/// Version of the kernel's Landlock; 0: it is off or absent.
pub fn landlock_version() -> u32 {
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag the kernel reads no attributes, so that none have to be there.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            none,
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// The request names a user namespace that does not exist: a kernel that knows the request refuses it
/// for that reason, an older one for the request itself.
fn idmapped_mounts() -> Option<bool> {
    let request = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        // No process has a file of this number open.
        userns_fd: i32::MAX.unsigned_abs().into(),
    };
    // SAFETY: the path is a string with an end, the structure is the kernel's and as long as stated,
    // and both outlive the call, which changes no mount: its namespace does not exist.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            0,
            std::ptr::from_ref(&request),
            size_of::<libc::mount_attr>(),
        )
    };
    match Errno::result(done) {
        Err(Errno::EBADF) => Some(true),
        Err(Errno::ENOSYS | Errno::EINVAL) => Some(false),
        // Without privileges the kernel does not get as far.
        Ok(_) | Err(_) => None,
    }
}

fn cgroup(root: &Path) -> Option<CgroupVersion> {
    match statfs(root) {
        Ok(fs) if fs.filesystem_type() == CGROUP2_SUPER_MAGIC => Some(CgroupVersion::V2),
        Ok(_) if root.join("memory").is_dir() || root.join("cpu").is_dir() => {
            Some(CgroupVersion::V1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Node;

    #[tokio::test]
    async fn a_look_holds_for_a_while_and_survives_a_hang() {
        let node = Node::new().await;
        let equipment = node.containers.equipment().await.unwrap();
        let kernel = equipment.kernel;
        assert_eq!(
            kernel.cgroup, None,
            "nothing is mounted in the scratch directory"
        );
        assert_eq!(kernel.landlock, landlock_version());
        assert_ne!(
            kernel.idmapped_mounts,
            Some(false),
            "Linux has them since 5.12"
        );
        let missing = equipment.vmlet_guest_missing.as_deref();
        assert!(missing.is_some_and(|words| words.contains("vmlet-guest")));
        let missing = equipment.uefi_missing.as_deref();
        assert!(missing.is_some_and(|words| words.contains("ovmf")));
        let _held = node.containers.equipment.thread.hold(());
        tokio::time::pause();
        for _ in 0..2 {
            let again = node.containers.equipment().await;
            assert_eq!(again.as_ref(), Some(&equipment));
            tokio::time::advance(HOLDS).await;
        }
    }

    #[test]
    fn version_1_has_directories_of_controllers() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(cgroup(root.path()), None);
        std::fs::create_dir(root.path().join("memory")).unwrap();
        assert_eq!(cgroup(root.path()), Some(CgroupVersion::V1));
        assert_eq!(cgroup(Path::new("/nonexistent")), None);
    }
}

//! The settings of machines.
//!
//! Invariant: paths are absolute; the user exists.
//! Failure: none here; the configuration was validated before.

use std::path::PathBuf;

use podspec::Defaults;

use super::host::accelerator::{Host, Setting};
use super::users::{Owner, UidRange};

/// Settings of the machines of this node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of everything the daemon keeps.
    pub state_dir: PathBuf,
    /// Which accelerator to use.
    pub accelerator: Setting,
    /// The real emulator.
    pub emulator: PathBuf,
    /// The program that libvirt starts as emulator.
    pub wrapper: PathBuf,
    /// The agent for guests.
    pub guest_agent: PathBuf,
    /// Directory of QEMU's descriptors of firmware.
    pub firmware: PathBuf,
    /// Where the wrapper fetches descriptors.
    pub handoff_socket: PathBuf,
    /// QEMU's user: that of helpers, and of machines without a user of their own.
    pub uid: u32,
    /// Group of all machines, and of the images that they read.
    pub gid: u32,
    /// Users that machines may have.
    pub uids: UidRange,
    /// Whether emulators are confined by Landlock.
    pub landlock: Landlock,
    /// Whether files of volumes may be disks in the format qcow2.
    pub qcow2_file_disks: bool,
    /// The file that states which boot of the kernel this is.
    pub boot_id_file: PathBuf,
    /// Where cgroups are mounted.
    pub cgroup_root: PathBuf,
    /// Distinguishes our domains from those of another daemon on the same libvirt.
    pub installation: String,
    /// What applies when a pod specifies nothing.
    pub defaults: Defaults,
    /// What becomes of a container whose image has an id that is not here.
    pub unknown_image: UnknownImage,
    /// Bytes that a pod without a RuntimeClass may use for QEMU on top of its memory limit.
    pub memory_overhead: u64,
    /// What becomes of a container that would lose data.
    pub unsupported: Unsupported,
    /// How directories are shared with guests.
    pub shares: ShareSettings,
}

/// Settings that can change while machines run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Adjustable {
    /// As [`Settings::accelerator`].
    pub(super) accelerator: Setting,
    /// As [`Settings::defaults`].
    pub(super) defaults: Defaults,
}

impl From<&Settings> for Adjustable {
    fn from(settings: &Settings) -> Self {
        Self {
            accelerator: settings.accelerator,
            defaults: settings.defaults,
        }
    }
}

/// How directories are shared with guests.
#[derive(Debug, Clone)]
pub struct ShareSettings {
    /// The program that serves one directory.
    pub program: PathBuf,
    /// Where the file system of the node is.
    pub root: PathBuf,
    /// Who accesses a directory when the pod names no user.
    pub user: Owner,
}

/// Whether emulators are confined by Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landlock {
    /// They are not.
    Off,
    /// Where the kernel has it.
    On,
    /// No machine starts where the kernel does not have it.
    Required,
}

/// What becomes of a container whose writable mounts do not reach the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// It is refused.
    Refuse,
    /// It runs without them, and an event of the pod reports it.
    Warn,
}

/// What becomes of a container whose image has an id that is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownImage {
    /// The image is looked for and pulled by the name in the pod.
    Pull,
    /// It is refused.
    Refuse,
}

impl Settings {
    /// What the probe for an accelerator needs to know.
    pub(super) fn host(&self) -> Host {
        let host = Host::new(&self.emulator, self.uid, self.gid, &self.state_dir);
        host.with_boot_id_file(&self.boot_id_file)
    }
}

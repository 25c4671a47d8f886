//! What belongs to sessions outside of the agent: their cgroups and their files; and what a freeze uses.
//!
//! Invariant: names of sessions are names of folders, so that no session reaches the place of
//! another one. What a session has is removed when its first process has ended.
//! Failure: see [`cgroups`](crate::cgroups).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cgroups::Cgroups;
use crate::frozen::Freezing;
use crate::hooks::Hooks;

/// The places of the sessions of one agent.
#[derive(Debug)]
pub struct Places {
    pub(crate) cgroups: Cgroups,
    files: PathBuf,
    share: Mutex<PathBuf>,
    pub(crate) freezing: Freezing,
}

impl Places {
    /// Those of the guest. In a guest that does not mount cgroup v2, the agent does.
    pub fn of_guest() -> Self {
        Self {
            cgroups: Cgroups::of_guest(),
            files: PathBuf::from("/run/vmlet-guest/sessions"),
            share: PathBuf::from("/run/vmlet-guest/share").into(),
            freezing: Freezing {
                table: PathBuf::from("/proc/self/mountinfo"),
                watchdog: PathBuf::from("/proc/self/exe"),
                record: PathBuf::from("/run/vmlet-guest/frozen"),
                hooks: Hooks::of_guest(),
            },
        }
    }

    /// Files below a folder, and cgroups below one that is made in a mounted hierarchy of cgroup v2, if given. Beside
    /// the folder are the share, the table of the mounts that are frozen on request, `mountinfo`, the program that
    /// watches over that, `vmlet-guest`, the record of it, `frozen`, and in `qemu` the programs that run before and after.
    ///
    /// # Errors
    ///
    /// The kernel's, when it does not make the cgroup.
    pub fn below(files: &Path, cgroup: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            cgroups: cgroup.map(Cgroups::below).transpose()?.unwrap_or_default(),
            files: files.to_owned(),
            share: files.with_file_name("share").into(),
            freezing: Freezing {
                table: files.with_file_name("mountinfo"),
                watchdog: files.with_file_name("vmlet-guest"),
                record: files.with_file_name("frozen"),
                hooks: Hooks::below(files.with_file_name("qemu")),
            },
        })
    }

    /// The folder of the files of a session.
    pub(crate) fn files(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// Where the volumes of the pod are mounted, for one session at a time.
    pub(crate) fn share(&self) -> MutexGuard<'_, PathBuf> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the files of a session.
    pub(crate) fn remove_files(&self, name: &str) {
        // Most sessions have none.
        let _ = fs::remove_dir_all(self.files(name));
    }
}

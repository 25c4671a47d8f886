//! The end of all that runs on a node at once, and the boot after it.
//!
//! Invariant: no program gets the chance to say good-bye. What is on a tmpfs and in the kernel's memory
//! is gone, and the boot has another id.
//! Failure: the processes that do not end, or the file that cannot be removed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stack::Stack;
use crate::wait::eventually;

/// In the order in which they are killed.
const PROGRAMS: [&str; 3] = ["vmlet", "vmlet-tapmanager", "libvirtd"];
const SOON: Duration = Duration::from_secs(180);

impl Stack {
    /// Kills the programs of a node without a cluster, its emulators, and whatever else runs for it.
    pub async fn end_all(&self) -> Result<()> {
        for program in PROGRAMS {
            if self.is_alive(program) {
                self.kill(program, Signal::SIGKILL).await?;
            }
        }
        eventually(SOON, "the end of all processes", || async {
            let left = self.processes()?;
            for pid in &left {
                // It may have ended meanwhile.
                let _ = kill(*pid, Signal::SIGKILL);
            }
            ensure!(left.is_empty(), "they run: {left:?}");
            Ok(())
        })
        .await
    }

    /// Removes what a boot does not find; the programs do not run.
    pub fn begin_boot(&self) -> Result<()> {
        for entry in fs::read_dir(self.dir().join("netns"))? {
            let path = entry?.path();
            match umount2(&path, MntFlags::MNT_DETACH) {
                // It was made, and not mounted.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => return Err(errno).with_context(|| path.display().to_string()),
            }
            fs::remove_file(&path)?;
        }
        for directory in ["run", "libvirt/run"] {
            clear(&self.dir().join(directory))?;
        }
        let id = format!("boot {:016x}\n", fastrand::u64(..));
        Ok(fs::write(self.dir().join("boot-id"), id)?)
    }

    /// The processes whose command line names the directory of the stack, less its supervisor.
    fn processes(&self) -> Result<Vec<Pid>> {
        let supervisor = self.pid("supervisor")?;
        let dir = self.dir().as_os_str().as_encoded_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // One that has ended has none.
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_ours = line.windows(dir.len()).any(|part| part == dir);
            if is_ours && Pid::from_raw(pid) != supervisor {
                found.push(Pid::from_raw(pid));
            }
        }
        Ok(found)
    }
}

/// Empties a directory.
fn clear(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

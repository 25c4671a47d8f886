//! Files for the machine: a folder becomes a disk that is plugged in.
//!
//! Invariant: the machine cannot write to it, and all files in it are root's.
//! Failure: the tool, or what the machine says of the disk. A machine that was kept with files takes
//! no others: its port is taken.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::agent::Agent;
use super::monitor::Monitor;
use super::{PATIENCE, qemu};
use crate::run;

const NAME: &str = "files";
const IMAGE: &str = "files.ext4";
const MIB: u64 = 1 << 20;

/// Waits for the disk and mounts it. `udevadm wait` of Debian 12 and later.
const MOUNT: &str = "udevadm wait --timeout=100 /dev/disk/by-id/virtio-files && \
                     mkdir -p /mnt/files && \
                     mount -o ro /dev/disk/by-id/virtio-files /mnt/files";

/// Makes the disk in the folder of the run, plugs it in and mounts it.
pub(super) fn bring(folder: &Path, run: &Path, agent: &mut Agent) -> Result<()> {
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    let image = run.join(IMAGE);
    ensure!(
        !image.exists(),
        "the machine that is up has its files already; `cargo xtask machine down` ends it"
    );
    let bytes = disk_bytes(content(folder)?);
    File::create(&image)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("failed to create {}", image.display()))?;
    let mut ext4 = run::command("mke2fs");
    ext4.args(["-q", "-F", "-t", "ext4", "-L", NAME, "-m", "0"]);
    ext4.args(["-O", "^has_journal", "-E", "root_owner=0:0"]);
    run::output(ext4.arg("-d").arg(folder).arg(&image))?;
    let mut monitor = Monitor::connect(&run.join(qemu::MONITOR))?;
    monitor.plug(NAME, IMAGE)?;
    agent.output(MOUNT, PATIENCE).map(drop)
}

/// Room for the content, and as much again for what the file system has beside it.
const fn disk_bytes(content: u64) -> u64 {
    (content + content / 8).next_multiple_of(MIB) + 16 * MIB
}

/// The size of all files, each in whole blocks.
fn content(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("failed to list {}", folder.display()))?;
        let metadata = entry
            .metadata()
            .with_context(|| format!("failed to look at {}", entry.path().display()))?;
        sum += 4096 + metadata.len().next_multiple_of(4096);
        if metadata.is_dir() {
            sum += content(&entry.path())?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_counts_with_all_that_is_below_it_and_links_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::write(dir.path().join("bin/program"), vec![0; 5000]).unwrap();
        let before = content(dir.path()).unwrap();
        std::os::unix::fs::symlink("/usr/bin/env", dir.path().join("link")).unwrap();
        assert_eq!(before, 3 * 4096 + 8192);
        assert_eq!(content(dir.path()).unwrap(), before + 8192);
    }

    #[test]
    fn a_disk_has_room_for_more_than_its_files() {
        assert_eq!(disk_bytes(0), 16 * MIB);
        assert!(disk_bytes(800 * MIB) >= 900 * MIB);
    }
}

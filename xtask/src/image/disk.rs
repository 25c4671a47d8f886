//! Puts boot loader, kernel and initramfs on a disk with one FAT16 partition, and behind it one
//! without a file system, in which a guest leaves its mark.
//!
//! Invariant: the first partition starts at 1 MiB and is marked active; the boot sector is
//! syslinux's own.
//! Failure: names the tool that failed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::run;

const DISK_BYTES: u64 = 64 << 20;
/// Where a first partition starts.
pub(super) const PARTITION_SECTOR: u64 = 2048;
/// The second partition, at the end of the disk.
const MARK_BYTES: u64 = 1 << 20;
pub(super) const SECTOR_BYTES: u64 = 512;
/// The boot code's share of the first sector; the partition table follows.
pub(super) const BOOT_CODE_BYTES: u64 = 440;
/// Clusters of 8 KiB, the largest with which a partition of this size is FAT16: FAT32 would have
/// clusters of one sector, and the boot loader looks up each of them.
const CLUSTER_SECTORS: &str = "16";
const BOOT_CODE: &str = "/usr/lib/syslinux/mbr/mbr.bin";

/// Builds the image below `work`. It is not compressed: kernel and initramfs are compressed
/// already, and QEMU would unpack a cluster again for each of the small reads of the boot loader, a
/// second for each boot.
pub(crate) fn build(
    work: &Path,
    sources: &Path,
    kernel: &Path,
    initramfs: &Path,
) -> Result<PathBuf> {
    let raw = work.join("hello.raw");
    File::create(&raw)?
        .set_len(DISK_BYTES)
        .context("size the raw disk")?;
    let mark = (DISK_BYTES - MARK_BYTES) / SECTOR_BYTES;
    let size = mark - PARTITION_SECTOR;
    let table = format!(
        "label: dos\nstart={PARTITION_SECTOR}, size={size}, type=e, bootable\nstart={mark}, \
         type=da\n"
    );
    partition(&raw, &table)?;
    boot_code(&raw)?;

    let sector = PARTITION_SECTOR.to_string();
    let offset = PARTITION_SECTOR * SECTOR_BYTES;
    let blocks = ((DISK_BYTES - offset - MARK_BYTES) / 1024).to_string();
    run::output(
        run::command("mkfs.vfat")
            .args(["-F", "16", "-s", CLUSTER_SECTORS])
            .args(["-n", "VMLET", "--offset", &sector])
            .arg(&raw)
            .arg(blocks),
    )?;
    for (file, name) in [
        (kernel, "vmlinuz"),
        (initramfs, "initrd"),
        (&sources.join("syslinux.cfg"), "syslinux.cfg"),
    ] {
        let mut copy = run::command("mcopy");
        copy.arg("-i").arg(format!("{}@@{offset}", raw.display()));
        run::output(copy.arg(file).arg(format!("::{name}")))?;
    }
    run::output(
        run::command("syslinux")
            .args(["--install", "--offset", &offset.to_string()])
            .arg(&raw),
    )?;

    let finished = work.join("hello.qcow2.new");
    run::output(
        run::command("qemu-img")
            .args(["convert", "-f", "raw", "-O", "qcow2"])
            .args([&raw, &finished]),
    )?;
    fs::remove_file(&raw).context("remove the raw disk")?;
    Ok(finished)
}

/// Writes a partition table: `script` is in the language of sfdisk.
pub(super) fn partition(raw: &Path, script: &str) -> Result<()> {
    let mut table = run::command("sh");
    table.args([
        "-ec",
        "printf %s \"$2\" | sfdisk --quiet --no-reread \"$1\"",
        "sfdisk",
    ]);
    run::output(table.arg(raw).arg(script)).map(drop)
}

fn boot_code(raw: &Path) -> Result<()> {
    let mut code = Vec::new();
    File::open(BOOT_CODE)
        .and_then(|file| file.take(BOOT_CODE_BYTES).read_to_end(&mut code))
        .with_context(|| format!("read {BOOT_CODE}"))?;
    let mut disk = OpenOptions::new()
        .write(true)
        .open(raw)
        .context("open the raw disk")?;
    disk.seek(SeekFrom::Start(0))?;
    disk.write_all(&code).context("write the boot code")
}

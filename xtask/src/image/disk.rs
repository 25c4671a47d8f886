//! Puts boot loader, kernel and initramfs on a disk with one FAT16 partition, and behind it one
//! without a file system, in which a guest leaves its mark.
//!
//! Invariant: the first partition starts at 1 MiB. On a disk for a BIOS it is marked active, and the boot
//! sector is syslinux's own; on one for UEFI it is the system partition.
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
/// The boot loader for UEFI.
const LOADER: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";

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

    let offset = PARTITION_SECTOR * SECTOR_BYTES;
    format(&raw, size)?;
    for (file, name) in [
        (kernel, "vmlinuz"),
        (initramfs, "initrd"),
        (&sources.join("syslinux.cfg"), "syslinux.cfg"),
    ] {
        copy(&raw, file, name)?;
    }
    run::output(
        run::command("syslinux")
            .args(["--install", "--offset", &offset.to_string()])
            .arg(&raw),
    )?;
    finish(&raw, &work.join("hello.qcow2.new"))
}

/// The same for UEFI: the first partition is the system partition of a GPT, and no sector has boot code.
/// The boot loader is that of systemd, with the parameters of the kernel that syslinux has.
pub(crate) fn build_for_uefi(
    work: &Path,
    sources: &Path,
    kernel: &Path,
    initramfs: &Path,
) -> Result<PathBuf> {
    let raw = work.join("uefi.raw");
    File::create(&raw)?
        .set_len(DISK_BYTES)
        .context("size the raw disk")?;
    // The end of the disk has a copy of the table.
    let mark = (DISK_BYTES - 2 * MARK_BYTES) / SECTOR_BYTES;
    let size = mark - PARTITION_SECTOR;
    let mark_size = MARK_BYTES / SECTOR_BYTES;
    let table = format!(
        "label: gpt\nstart={PARTITION_SECTOR}, size={size}, type=U\nstart={mark}, \
         size={mark_size}\n"
    );
    partition(&raw, &table)?;
    format(&raw, size)?;
    for folder in ["EFI", "EFI/BOOT", "loader", "loader/entries"] {
        let mut make = run::command("mmd");
        make.arg("-i").arg(place(&raw));
        run::output(make.arg(format!("::{folder}")))?;
    }
    let syslinux = sources.join("syslinux.cfg");
    let text = fs::read_to_string(&syslinux).context("read syslinux.cfg")?;
    let mut lines = text.lines();
    let parameters = lines.find_map(|line| line.trim().strip_prefix("APPEND "));
    let parameters = parameters.context("syslinux.cfg has no parameters of the kernel")?;
    let entry = work.join("entry.conf");
    let lines =
        format!("title Vmlet guest\nlinux /vmlinuz\ninitrd /initrd\noptions {parameters}\n");
    fs::write(&entry, lines).context("write the entry of the boot loader")?;
    for (file, name) in [
        (kernel, "vmlinuz"),
        (initramfs, "initrd"),
        (Path::new(LOADER), "EFI/BOOT/BOOTX64.EFI"),
        (&entry, "loader/entries/guest.conf"),
    ] {
        copy(&raw, file, name)?;
    }
    fs::remove_file(&entry).context("remove the entry of the boot loader")?;
    finish(&raw, &work.join("uefi.qcow2.new"))
}

/// Makes the file system of the first partition, which has so many sectors.
fn format(raw: &Path, sectors: u64) -> Result<()> {
    let blocks = (sectors * SECTOR_BYTES / 1024).to_string();
    let mut make = run::command("mkfs.vfat");
    make.args(["-F", "16", "-s", CLUSTER_SECTORS, "-n", "VMLET"]);
    make.args(["--offset", &PARTITION_SECTOR.to_string()]);
    run::output(make.arg(raw).arg(blocks)).map(drop)
}

/// The first partition as the tools for its file system name it.
fn place(raw: &Path) -> String {
    format!("{}@@{}", raw.display(), PARTITION_SECTOR * SECTOR_BYTES)
}

fn copy(raw: &Path, file: &Path, name: &str) -> Result<()> {
    let mut copy = run::command("mcopy");
    copy.arg("-i").arg(place(raw));
    run::output(copy.arg(file).arg(format!("::{name}"))).map(drop)
}

fn finish(raw: &Path, finished: &Path) -> Result<PathBuf> {
    run::output(
        run::command("qemu-img")
            .args(["convert", "-f", "raw", "-O", "qcow2"])
            .args([raw, finished]),
    )?;
    fs::remove_file(raw).context("remove the raw disk")?;
    Ok(finished.to_owned())
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

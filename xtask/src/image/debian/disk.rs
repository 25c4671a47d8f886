//! The disk of the Debian image: one partition with an ext4 file system, and GRUB before it.
//!
//! Invariant: the partition has the identifier that `fstab` and `grub.cfg` name; the file system is
//! made from a folder, so that no program mounts it.
//! Failure: names the tool that failed, or the part of the boot loader that does not fit.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::image::disk::{BOOT_CODE_BYTES, PARTITION_SECTOR, SECTOR_BYTES, partition};
use crate::run;

/// `xtask/debian/fstab` and `xtask/debian/grub.cfg` name the disk, too.
const DISK_ID: &str = "766d6c74";
/// The same in each build, as everything that a guest reads before its first boot.
const FILE_SYSTEM_ID: &str = "766d6c74-0000-4000-8000-64656269616e";

/// Builds the image in the folder `work` from the folder `root`.
pub(super) fn build(work: &Path, root: &Path, bytes: u64) -> Result<PathBuf> {
    let raw = work.join("debian.raw");
    File::create(&raw)?
        .set_len(bytes)
        .context("size the raw disk")?;
    let table =
        format!("label: dos\nlabel-id: 0x{DISK_ID}\nstart={PARTITION_SECTOR}, type=83, bootable\n");
    partition(&raw, &table)?;
    let offset = PARTITION_SECTOR * SECTOR_BYTES;
    let options = format!("offset={offset},hash_seed={FILE_SYSTEM_ID},lazy_itable_init=1");
    let mut ext4 = run::root_command("mke2fs");
    ext4.args(["-q", "-F", "-t", "ext4", "-L", "root"]);
    ext4.args(["-U", FILE_SYSTEM_ID, "-E", &options]);
    ext4.arg("-d").arg(root).arg(&raw);
    run::output(ext4.arg(format!("{}k", (bytes - offset) / 1024)))?;
    boot_loader(&raw, &root.join("boot/grub"))?;

    let finished = work.join("debian.qcow2");
    let mut convert = run::command("qemu-img");
    convert.args(["convert", "-c", "-f", "raw", "-O", "qcow2"]);
    // A quarter of the time of zlib, to pack and to unpack.
    convert.args(["-o", "compression_type=zstd"]);
    run::output(convert.arg(&raw).arg(&finished))?;
    Ok(finished)
}

/// The first part of GRUB reads the second one from the sector behind it, unless an installer
/// writes another number into it.
fn boot_loader(raw: &Path, grub: &Path) -> Result<()> {
    let read = |name: &str| {
        let file = grub.join(name);
        fs::read(&file).with_context(|| format!("read {}", file.display()))
    };
    let mut first = read("boot.img")?;
    let core = read("core.img")?;
    let space = (PARTITION_SECTOR - 1) * SECTOR_BYTES;
    ensure!(
        core.len() as u64 <= space,
        "GRUB has {} bytes: more than the {space} before the partition",
        core.len()
    );
    first.truncate(usize::try_from(BOOT_CODE_BYTES)?);
    let mut disk = OpenOptions::new()
        .write(true)
        .open(raw)
        .context("open the raw disk")?;
    disk.write_all(&first)
        .and_then(|()| disk.seek(SeekFrom::Start(SECTOR_BYTES)))
        .and_then(|_| disk.write_all(&core))
        .context("write the boot loader")
}

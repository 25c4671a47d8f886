//! A file system whose power can be cut: ext4 on a file, by the request that the kernel has for it.
//!
//! Invariant: what is not synced reaches the file neither in time (`commit`) nor with a name that
//! takes the place of another (`noauto_da_alloc`). After the cut ext4 replays its journal, as after a
//! real one; in its order, so that what one sync has made durable includes all names of before.
//! Failure: the words of `mkfs.ext4`, `cp` and `mount`; the mount goes with the value.
#![allow(unsafe_code)] // The request has no safe form; a comment at the call states why it is sound.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::syncfs;
use tempfile::NamedTempFile;

/// Neither flushes the journal nor writes anything else.
const WITHOUT_FLUSH: u32 = 2;
/// Longest time until the journal is committed by itself, in seconds: a day.
const OPTIONS: &str = "loop,commit=86400,noauto_da_alloc";

/// Longest time from the fork of a child to its program.
const UNTIL_EXECUTED: Duration = Duration::from_secs(20);
/// Time between two attempts to unmount.
const PAUSE: Duration = Duration::from_millis(10);

nix::ioctl_write_ptr_bad!(
    shut_down,
    nix::request_code_read!(b'X', 125, size_of::<u32>()),
    u32
);

/// A mounted file system.
#[derive(Debug)]
pub struct Ext4 {
    /// A new one after each cut.
    image: Mutex<NamedTempFile>,
    place: PathBuf,
}

impl Ext4 {
    /// A file system of so many MiB, with all that is in `place`, in the place of that.
    ///
    /// # Errors
    ///
    /// A program's, or no right to mount.
    pub fn over(place: &Path, mib: u64) -> Result<Self> {
        let image = new_image(place)?;
        image.as_file().set_len(mib << 20)?;
        run("mkfs.ext4", &["-q", "-F", "-m", "0"], &[image.path()])?;
        let scratch = tempfile::tempdir()?;
        mount(image.path(), scratch.path())?;
        let filled = fill(scratch.path(), place);
        umount2(scratch.path(), MntFlags::MNT_DETACH)?;
        filled?;
        Ok(Self {
            image: Mutex::new(image),
            place: place.to_owned(),
        })
    }

    /// Cuts the power: from now on nothing reaches the disk, and each access fails.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn cut(&self) -> Result<()> {
        let root = File::open(&self.place)?;
        let how = WITHOUT_FLUSH;
        // SAFETY: the descriptor is open, and the kernel reads one `u32` behind the pointer before the
        // call returns.
        let done = unsafe { shut_down(root.as_raw_fd(), &raw const how) };
        done.map(drop).context("shut the file system down")
    }

    /// Mounts what the cut has left. May be repeated: it fails as long as a program has a file open.
    ///
    /// # Errors
    ///
    /// The kernel's, and those of the programs.
    pub fn recover(&self) -> Result<()> {
        unmount(&self.place)?;
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        // A mount namespace that was made meanwhile has the old mount, too: until its end the kernel writes to
        // the old file what the journal has.
        let copy = new_image(&self.place)?;
        run("cp", &["--sparse=always"], &[image.path(), copy.path()])?;
        mount(copy.path(), &self.place)?;
        *image = copy;
        Ok(())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

/// A file beside the place: what removes the directory of a stack removes it, too.
fn new_image(place: &Path) -> Result<NamedTempFile> {
    let beside = place.parent().unwrap_or(place);
    let made = tempfile::Builder::new().prefix("ext4-").tempfile_in(beside);
    made.context("make the file of a file system")
}

/// Unmounts a place, if anything is mounted there. A child that another thread of this process forks has all of
/// its files until it executes its program.
#[expect(
    clippy::disallowed_methods,
    reason = "no event announces that a child has executed its program"
)]
fn unmount(place: &Path) -> Result<()> {
    let end = Instant::now() + UNTIL_EXECUTED;
    loop {
        match umount2(place, MntFlags::empty()) {
            Ok(()) | Err(Errno::EINVAL) => return Ok(()),
            Err(Errno::EBUSY) if Instant::now() < end => thread::sleep(PAUSE),
            Err(errno) => return Err(errno).context("unmount"),
        }
    }
}

fn mount(image: &Path, place: &Path) -> Result<()> {
    run("mount", &["-t", "ext4", "-o", OPTIONS], &[image, place])
}

/// Copies all that is in a place to a new file system, with the owner and the mode of the folder itself, and
/// mounts that there, too.
fn fill(files: &Path, place: &Path) -> Result<()> {
    std::fs::remove_dir(files.join("lost+found"))?;
    run("cp", &["-a", "-T"], &[place, files])?;
    syncfs(&File::open(files)?)?;
    run("mount", &["--bind"], &[files, place])
}

/// Runs a program to its end.
fn run(program: &str, options: &[&str], paths: &[&Path]) -> Result<()> {
    let output = Command::new(program).args(options).args(paths).output();
    let output = output.with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {paths:?}: {said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn what_was_synced_is_there_after_a_cut_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("before"), "1").unwrap();
        let disk = Ext4::over(dir.path(), 32).unwrap();
        for _ in 0..2 {
            fs::write(file("synced"), "2").unwrap();
            File::open(file("synced")).unwrap().sync_all().unwrap();
            fs::write(file("late"), "3").unwrap();
            disk.cut().unwrap();
            fs::write(file("failed"), "4").unwrap_err();
            disk.recover().unwrap();
            assert_eq!(fs::read_to_string(file("before")).unwrap(), "1");
            assert_eq!(fs::read_to_string(file("synced")).unwrap(), "2");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        }
    }
}

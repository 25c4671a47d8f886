//! File systems of tests: one whose files can have the same blocks, and one whose files cannot.
//!
//! Invariant: each is mounted below a scratch directory, for as long as its value lives.
//! Failure: a test that is not root, or a kernel without btrfs, panics.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Mounted {
    at: PathBuf,
    scratch: TempDir,
}

impl Mounted {
    /// One that shares blocks, of so many bytes.
    pub(crate) fn btrfs(size: u64) -> Self {
        let this = Self::new();
        let file = this.scratch.path().join("btrfs");
        File::create(&file).unwrap().set_len(size).unwrap();
        run("mkfs.btrfs", &[Path::new("-q"), &file]);
        run("mount", &[Path::new("-oloop"), &file, &this.at]);
        this
    }

    /// One that shares none, of so many bytes.
    pub(crate) fn tmpfs(size: u64) -> Self {
        let this = Self::new();
        let kind = Some("tmpfs");
        let options = format!("size={size}");
        let options = Some(options.as_str());
        mount(kind, &this.at, kind, MsFlags::empty(), options).unwrap();
        this
    }

    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path().join("mounted");
        std::fs::create_dir(&at).unwrap();
        Self { at, scratch }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Bytes that are in use.
    pub(crate) fn used(&self) -> u64 {
        let folder = File::open(&self.at).unwrap();
        nix::unistd::syncfs(&folder).unwrap();
        let all = nix::sys::statvfs::statvfs(&self.at).unwrap();
        (all.blocks() - all.blocks_free()) * all.fragment_size()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

fn run(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

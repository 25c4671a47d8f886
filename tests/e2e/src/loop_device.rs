//! Block devices for tests: files behind loop devices.
//!
//! Invariant: a device is removed with the value, whatever became of the test.
//! Failure: `losetup`'s own words.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::program;
use crate::stack::streams;

/// A loop device with a file of zeros behind it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// Goes after the device.
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    /// A device of so many MiB.
    pub fn new(mib: u64) -> Result<Self> {
        let file = tempfile::Builder::new().prefix("vmlet-loop-").tempfile()?;
        file.as_file().set_len(mib << 20)?;
        let mut losetup = Command::new("losetup");
        let output = program::output(losetup.args(["--find", "--show"]).arg(file.path()))?;
        ensure!(output.status.success(), "losetup: {}", streams(&output));
        let name = String::from_utf8(output.stdout)?;
        Ok(Self {
            path: name.trim().into(),
            _file: file,
        })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first bytes, as text without the zeros after it.
    pub fn head(&self) -> Result<String> {
        let bytes = self.read(0, 512)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// So many bytes, from an offset on.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        File::open(&self.path)?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Keeps others from using the device, as a mount would or a copy that continues, until the
    /// file is closed.
    pub fn claim(&self) -> Result<File> {
        let mut options = File::options();
        let alone = options.read(true).custom_flags(nix::libc::O_EXCL);
        Ok(alone.open(&self.path)?)
    }

    /// Writes bytes to the beginning.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let device = File::options().write(true).open(&self.path)?;
        device.write_all_at(bytes, 0)?;
        Ok(device.sync_all()?)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut losetup = Command::new("losetup");
        match program::output(losetup.arg("--detach").arg(&self.path)) {
            Ok(output) if output.status.success() => {}
            outcome => eprintln!("--- losetup --detach {}: {outcome:?}", self.path.display()),
        }
    }
}

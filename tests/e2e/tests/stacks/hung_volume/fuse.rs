//! The file system of a volume, which this process serves.
//!
//! Invariant: the process stops itself at the next write after a file of the name that it was given
//! appears, when the kernel waits for the reply already.
//! Failure: the process ends, and with it the connection: accesses fail with `ENOTCONN`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use testfs::{Observer, Opcode, Session, is};

/// Passes `behind` on at `place`, until the end of the mount.
pub(super) fn serve(behind: &Path, place: &Path, stop: PathBuf) -> Result<()> {
    // Also when the test is killed.
    set_pdeathsig(Signal::SIGKILL)?;
    Session::mount(behind, place, Stop(stop))?.run()
}

/// Stops the process at a write, when this file is there.
struct Stop(PathBuf);

impl Observer for Stop {
    fn request(&mut self, request: &[u8]) -> Result<()> {
        if is(request, Opcode::Write) && fs::remove_file(&self.0).is_ok() {
            raise(Signal::SIGSTOP)?;
        }
        Ok(())
    }

    fn reply(&mut self, _request: &[u8], _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

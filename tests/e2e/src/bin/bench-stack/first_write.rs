//! Measures when a file was first written to.
//!
//! Invariant: watches from before the writer is started, so that nothing is missed.
//! Failure: nothing was written in time.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Waits for the first write to one file.
#[derive(Debug)]
pub(crate) struct FirstWrite {
    inotify: Inotify,
    name: OsString,
}

impl FirstWrite {
    /// Watches a file, which need not exist yet; its directory does.
    pub(crate) fn to(file: &Path) -> Result<Self> {
        let directory = file.parent().context("no directory")?;
        let name = file.file_name().context("no file")?.to_owned();
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify
            .add_watch(directory, AddWatchFlags::IN_MODIFY)
            .with_context(|| format!("watch {}", directory.display()))?;
        Ok(Self { inotify, name })
    }

    /// Blocks until the write; returns when that was.
    pub(crate) fn wait(&self, within: Duration) -> Result<Instant> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut watched = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
            if poll(&mut watched, PollTimeout::try_from(left)?)? == 0 {
                bail!("nothing written to {:?} within {within:?}", self.name);
            }
            let now = Instant::now();
            let events = self.inotify.read_events()?;
            if events.iter().any(|e| e.name.as_ref() == Some(&self.name)) {
                return Ok(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_write_to_the_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("console");
        let watch = FirstWrite::to(&file).unwrap();
        std::fs::write(dir.path().join("other"), "x").unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(watch.wait(Duration::from_millis(50)).is_err());
        let before = Instant::now();
        std::fs::write(&file, "x").unwrap();
        let written = watch.wait(Duration::from_secs(5)).unwrap();
        assert!(written >= before && written <= Instant::now());
    }
}

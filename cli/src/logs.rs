//! CRI log files: reading what is there and what is added.
//!
//! Invariant: what is printed is the console's own bytes, in order, without the format's prefixes.
//! Failure: [`LogError`] names the file; a line that is not in CRI form is printed as it is.

mod line;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use cri_proto::v1::{ContainerState, ContainerStatus};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::runtime::{CallError, Runtime};

/// How often the file is checked.
const TICK: Duration = Duration::from_millis(100);
/// Every so many ticks the daemon is asked whether the VM still runs.
const TICKS_PER_STATUS: u32 = 5;
/// After an exit, so many ticks without a new byte mean that the log is complete.
const QUIET_TICKS: u32 = 3;
/// How long a restarting daemon is waited for.
const DAEMON_AWAY: Duration = Duration::from_secs(60);
/// A line longer than any that the format allows; printed as it is.
const MAX_LINE: usize = 1 << 20;

/// What can go wrong while a log is read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("read log {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("print log")]
    Print(#[source] io::Error),
    #[error("ask for the state of the VM")]
    Status(#[source] CallError),
}

/// A log file, read from its beginning and across rotations.
#[derive(Debug)]
pub(crate) struct LogReader {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line whose end is not yet there.
    pending: Vec<u8>,
}

impl LogReader {
    /// The file need not exist yet.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            file: None,
            pending: Vec::new(),
        }
    }

    /// Prints what was added since the last call and returns whether there was anything.
    pub(crate) async fn pump(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> Result<bool, LogError> {
        let mut text = Vec::new();
        let read = self.read_new(&mut text).await;
        let read = read.map_err(|source| LogError::Read {
            path: self.path.clone(),
            source,
        })?;
        out.write_all(&text).await.map_err(LogError::Print)?;
        out.flush().await.map_err(LogError::Print)?;
        Ok(read)
    }

    async fn read_new(&mut self, text: &mut Vec<u8>) -> io::Result<bool> {
        let mut any = false;
        loop {
            if self.file.is_none() {
                self.file = match File::open(&self.path).await {
                    Ok(file) => Some(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(any),
                    Err(error) => return Err(error),
                };
            }
            let Some(file) = &mut self.file else {
                return Ok(any);
            };
            // One chunk at a time, so that a long log is not held in memory whole.
            let mut chunk = vec![0; 64 * 1024];
            let length = file.read(&mut chunk).await?;
            if length > 0 {
                self.pending.extend_from_slice(&chunk[..length]);
                line::take_lines(&mut self.pending, MAX_LINE, text);
                return Ok(true);
            }
            if !self.is_rotated().await? {
                return Ok(any);
            }
            any = true;
            self.file = None;
        }
    }

    /// Whether the path leads to another file by now. The one at hand has been read to its end.
    async fn is_rotated(&self) -> io::Result<bool> {
        let Some(file) = &self.file else {
            return Ok(false);
        };
        let ours = file.metadata().await?;
        match fs::metadata(&self.path).await {
            Ok(theirs) => Ok((ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Prints a log until the container has exited and its last line is out.
pub(crate) async fn follow(
    runtime: &Runtime,
    container: &str,
    mut reader: LogReader,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<ContainerStatus, LogError> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answered = Instant::now();
    let exited = 'running: loop {
        for _ in 0..TICKS_PER_STATUS {
            ticks.tick().await;
            while reader.pump(out).await? {}
        }
        match runtime
            .container_status(container, false)
            .await
            .map(|answer| answer.status)
        {
            Ok(Some(status)) if status.state() == ContainerState::ContainerExited => {
                break 'running status;
            }
            Ok(_) => answered = Instant::now(),
            Err(error) if error.is_unavailable() && answered.elapsed() < DAEMON_AWAY => {}
            Err(error) => return Err(LogError::Status(error)),
        }
    };
    let mut quiet = 0;
    while quiet < QUIET_TICKS {
        ticks.tick().await;
        quiet = if reader.pump(out).await? {
            0
        } else {
            quiet + 1
        };
    }
    Ok(exited)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn pumped(reader: &mut LogReader) -> String {
        let mut out = Vec::new();
        while reader.pump(&mut out).await.unwrap() {}
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn a_log_is_read_as_it_grows_and_across_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut reader = LogReader::new(&path);
        assert_eq!(pumped(&mut reader).await, "", "no file yet");

        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:00.0Z std")
            .unwrap();
        assert_eq!(pumped(&mut reader).await, "one\n");
        file.write_all(b"out P tw\n2026-01-01T00:00:00.0Z stdout F o\n")
            .unwrap();
        assert_eq!(pumped(&mut reader).await, "two\n");

        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        file.write_all(b"2026-01-01T00:00:00.0Z stdout F late\n")
            .unwrap();
        std::fs::write(&path, b"2026-01-01T00:00:00.0Z stdout F new\n").unwrap();
        assert_eq!(pumped(&mut reader).await, "late\nnew\n");
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = LogReader::new(dir.path())
            .pump(&mut Vec::new())
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("read log /"), "{error}");
    }
}

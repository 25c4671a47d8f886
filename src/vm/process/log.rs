//! The log of a process: both of its streams, with how much of each is in it.
//!
//! Invariant: the position is saved after each batch, and before the guest forgets the batch. What
//! is in the log beyond the saved position is cut off, and comes from the guest again: each byte is
//! there once, whenever the daemon is killed. A position that cannot be read counts as none: what the
//! guest still has comes again.
//! Failure: an error names the file; the batch is not acknowledged, and comes again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use guestapi::Stream;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::vm::console::{Lines, LogFile, Mark, Rest, Tag, rfc3339};

/// How much of a stream is in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// Bytes whose records are in the log.
    offset: u64,
    /// The last record was partial.
    line_open: bool,
}

/// What the log holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    stdout: Progress,
    stderr: Progress,
    log: Option<Mark>,
}

/// An open log.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: LogFile,
    saved: PathBuf,
    position: Position,
    /// Received, and not in the log yet: the beginnings of lines.
    waiting: [Vec<u8>; 2],
}

impl Log {
    /// Opens the log at `path`, and continues after what the position in `saved` states.
    pub(super) fn open(path: &Path, saved: &Path) -> Result<Self, files::Error> {
        let failed = |step| files::failed(step, saved);
        let mut position = match std::fs::read(saved) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                let file = saved.display();
                tracing::warn!(%file, %error, "position of a process's log not readable: log restarts");
                Position::default()
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Position::default(),
            Err(e) => return Err(failed("read")(e)),
        };
        let file = LogFile::open(path, position.log.as_ref());
        let file = file.map_err(files::failed("open the log", path))?;
        position.log = Some(file.mark().clone());
        let log = Self {
            path: path.to_owned(),
            file,
            saved: saved.to_owned(),
            position,
            waiting: Default::default(),
        };
        log.save()?;
        Ok(log)
    }

    /// Bytes of standard output and of standard error that are in the log.
    pub(super) const fn stored(&self) -> (u64, u64) {
        (self.position.stdout.offset, self.position.stderr.offset)
    }

    /// Continues in a new file after the rotation of the old one.
    pub(super) fn reopen(&mut self) -> Result<(), files::Error> {
        let file = LogFile::open(&self.path, self.position.log.as_ref());
        self.file = file.map_err(files::failed("open the log", &self.path))?;
        self.position.log = Some(self.file.mark().clone());
        self.save()
    }

    /// Takes bytes of a stream, which wait for [`Self::flush`].
    pub(super) fn receive(&mut self, stream: Stream, bytes: &[u8]) {
        self.waiting[usize::from(stream == Stream::Stderr)].extend_from_slice(bytes);
    }

    /// Forgets what waits: the guest sends it again.
    pub(super) fn forget(&mut self) {
        self.waiting.iter_mut().for_each(Vec::clear);
    }

    /// Writes the lines that are whole; at the end of the stream the rest is its last line. Returns
    /// how many bytes of the stream were stored.
    pub(super) fn flush(&mut self, stream: Stream, rest: Rest) -> Result<usize, files::Error> {
        let is_stderr = stream == Stream::Stderr;
        let waiting = &mut self.waiting[usize::from(is_stderr)];
        let progress = if is_stderr {
            &mut self.position.stderr
        } else {
            &mut self.position.stdout
        };
        let name = if is_stderr { "stderr" } else { "stdout" };
        let mut lines = Lines::new(waiting, progress.line_open, rest);
        let mut batch = Vec::new();
        let now = rfc3339(SystemTime::now());
        for record in &mut lines {
            let tag = match record.tag {
                Tag::Full => "F",
                Tag::Partial => "P",
            };
            batch.extend_from_slice(format!("{now} {name} {tag} ").as_bytes());
            batch.extend_from_slice(record.text);
            batch.push(b'\n');
        }
        if batch.is_empty() {
            return Ok(0);
        }
        let line_open = lines.line_open();
        let stored = waiting.len() - lines.pending().len();
        let written = self.file.append(&batch);
        written.map_err(files::failed("write the log", &self.path))?;
        faultpoint::point("process.log.written");
        waiting.drain(..stored);
        *progress = Progress {
            offset: progress.offset + stored as u64,
            line_open,
        };
        self.position.log = Some(self.file.mark().clone());
        self.save()?;
        Ok(stored)
    }

    /// Not synced: it has to survive this process, not the node, whose end is the guest's, too.
    fn save(&self) -> Result<(), files::Error> {
        let text = serde_json::to_vec(&self.position).unwrap_or_default();
        let new = self.saved.with_extension("new");
        std::fs::write(&new, text).map_err(files::failed("write", &new))?;
        std::fs::rename(&new, &self.saved).map_err(files::failed("rename", &new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Log {
        fn write(&mut self, stream: Stream, bytes: &[u8]) -> Result<usize, files::Error> {
            self.receive(stream, bytes);
            self.flush(
                stream,
                if bytes.is_empty() {
                    Rest::End
                } else {
                    Rest::Hold
                },
            )
        }
    }

    struct Scratch(tempfile::TempDir);

    impl Scratch {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn log(&self) -> Log {
            let dir = self.0.path();
            Log::open(&dir.join("0.log"), &dir.join("position")).unwrap()
        }

        /// The records without their times.
        fn records(&self) -> Vec<String> {
            let text = std::fs::read_to_string(self.0.path().join("0.log")).unwrap();
            let records = text.lines().map(|line| line.split_once(' ').unwrap().1);
            records.map(str::to_owned).collect()
        }
    }

    #[test]
    fn a_position_that_cannot_be_read_counts_as_none() {
        let scratch = Scratch::new();
        scratch.log().write(Stream::Stdout, b"one\n").unwrap();
        for damage in ["", "{\"stdout\": 7}", "\u{fffd}"] {
            std::fs::write(scratch.0.path().join("position"), damage).unwrap();
            let mut log = scratch.log();
            assert_eq!(log.stored(), (0, 0));
            log.write(Stream::Stdout, b"two\n").unwrap();
            assert_eq!(log.stored(), (4, 0));
        }
    }

    #[test]
    fn lines_of_both_streams_keep_apart() {
        let scratch = Scratch::new();
        let mut log = scratch.log();
        assert_eq!(log.write(Stream::Stdout, b"one\ntw").unwrap(), 4);
        assert_eq!(log.write(Stream::Stderr, b"bad\n").unwrap(), 4);
        assert_eq!(log.write(Stream::Stdout, b"o\n").unwrap(), 4);
        log.write(Stream::Stdout, b"rest").unwrap();
        assert_eq!(log.write(Stream::Stdout, b"").unwrap(), 4);
        let expected = [
            "stdout F one",
            "stderr F bad",
            "stdout F two",
            "stdout F rest",
        ];
        assert_eq!(scratch.records(), expected);
        assert_eq!(log.stored(), (12, 4));
    }

    #[test]
    fn what_was_not_recorded_is_cut_off_and_comes_again() {
        let scratch = Scratch::new();
        let mut log = scratch.log();
        log.write(Stream::Stdout, b"one\n").unwrap();
        // Killed between the log and the position.
        log.file.append(b"time stdout F two\n").unwrap();
        drop(log);
        let mut log = scratch.log();
        assert_eq!(log.stored(), (4, 0));
        log.write(Stream::Stdout, b"two\n").unwrap();
        assert_eq!(scratch.records(), ["stdout F one", "stdout F two"]);
    }

    #[test]
    fn a_rotated_log_continues_in_a_new_file() {
        let scratch = Scratch::new();
        let mut log = scratch.log();
        log.write(Stream::Stdout, b"old\n").unwrap();
        let path = scratch.0.path().join("0.log");
        std::fs::rename(&path, path.with_extension("log.1")).unwrap();
        log.reopen().unwrap();
        log.write(Stream::Stdout, b"new\n").unwrap();
        assert_eq!(scratch.records(), ["stdout F new"]);
    }
}

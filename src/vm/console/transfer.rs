//! Copies console bytes from the raw file to the log, one bounded batch per call. Blocks.
//!
//! ```text
//! send to clients, read ─► append to log ─► save position ─► punch out
//! ```
//!
//! Invariant: at most one batch is in the log beyond the saved position, at the end of the file
//! that the position names (the mark is saved before a new log's first byte). So a kill at any
//! point leaves a log that can be cut back and written on: every byte once. Nothing beyond the
//! saved position is punched out.
//! Failure: an error names the step; the next call repeats it. The bytes stay in the raw file.

use std::cmp::Ordering;
use std::time::SystemTime;

use super::clients::Output;
use super::lines::{Lines, Rest, Tag};
use super::log_file::LogFile;
use super::position::{Position, PositionFile};
use super::raw_file::RawFile;
use super::{Error, Paths, Result, WRITTEN, timestamp};

/// Raw bytes per batch; more than the splitter needs for a decision.
const CHUNK: usize = 64 * 1024;
/// Bytes that may wait in the raw file. Beyond that the first ones are dropped, so that a guest
/// cannot fill the disk while its log cannot be written.
const MOST_WAITING: u64 = 64 << 20;
/// Bytes that are kept then.
const KEPT: u64 = 16 << 20;
/// A batch ends after this many log bytes: a line of one byte becomes one of forty.
const OUTPUT: usize = 256 * 1024;

/// The state of the copying of one console.
#[derive(Debug)]
pub(super) struct Transfer {
    paths: Paths,
    raw: RawFile,
    log: Option<LogFile>,
    file: PositionFile,
    position: Position,
    is_saved: bool,
    output: Output,
    /// Raw bytes that clients have received, or that were there before them: never fewer than are in
    /// the log.
    sent: u64,
}

/// What a batch found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batch {
    /// There is more to copy at once.
    pub(super) more: bool,
    /// Where in the raw file the text ends that waits for its newline, if any waits.
    pub(super) held: Option<u64>,
}

impl Transfer {
    /// Opens the raw file and finds the position where an earlier process stopped.
    /// `output` receives what is written from now on.
    pub(super) fn open(paths: Paths, output: Output) -> Result<Self> {
        let raw = RawFile::open(&paths.raw)?;
        let failed = |source| Error::ReadRaw {
            path: paths.raw.clone(),
            source,
        };
        let file = PositionFile::beside(&paths.raw);
        let saved = file.load().map_err(|source| Error::LoadPosition {
            raw: paths.raw.clone(),
            source,
        })?;
        let inode = raw.inode().map_err(failed)?;
        let size = raw.size().map_err(failed)?;
        let first = raw.first_byte().map_err(failed)?;
        let (position, is_saved) = match saved {
            Some(saved) if saved.raw_inode == inode && saved.offset <= size => {
                // What was dropped while no daemon ran.
                let offset = saved.offset.max(first);
                let is_saved = offset == saved.offset;
                (Position { offset, ..saved }, is_saved)
            }
            other => {
                if other.is_some() {
                    let raw = paths.raw.display();
                    tracing::warn!(%raw, size, "raw console file replaced: read from its start");
                }
                let offset = first;
                let (line_open, log) = other.map_or((false, None), |p| (p.line_open, p.log));
                (
                    Position {
                        raw_inode: inode,
                        offset,
                        line_open,
                        log,
                    },
                    false,
                )
            }
        };
        Ok(Self {
            paths,
            raw,
            log: None,
            file,
            position,
            is_saved,
            output,
            sent: size,
        })
    }

    /// The raw file, for watching.
    pub(super) const fn raw(&self) -> &RawFile {
        &self.raw
    }

    /// Makes the log exist at its path, opening it again: after its rotation, what follows goes
    /// there.
    pub(super) fn reopen(&mut self) -> Result<()> {
        let log = LogFile::open(&self.paths.log, self.position.log.as_ref()).map_err(|source| {
            Error::OpenLog {
                path: self.paths.log.clone(),
                source,
            }
        })?;
        if self.position.log.as_ref() != Some(log.mark()) {
            self.position.log = Some(log.mark().clone());
            self.is_saved = false;
        }
        self.log = Some(log);
        Ok(())
    }

    /// Saves the position if the saved one is older.
    pub(super) fn save(&mut self) -> Result<()> {
        if !self.is_saved {
            self.file
                .save(&self.position)
                .map_err(|source| Error::SavePosition {
                    raw: self.paths.raw.clone(),
                    source,
                })?;
            self.is_saved = true;
        }
        Ok(())
    }

    /// Copies what is there, up to the limits of a batch. `rest` decides about text at the very
    /// end.
    pub(super) fn batch(&mut self, rest: Rest) -> Result<Batch> {
        self.copy(|_| rest)
    }

    /// As [`Self::batch`], and text that waits for its newline is shown without it. What was
    /// written after the offset `held` has not waited: then all of the text waits again.
    pub(super) fn flush(&mut self, held: u64) -> Result<Batch> {
        self.copy(|end| match held.cmp(&end) {
            Ordering::Equal => Rest::Flush,
            Ordering::Less | Ordering::Greater => Rest::Hold,
        })
    }

    /// `rest` decides by the offset at which the bytes of this batch end.
    fn copy(&mut self, rest: impl FnOnce(u64) -> Rest) -> Result<Batch> {
        self.bound()?;
        let size = self.raw_size()?;
        // Before the log: clients do not wait for one that cannot be written, and what is behind it is
        // punched out.
        self.send(size)?;
        self.ready()?;
        let wanted = usize::try_from(size - self.position.offset).map_or(CHUNK, |n| n.min(CHUNK));
        let chunk = self
            .raw
            .read(self.position.offset, wanted)
            .map_err(|source| Error::ReadRaw {
                path: self.paths.raw.clone(),
                source,
            })?;
        let chunk_end = self.position.offset + chunk.len() as u64;
        let at_end = chunk_end >= size || chunk.is_empty();
        let mut lines = Lines::new(
            &chunk,
            self.position.line_open,
            if at_end { rest(chunk_end) } else { Rest::Hold },
        );
        let (output, cut_short) = format(&mut lines);
        let pending = lines.pending().len() as u64;
        let line_open = lines.line_open();
        let held = (at_end && lines.holds_text()).then_some(chunk_end);
        if !output.is_empty() {
            self.append(&output)?;
            self.position.offset = chunk_end - pending;
            self.position.line_open = line_open;
            faultpoint::point(WRITTEN);
            self.save()?;
            self.raw.punch(self.position.offset);
        }
        Ok(Batch {
            more: cut_short || !at_end,
            held,
        })
    }

    /// Sends clients what they have not received before `size`.
    fn send(&mut self, size: u64) -> Result<()> {
        if !self.output.has_clients() {
            self.sent = size;
            return Ok(());
        }
        if self.sent > size {
            // The file was truncated.
            self.sent = self.position.offset;
        }
        // What was dropped is lost to them, too.
        self.sent = self.sent.max(self.position.offset);
        while self.sent < size {
            let length = usize::try_from(size - self.sent).map_or(CHUNK, |n| n.min(CHUNK));
            let bytes = self.raw.read(self.sent, length);
            let bytes = bytes.map_err(|source| Error::ReadRaw {
                path: self.paths.raw.clone(),
                source,
            })?;
            if bytes.is_empty() {
                break;
            }
            self.output.send(&bytes);
            self.sent += bytes.len() as u64;
        }
        Ok(())
    }

    /// Drops the first bytes that wait when too many do.
    fn bound(&mut self) -> Result<()> {
        let waiting = self.raw_size()? - self.position.offset;
        if waiting <= MOST_WAITING {
            return Ok(());
        }
        let dropped = waiting - KEPT;
        let raw = self.paths.raw.display();
        tracing::warn!(%raw, dropped, "console output dropped: the log is not written");
        self.position.offset += dropped;
        self.is_saved = false;
        self.save()?;
        self.raw.punch(self.position.offset);
        Ok(())
    }

    /// Nothing unsaved, and a log that has a name.
    fn ready(&mut self) -> Result<()> {
        self.save()?;
        let has_name = self
            .log
            .as_ref()
            .map_or(Ok(false), LogFile::has_name)
            .map_err(|source| Error::OpenLog {
                path: self.paths.log.clone(),
                source,
            })?;
        if !has_name {
            self.reopen()?;
            self.save()?;
        }
        Ok(())
    }

    /// The length of the raw file, not less than the position.
    fn raw_size(&mut self) -> Result<u64> {
        let failed = |source| Error::ReadRaw {
            path: self.paths.raw.clone(),
            source,
        };
        let size = self.raw.size().map_err(failed)?;
        if size >= self.position.offset {
            return Ok(size);
        }
        let raw = self.paths.raw.display();
        tracing::warn!(%raw, size, was = self.position.offset,
            "raw console file truncated: read from its start");
        self.position.offset = self.raw.first_byte().map_err(failed)?.min(size);
        self.raw.forget_holes();
        self.is_saved = false;
        self.save()?;
        Ok(size)
    }

    fn append(&mut self, output: &[u8]) -> Result<()> {
        let Some(log) = &mut self.log else {
            return Err(Error::Ended);
        };
        log.append(output).map_err(|source| Error::WriteLog {
            path: self.paths.log.clone(),
            source,
        })?;
        self.position.log = Some(log.mark().clone());
        self.is_saved = false;
        Ok(())
    }
}

/// The log text of a batch, and whether it was cut short at the limit.
fn format(lines: &mut Lines<'_>) -> (Vec<u8>, bool) {
    let now = timestamp::rfc3339(SystemTime::now());
    let mut output = Vec::new();
    for record in lines {
        output.extend_from_slice(now.as_bytes());
        output.extend_from_slice(match record.tag {
            Tag::Full => b" stdout F ",
            Tag::Partial => b" stdout P ",
        });
        output.extend_from_slice(record.text);
        output.push(b'\n');
        if output.len() >= OUTPUT {
            return (output, true);
        }
    }
    (output, false)
}

#[cfg(test)]
mod tests;

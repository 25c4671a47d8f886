//! Runs a confined `qemu-img` to its end, and reads how far it is.
//!
//! Invariant: the program ends with the future that runs it, and at its deadline at the latest. A
//! thread starts it: its own files may never answer.
//! Failure: what the program or the kernel reported, in a few words.

use std::ffi::OsString;
use std::fs::File;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::Lent;
use crate::foreign::Open;
use crate::helper::{self, Child, Helper, Limits, Stream, Streams};

/// Longest part of the program's message that is kept, in characters.
const WORDS: usize = 500;

/// The words of the C library for a file that would become too large.
const TOO_LARGE: &str = "File too large";

/// What is read of its output at once, in bytes.
const PIECE: usize = 4096;

/// A copy that makes no progress for so long is on a hung disk.
pub(super) const STALL: Duration = Duration::from_secs(120);

/// The least that a device is expected to take in, in bytes per second: a hundredth of a large
/// image may take its time.
const SLOWEST: u64 = 1 << 20;

/// How long a program may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    /// Without a report of progress.
    pub(super) stall: Duration,
    /// In all.
    pub(super) total: Duration,
}

/// What is to run, and the files that its arguments name.
#[derive(Debug)]
pub(super) struct Program {
    helper: Helper,
    limits: Limits,
    files: Vec<Open<File>>,
    arguments: Vec<OsString>,
}

impl Time {
    pub(super) const fn short(all: Duration) -> Self {
        Self {
            stall: all,
            total: all,
        }
    }

    /// The time that so many bytes may take.
    pub(super) const fn long(size: u64) -> Self {
        let whole = size / SLOWEST;
        let part = size / 100 / SLOWEST;
        Self {
            stall: Duration::from_secs(STALL.as_secs() + part),
            total: Duration::from_secs(5 * STALL.as_secs() + whole),
        }
    }
}

impl Program {
    pub(super) const fn new(helper: Helper, limits: Limits, files: Vec<Open<File>>) -> Self {
        Self {
            helper,
            limits,
            files,
            arguments: Vec::new(),
        }
    }

    pub(super) fn arg(&mut self, argument: impl Into<OsString>) -> &mut Self {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn args(
        &mut self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> &mut Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Blocks. Our copies of the files end here.
    fn start(self) -> Result<Child, String> {
        let streams = Streams {
            stdin: Stream::Null,
            stdout: Stream::Pipe,
            stderr: Stream::Pipe,
        };
        let Self {
            helper,
            limits,
            files,
            arguments,
        } = self;
        let start = helper.start(limits, files, arguments, streams);
        start.start().map_err(|e| format!("start qemu-img: {e}"))
    }
}

/// Runs a program that writes to `disk`.
pub(super) async fn run(
    program: Program,
    disk: &Lent,
    time: Time,
    mut progress: impl FnMut(u8),
) -> Result<(), String> {
    let report = |piece: &[u8]| {
        if let Some(percent) = percent(piece) {
            progress(percent);
        }
    };
    run_reading(program, disk, time, report).await
}

/// Runs a program that has `disk` open; `read` gets all that it prints, in pieces.
pub(super) async fn run_reading(
    program: Program,
    disk: &Lent,
    time: Time,
    read: impl FnMut(&[u8]),
) -> Result<(), String> {
    let started = disk.loan.look(move |_| program.start()).await;
    let started = started.map_err(|e| format!("start qemu-img: {}", crate::one_line(&e)))?;
    let work = tokio::time::timeout(time.total, follow(started?, time.stall, read));
    work.await.unwrap_or_else(|_| Err(late(time.total)))
}

async fn follow(
    mut child: Child,
    stall: Duration,
    mut take: impl FnMut(&[u8]),
) -> Result<(), String> {
    let pipes = &mut child.pipes;
    let missing = || "qemu-img has no output".to_owned();
    let mut out = pipes.stdout.take().ok_or_else(missing)?;
    let err = pipes.stderr.take().ok_or_else(missing)?;
    let words = tokio::spawn(async move {
        let mut text = Vec::new();
        // What cannot be read is left out.
        let _ = err.take(64 * 1024).read_to_end(&mut text).await;
        text
    });
    let mut buffer = vec![0; PIECE];
    loop {
        let read = tokio::time::timeout(stall, out.read(&mut buffer));
        match read.await.map_err(|_| late(stall))? {
            Ok(0) | Err(_) => break,
            Ok(count) => take(&buffer[..count]),
        }
    }
    let status = tokio::time::timeout(stall, child.wait()).await;
    let status = status.map_err(|_| late(stall))?;
    let status = status.map_err(|e| format!("wait for qemu-img: {e}"))?;
    let words = words.await.unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    if let Some(limit) = helper::limit_that_ended(status) {
        return Err(format!("qemu-img {limit}"));
    }
    let text = String::from_utf8_lossy(&words);
    let text = text.trim();
    // The first process of a namespace gets no signal at its limits, but an error.
    if text.ends_with(TOO_LARGE) {
        return Err(format!("qemu-img {}", helper::WROTE_TOO_MUCH));
    }
    Err(text.chars().take(WORDS).collect())
}

/// Whether a program reached its limit of file size.
pub(super) fn is_too_much(reason: &str) -> bool {
    reason.ends_with(helper::WROTE_TOO_MUCH)
}

fn late(deadline: Duration) -> String {
    format!("qemu-img did not get on within {} s", deadline.as_secs())
}

/// The last whole report `(12.34/100%)` in a piece of output.
fn percent(piece: &[u8]) -> Option<u8> {
    let text = String::from_utf8_lossy(piece);
    let end = text.rfind("/100%)")?;
    let begin = text[..end].rfind('(')? + 1;
    let whole = text[begin..end].split('.').next()?;
    whole.trim().parse().ok().filter(|percent| *percent <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_whole_reports_only() {
        assert_eq!(percent(b"    (0.00/100%)\r    (12.50/100%)\r"), Some(12));
        assert_eq!(percent(b"(100.00/100%)\n"), Some(100));
        for odd in ["", "(12.", "50/100%)", "(900.00/100%)", "(x/100%)"] {
            assert_eq!(percent(odd.as_bytes()), None, "{odd}");
        }
    }
}

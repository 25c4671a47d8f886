//! Runs a confined `qemu-img` to its end, and reads how far it is.
//!
//! Invariant: the program ends with the future that runs it, and at its deadline at the latest.
//! Failure: what the program or the kernel reported, in a few words.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::helper;

/// Longest part of the program's message that is kept, in characters.
const WORDS: usize = 500;

/// How long a program may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    /// Without a report of progress.
    pub(super) stall: Duration,
    /// In all.
    pub(super) total: Duration,
}

pub(super) async fn run(
    command: Command,
    time: Time,
    progress: impl FnMut(u8),
) -> Result<(), String> {
    let work = tokio::time::timeout(time.total, follow(command, time.stall, progress));
    work.await.unwrap_or_else(|_| Err(late(time.total)))
}

async fn follow(
    mut command: Command,
    stall: Duration,
    mut progress: impl FnMut(u8),
) -> Result<(), String> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|e| format!("start qemu-img: {e}"))?;
    // The command holds copies of the files that the program has.
    drop(command);
    let (Some(mut out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("qemu-img has no output".to_owned());
    };
    let words = tokio::spawn(async move {
        let mut text = Vec::new();
        // What cannot be read is left out.
        let _ = err.take(64 * 1024).read_to_end(&mut text).await;
        text
    });
    let mut buffer = [0; 256];
    loop {
        let read = tokio::time::timeout(stall, out.read(&mut buffer));
        match read.await.map_err(|_| late(stall))? {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if let Some(percent) = percent(&buffer[..count]) {
                    progress(percent);
                }
            }
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
    Err(text.trim().chars().take(WORDS).collect())
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

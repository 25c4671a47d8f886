//! Writes disks with `qemu-img`.
//!
//! Invariant: formats are named, never guessed; the program ends with the future that runs it.
//! Failure: [`Failed`] with the program's own words; what it wrote is removed then.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::images::Format;

/// Creating an overlay writes a few clusters; more time means a hung disk.
const OVERLAY: Duration = Duration::from_secs(30);

/// A copy that makes no progress for so long stands on a hung disk.
const STALL: Duration = Duration::from_secs(120);

/// Longest part of the program's words that is kept, in characters.
const WORDS: usize = 500;

/// A disk that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write disk {}: {reason}", path.display())]
pub struct Failed {
    /// The disk.
    pub path: PathBuf,
    /// What `qemu-img` or the kernel said.
    pub reason: String,
}

/// What a disk is made from.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// The image's file.
    pub path: &'a Path,
    /// How it is to be read.
    pub format: Format,
}

/// Makes a disk of `size` bytes that holds only differences from `base`.
pub async fn overlay(path: &Path, base: Base<'_>, size: u64) -> Result<(), Failed> {
    let mut command = program("create", base.format, "-F");
    command.arg("-b").arg(base.path).arg(path);
    command.arg(size.to_string());
    let work = tokio::time::timeout(OVERLAY, run(command, |_| {}));
    let outcome = work.await.unwrap_or_else(|_| Err(late(OVERLAY)));
    settle(path, outcome).await
}

/// Makes a disk of `size` bytes, at least the image's, that holds all of `base`; `progress` is told percents.
pub async fn copy(
    path: &Path,
    base: Base<'_>,
    size: u64,
    progress: impl FnMut(u8),
) -> Result<(), Failed> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-p", "-O", "qcow2", "-f", name(base.format)]);
    command.arg(base.path).arg(path);
    settle(path, run(command, progress).await).await?;
    let mut resize = Command::new("qemu-img");
    resize.args(["resize", "-q", "-f", "qcow2"]).arg(path);
    resize.arg(size.to_string());
    settle(path, run(resize, |_| {}).await).await
}

const fn name(format: Format) -> &'static str {
    match format {
        Format::Qcow2 => "qcow2",
        Format::Raw => "raw",
    }
}

fn program(verb: &str, format: Format, flag: &str) -> Command {
    let mut command = Command::new("qemu-img");
    command.args([verb, "-q", "-f", "qcow2", flag, name(format)]);
    command
}

fn late(deadline: Duration) -> String {
    format!("qemu-img did not get on within {} s", deadline.as_secs())
}

async fn settle(path: &Path, outcome: Result<(), String>) -> Result<(), Failed> {
    let Err(reason) = outcome else {
        return Ok(());
    };
    // A part of a disk is worth nothing; the error is what counts.
    let _ = tokio::fs::remove_file(path).await;
    let path = path.to_owned();
    Err(Failed { path, reason })
}

async fn run(mut command: Command, mut progress: impl FnMut(u8)) -> Result<(), String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|e| format!("start qemu-img: {e}"))?;
    let (Some(mut out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("qemu-img has no output".to_owned());
    };
    let words = tokio::spawn(async move {
        let mut text = Vec::new();
        // What cannot be read is not said.
        let _ = err.take(64 * 1024).read_to_end(&mut text).await;
        text
    });
    let mut buffer = [0; 256];
    loop {
        let read = tokio::time::timeout(STALL, out.read(&mut buffer));
        match read.await.map_err(|_| late(STALL))? {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if let Some(percent) = percent(&buffer[..count]) {
                    progress(percent);
                }
            }
        }
    }
    let status = tokio::time::timeout(STALL, child.wait()).await;
    let status = status.map_err(|_| late(STALL))?;
    let status = status.map_err(|e| format!("wait for qemu-img: {e}"))?;
    let words = words.await.unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&words);
    Err(text.trim().chars().take(WORDS).collect())
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

    #[tokio::test]
    async fn a_copy_needs_nothing_but_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
        std::fs::write(&image, vec![7; 1 << 20]).unwrap();
        let base = Base {
            path: &image,
            format: Format::Raw,
        };
        let mut last = 0;
        copy(&disk, base, 4 << 20, |percent| last = percent)
            .await
            .unwrap();
        assert_eq!(last, 100);
        std::fs::remove_file(&image).unwrap();
        let check = Command::new("qemu-img").arg("info").arg(&disk).output();
        let text = String::from_utf8(check.await.unwrap().stdout).unwrap();
        assert!(text.contains("4 MiB"), "{text}");
        assert!(!text.contains("backing"), "{text}");
        let gone = copy(&disk, base, 1, |_| {}).await.unwrap_err();
        assert!(gone.reason.contains("image"), "{gone}");
        assert!(!disk.exists(), "a part of a disk is left");
    }
}

//! Writes disks with `qemu-img`.
//!
//! Invariant: formats are named, never guessed; the program ends with the future that runs it. One
//! that outlived an earlier process continues with a file that has no name any more, or, when a
//! disk grows, holds QEMU's lock of the image until it is done: no other process opens the disk
//! before.
//! Failure: [`Failed`] with the program's own message; what it wrote is removed then.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::images::Format;

/// Creating an overlay writes a few clusters; more time means a hung disk.
const OVERLAY: Duration = Duration::from_secs(30);

/// A copy that makes no progress for so long is on a hung disk.
const STALL: Duration = Duration::from_secs(120);

/// The least that a device is expected to take in, in bytes per second: a hundredth of a large
/// image may take its time.
const SLOWEST: u64 = 1 << 20;

/// Longest part of the program's message that is kept, in characters.
const WORDS: usize = 500;

/// A disk that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write disk {}: {reason}", path.display())]
pub struct Failed {
    /// The disk.
    pub path: PathBuf,
    /// What `qemu-img` or the kernel reported.
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
    clear(path).await?;
    let mut command = program("create", base.format, "-F");
    command.arg("-b").arg(base.path).arg(path);
    command.arg(size.to_string());
    let work = tokio::time::timeout(OVERLAY, run(command, |_| {}));
    let outcome = work.await.unwrap_or_else(|_| Err(late(OVERLAY)));
    settle(path, outcome).await
}

/// Creates a disk of `size` bytes, at least the image's, that holds all of `base`; `progress` gets
/// percents.
pub async fn copy(
    path: &Path,
    base: Base<'_>,
    size: u64,
    progress: impl FnMut(u8),
) -> Result<(), Failed> {
    clear(path).await?;
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-p", "-O", "qcow2", "-f", name(base.format)]);
    command.arg(base.path).arg(path);
    settle(path, run(command, progress).await).await?;
    settle(path, resize(path, size).await).await
}

/// Makes a disk of ours larger; one that cannot be is left alone.
pub async fn grow(path: &Path, size: u64) -> Result<(), Failed> {
    let path = path.to_owned();
    let outcome = resize(&path, size).await;
    outcome.map_err(|reason| Failed { path, reason })
}

async fn resize(path: &Path, size: u64) -> Result<(), String> {
    let mut command = Command::new("qemu-img");
    command.args(["resize", "-q", "-f", "qcow2"]).arg(path);
    command.arg(size.to_string());
    run(command, |_| {}).await
}

/// A part of a device, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The device.
    pub path: &'a Path,
    /// Where the part begins.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

/// Writes all of `base`, of `size` bytes, to a part of a device, past the kernel's cache. `claim`
/// stays open for as long as the program runs, even if it outlives this process.
pub async fn write(
    part: Part<'_>,
    base: Base<'_>,
    size: u64,
    claim: File,
    progress: impl FnMut(u8),
) -> Result<(), Failed> {
    let kind = tokio::fs::metadata(part.path).await;
    let is_device = kind.is_ok_and(|kind| kind.file_type().is_block_device());
    let driver = if is_device { "host_device" } else { "file" };
    // A comma in a path is doubled in this notation.
    let path = part.path.display().to_string().replace(',', ",,");
    let target = format!(
        "driver=raw,offset={},size={},file.driver={driver},file.filename={path}",
        part.offset, part.size
    );
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-p", "-n", "-t", "none"]);
    command.args(["-f", name(base.format)]).arg(base.path);
    command.args(["--target-image-opts", &target]);
    let stall = STALL + Duration::from_secs(size / 100 / SLOWEST);
    let outcome = run_with(command, Stdio::from(claim), stall, progress).await;
    let path = part.path.to_owned();
    outcome.map_err(|reason| Failed { path, reason })
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

/// Removes the file of an earlier attempt, whose program may still have it open and
/// locked.
async fn clear(path: &Path) -> Result<(), Failed> {
    match tokio::fs::remove_file(path).await {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            let (path, reason) = (path.to_owned(), format!("remove what was left of it: {e}"));
            Err(Failed { path, reason })
        }
        _ => Ok(()),
    }
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

async fn run(command: Command, progress: impl FnMut(u8)) -> Result<(), String> {
    run_with(command, Stdio::null(), STALL, progress).await
}

async fn run_with(
    mut command: Command,
    stdin: Stdio,
    stall: Duration,
    mut progress: impl FnMut(u8),
) -> Result<(), String> {
    command.stdin(stdin).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|e| format!("start qemu-img: {e}"))?;
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
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn progress_is_read_from_whole_reports_only() {
        assert_eq!(percent(b"    (0.00/100%)\r    (12.50/100%)\r"), Some(12));
        assert_eq!(percent(b"(100.00/100%)\n"), Some(100));
        for odd in ["", "(12.", "50/100%)", "(900.00/100%)", "(x/100%)"] {
            assert_eq!(percent(odd.as_bytes()), None, "{odd}");
        }
    }

    /// An image of 1 MiB, and where a disk may be made.
    fn files(dir: &Path) -> (PathBuf, PathBuf) {
        let (image, disk) = (dir.join("image"), dir.join("disk"));
        std::fs::write(&image, vec![7; 1 << 20]).unwrap();
        (image, disk)
    }

    fn raw(path: &Path) -> Base<'_> {
        let format = Format::Raw;
        Base { path, format }
    }

    #[tokio::test]
    async fn a_copy_needs_nothing_but_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (image, disk) = files(dir.path());
        let base = raw(&image);
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

    #[tokio::test]
    async fn a_program_that_outlived_an_earlier_attempt_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let (image, disk) = files(dir.path());
        let base = raw(&image);
        overlay(&disk, base, 1 << 20).await.unwrap();
        let mut other = Command::new("qemu-io");
        other.args(["-f", "qcow2"]).arg(&disk).kill_on_drop(true);
        other.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut words = other.stdin.take().unwrap();
        words.write_all(b"length\n").await.unwrap();
        let mut reported = [0; 16];
        let reported = other.stdout.as_mut().unwrap().read(&mut reported).await;
        assert!(reported.unwrap() > 0, "it has the disk open");
        overlay(&disk, base, 1 << 20).await.unwrap();
        copy(&disk, base, 1 << 20, |_| {}).await.unwrap();
        assert!(other.try_wait().unwrap().is_none());
        drop(words);
    }
}

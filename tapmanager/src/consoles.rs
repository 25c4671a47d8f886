//! Bounds the console files of guests while the daemon is away.
//!
//! QEMU appends to these files without a limit of its own. The daemon copies them to logs and gives
//! the space back; this process runs when the daemon does not.
//!
//! Invariant: a file that the daemon follows is locked by it and not touched; of any other the
//! last bytes are kept, at the offsets where they are, so that the daemon continues behind the
//! hole.
//! Failure: a file system that punches no holes keeps everything, which is logged once.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use tokio_util::sync::CancellationToken;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(10);
/// Disk space of a file from which its first bytes are dropped.
const MOST: u64 = 64 << 20;
/// Bytes that are kept then.
const KEPT: u64 = 16 << 20;
/// Holes are multiples of this, as the daemon's are.
const STEP: u64 = 64 << 10;
/// Unit of `st_blocks`.
const BLOCK: u64 = 512;

/// Looks at the files of a directory until `stop`.
pub(crate) async fn guard(dir: PathBuf, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut is_reported = false;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let dir = dir.clone();
        let looked = tokio::task::spawn_blocking(move || look(&dir)).await;
        if let Ok(Err(error)) = looked
            && !is_reported
        {
            tracing::warn!(%error, "console files not bounded");
            is_reported = true;
        }
    }
}

/// Bounds all files; the first error after all of them.
fn look(dir: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        // The daemon has not run yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut first = Ok(());
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != "raw") {
            continue;
        }
        match bound(&path) {
            Ok(0) => {}
            Ok(dropped) => {
                tracing::warn!(file = %path.display(), dropped, "console output dropped: the daemon is away");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => first = first.and(Err(error)),
        }
    }
    first
}

/// Returns how many bytes of disk space came back.
fn bound(path: &Path) -> io::Result<u64> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let used = used(&file)?;
    if used <= MOST {
        return Ok(0);
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(0),
        Err(TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    let end = file.metadata()?.len().saturating_sub(KEPT);
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, 0, (end - end % STEP).cast_signed())?;
    Ok(used.saturating_sub(self::used(&file)?))
}

/// Disk space of a regular file; 0 for anything else.
fn used(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    Ok(if metadata.is_file() {
        metadata.blocks() * BLOCK
    } else {
        0
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file that QEMU has appended to for long, with a mark at its end.
    fn console(dir: &Path) -> (PathBuf, u64) {
        let path = dir.join("guest.raw");
        let file = File::create(&path).unwrap();
        let piece = vec![b'x'; 1 << 20];
        let length = MOST + (8 << 20);
        for at in (0..length).step_by(piece.len()) {
            file.write_all_at(&piece, at).unwrap();
        }
        file.write_all_at(b"the end", length).unwrap();
        (path, length)
    }

    #[test]
    fn a_file_without_its_reader_is_bounded_and_keeps_its_end() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, length) = console(scratch.path());
        look(scratch.path()).unwrap();
        let file = File::open(&path).unwrap();
        assert!(used(&file).unwrap() <= KEPT + 2 * STEP);
        assert_eq!(file.metadata().unwrap().len(), length + 7);
        let mut end = [0; 8];
        file.read_exact_at(&mut end, length - 1).unwrap();
        assert_eq!(&end, b"xthe end");
    }

    #[test]
    fn a_file_that_is_read_is_left_alone_and_so_is_a_small_one() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, _) = console(scratch.path());
        let reader = File::open(&path).unwrap();
        reader.lock().unwrap();
        let before = used(&reader).unwrap();
        look(scratch.path()).unwrap();
        assert_eq!(used(&reader).unwrap(), before);
        let small = scratch.path().join("small.raw");
        std::fs::write(&small, vec![b'x'; 1 << 20]).unwrap();
        look(scratch.path()).unwrap();
        assert_eq!(used(&File::open(&small).unwrap()).unwrap(), 1 << 20);
        look(&scratch.path().join("absent")).unwrap();
    }
}

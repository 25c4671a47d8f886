//! The container log that kubelet reads.
//!
//! Invariant: the file ends with the last whole batch, or will be cut back to it before the next
//! write; [`Mark`] identifies that file and its length.
//! Failure: a failed write leaves the batch with the caller. Links, pipes and devices are refused.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::position::Mark;

/// Entries of the log's directory that are checked for a rotated log.
const ROTATED_LIMIT: usize = 1024;

/// An open log.
#[derive(Debug)]
pub(in crate::vm) struct LogFile {
    file: File,
    mark: Mark,
    /// The last write failed and may have left a piece behind.
    torn: bool,
}

impl LogFile {
    /// Opens the log, created with its directory when missing. Whatever is behind `last` in the
    /// file that was written last, here or under the name that kubelet gave it meanwhile, is a
    /// batch whose position was never saved: it is cut off and will be written again.
    pub(in crate::vm) fn open(path: &Path, last: Option<&Mark>) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
        }
        let file = open(
            OpenOptions::new().append(true).create(true).mode(0o640),
            path,
        )?;
        // As that of other runtimes, whatever our umask.
        file.set_permissions(Permissions::from_mode(0o640))?;
        let mut mark = mark_of(&file)?;
        if let Some(last) = last {
            if is_same(&mark, last) {
                cut_back(&file, last.length)?;
                mark.length = mark.length.min(last.length);
            } else if let Err(error) = cut_rotated(path, last) {
                let log = path.display();
                tracing::warn!(%log, %error, "rotated console log not read: lines may repeat");
            }
        }
        Ok(Self {
            file,
            mark,
            torn: false,
        })
    }

    /// Which file this is, and its length after the last whole batch.
    pub(in crate::vm) const fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether the file still has a name; otherwise its content could not be read.
    pub(in crate::vm) fn has_name(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    /// Appends a batch as a whole or, in effect, not at all.
    pub(in crate::vm) fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        if self.torn {
            cut_back(&self.file, self.mark.length)?;
            self.torn = false;
        }
        let written = self
            .file
            .write_all(batch)
            .and_then(|()| self.file.stream_position());
        match written {
            Ok(end) => {
                // Not the sum: another process may have truncated the file meanwhile.
                self.mark.length = end;
                Ok(())
            }
            Err(error) => {
                self.torn = cut_back(&self.file, self.mark.length).is_err();
                Err(error)
            }
        }
    }
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Not to wait for the reader of a pipe.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = options.custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

fn mark_of(file: &File) -> io::Result<Mark> {
    let status = file.metadata()?;
    Ok(Mark {
        device: status.dev(),
        inode: status.ino(),
        length: status.len(),
    })
}

const fn is_same(a: &Mark, b: &Mark) -> bool {
    a.device == b.device && a.inode == b.inode
}

fn cut_back(file: &File, length: u64) -> io::Result<()> {
    if file.metadata()?.len() > length {
        file.set_len(length)?;
    }
    Ok(())
}

/// Kubelet rotates by renaming to `<name>.<time>`.
fn cut_rotated(path: &Path, last: &Mark) -> io::Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    let Some(name) = path.file_name() else {
        return Ok(());
    };
    let mut prefix = name.to_owned();
    prefix.push(".");
    for entry in parent.read_dir()?.take(ROTATED_LIMIT) {
        let entry = entry?;
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes())
        {
            continue;
        }
        let status = entry.metadata()?; // of the entry itself, not of what a link names
        let found = status.dev() == last.device && status.ino() == last.inode;
        if found && status.is_file() {
            let file = open(OpenOptions::new().append(true), &entry.path())?;
            if is_same(&mark_of(&file)?, last) {
                cut_back(&file, last.length)?;
            }
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/container/0.log");
        (dir, path)
    }

    #[test]
    fn a_missing_log_is_made_with_its_directories() {
        let (_dir, path) = scratch();
        LogFile::open(&path, None).unwrap();
        let mode = |p: &Path| p.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&path) & !0o640, 0);
        assert_eq!(mode(path.parent().unwrap()) & !0o755, 0);
    }

    #[test]
    fn what_an_unsaved_batch_left_is_cut_off() {
        let (_dir, path) = scratch();
        let mut log = LogFile::open(&path, None).unwrap();
        log.append(b"saved\n").unwrap();
        let last = log.mark().clone();
        log.append(b"unsaved\n").unwrap();
        let mut log = LogFile::open(&path, Some(&last)).unwrap();
        assert_eq!(log.mark(), &last);
        log.append(b"again\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"saved\nagain\n");
    }

    #[test]
    fn an_unsaved_batch_is_cut_off_in_a_rotated_log_too() {
        let (_dir, path) = scratch();
        let mut log = LogFile::open(&path, None).unwrap();
        log.append(b"saved\n").unwrap();
        let last = log.mark().clone();
        log.append(b"unsaved\n").unwrap();
        let rotated = path.with_extension("log.20260102-030405");
        std::fs::rename(&path, &rotated).unwrap();
        let log = LogFile::open(&path, Some(&last)).unwrap();
        assert_eq!(log.mark().length, 0);
        assert_eq!(std::fs::read(&rotated).unwrap(), b"saved\n");
    }

    #[test]
    fn a_truncated_log_continues_without_a_gap_of_zeros() {
        let (_dir, path) = scratch();
        let mut log = LogFile::open(&path, None).unwrap();
        log.append(b"before\n").unwrap();
        std::fs::write(&path, "").unwrap();
        log.append(b"after\n").unwrap();
        assert_eq!(log.mark().length, 6);
        let last = Mark {
            length: 1000,
            ..log.mark().clone()
        };
        LogFile::open(&path, Some(&last))
            .unwrap()
            .append(b"then\n")
            .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after\nthen\n");
    }

    #[test]
    fn links_and_pipes_are_refused() {
        let (dir, path) = scratch();
        let target = dir.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        LogFile::open(&path, None).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        LogFile::open(&path, None).unwrap_err();
    }

    #[test]
    fn a_removed_log_is_noticed() {
        let (_dir, path) = scratch();
        let log = LogFile::open(&path, None).unwrap();
        assert!(log.has_name().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!log.has_name().unwrap());
    }
}

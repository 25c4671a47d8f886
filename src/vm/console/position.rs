//! The position up to which a console was copied: a small JSON file beside the raw file.
//!
//! Invariant: the file is replaced as a whole, so that a kill at any point leaves the old or the
//! new position. Two files change places, each with its block already allocated: a save needs no
//! disk space and the file system has no reason to flush.
//! Failure: an unreadable position is reported and counts as none; a failed save leaves the old
//! one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};
use serde::{Deserialize, Serialize};

/// Size of the file: the JSON text padded with spaces. Longer than any position.
const SIZE: usize = 512;

/// A log file and the length that it had after the last write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::vm) struct Mark {
    pub(in crate::vm) device: u64,
    pub(in crate::vm) inode: u64,
    pub(in crate::vm) length: u64,
}

/// What the log holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::vm) struct Position {
    /// The raw file that the offset counts in.
    pub(in crate::vm) raw_inode: u64,
    /// Raw bytes whose records are in the log.
    pub(in crate::vm) offset: u64,
    /// The last record was partial.
    pub(in crate::vm) line_open: bool,
    /// The log written last; `None` before the first.
    pub(in crate::vm) log: Option<Mark>,
}

/// Where a position is kept.
#[derive(Debug)]
pub(in crate::vm) struct PositionFile {
    live: PathBuf,
    spare: PathBuf,
}

impl PositionFile {
    /// The files that belong to a raw file.
    pub(in crate::vm) fn beside(raw: &Path) -> Self {
        let beside = |suffix: &str| {
            let mut name = raw.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Self {
            live: beside(".pos"),
            spare: beside(".pos.new"),
        }
    }

    /// The files themselves.
    pub(in crate::vm) fn paths(&self) -> [&Path; 2] {
        [&self.live, &self.spare]
    }

    /// Reads the position; `None` when there is none or it makes no sense.
    pub(in crate::vm) fn load(&self) -> io::Result<Option<Position>> {
        let file = match open(OpenOptions::new().read(true), &self.live) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(SIZE as u64 + 1).read_to_end(&mut bytes)?;
        match serde_json::from_slice(&bytes) {
            Ok(position) => Ok(Some(position)),
            Err(error) => {
                let file = self.live.display();
                tracing::warn!(%file, %error, "console position not readable: log restarts");
                Ok(None)
            }
        }
    }

    /// Replaces the position. Not synced: it has to survive this process, not the host, whose end
    /// is the guest's end too.
    pub(in crate::vm) fn save(&self, position: &Position) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(position)?;
        bytes.resize(bytes.len().max(SIZE), b' ');
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let spare = open(options, &self.spare)?;
        spare.write_all_at(&bytes, 0)?;
        if spare.metadata()?.len() != bytes.len() as u64 {
            spare.set_len(bytes.len() as u64)?;
        }
        self.exchange()
    }

    fn exchange(&self) -> io::Result<()> {
        let flags = RenameFlags::RENAME_EXCHANGE;
        match renameat2(AT_FDCWD, &self.spare, AT_FDCWD, &self.live, flags) {
            Ok(()) => Ok(()),
            // The first save, or a file system that cannot exchange.
            Err(Errno::ENOENT | Errno::EINVAL | Errno::ENOSYS) => {
                std::fs::rename(&self.spare, &self.live)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn position(offset: u64) -> Position {
        let log = Some(Mark {
            device: u64::MAX,
            inode: u64::MAX,
            length: u64::MAX,
        });
        Position {
            raw_inode: u64::MAX,
            offset,
            line_open: false,
            log,
        }
    }

    fn scratch() -> (tempfile::TempDir, PositionFile) {
        let dir = tempfile::tempdir().unwrap();
        let file = PositionFile::beside(&dir.path().join("raw"));
        (dir, file)
    }

    #[test]
    fn the_last_saved_position_is_the_one_read() {
        let (dir, file) = scratch();
        assert_eq!(file.load().unwrap(), None);
        for offset in [u64::MAX, 7, 0] {
            file.save(&position(offset)).unwrap();
            assert_eq!(file.load().unwrap(), Some(position(offset)));
        }
        let lengths = file.paths().map(|p| p.metadata().unwrap().len());
        assert_eq!(lengths, [SIZE as u64; 2], "two files of one fixed size");
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_half_written_spare_changes_nothing() {
        let (_dir, file) = scratch();
        file.save(&position(1)).unwrap();
        std::fs::write(&file.spare, vec![b'{'; 3 * SIZE]).unwrap();
        assert_eq!(file.load().unwrap(), Some(position(1)));
        file.save(&position(2)).unwrap();
        assert_eq!(file.load().unwrap(), Some(position(2)));
        file.save(&position(3)).unwrap();
        assert_eq!(file.load().unwrap(), Some(position(3)));
    }

    #[rstest]
    #[case::empty(b"")]
    #[case::other_json(b"[1]")]
    #[case::negative(br#"{"raw_inode":1,"offset":-1,"line_open":false,"log":null}"#)]
    #[case::endless(&[b' '; 4 * SIZE])]
    fn nonsense_counts_as_no_position(#[case] bytes: &[u8]) {
        let (_dir, file) = scratch();
        std::fs::write(&file.live, bytes).unwrap();
        assert_eq!(file.load().unwrap(), None);
    }

    #[test]
    fn a_symbolic_link_is_refused() {
        let (dir, file) = scratch();
        let target = dir.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &file.live).unwrap();
        std::os::unix::fs::symlink(&target, &file.spare).unwrap();
        file.load().unwrap_err();
        file.save(&position(1)).unwrap_err();
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_position_that_can_be_saved_or_none(
            field in prop::sample::select(vec!["raw_inode", "offset", "line_open", "log", "x"]),
            value in prop_oneof![Just("-1".to_owned()), Just("true".to_owned()), "[0-9]{1,21}", "[ -~]{0,9}"],
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            is_near: bool,
        ) {
            let mut near = serde_json::to_value(position(2)).unwrap();
            if let Ok(value) = serde_json::from_str(&value) {
                near[field] = value;
            }
            let near = near.to_string();
            let (_dir, file) = scratch();
            std::fs::write(&file.live, if is_near { near.into_bytes() } else { bytes }).unwrap();
            if let Some(position) = file.load().unwrap() {
                file.save(&position).unwrap();
                prop_assert_eq!(file.load().unwrap(), Some(position));
            }
        }
    }
}

//! Where an exported disk goes: a file, or standard output.
//!
//! Invariant: a file gets its name when it is complete and its checksum is right; until then it is
//! `NAME.part`, which a later call continues. No file of that name is overwritten without a request.
//! Failure: [`DestinationError`].

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IsTerminal as _, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::commands::transfer::receive::Target;

/// Bytes that are read at once of what is there already.
const PIECE: usize = 1 << 20;

/// A place that cannot be written to.
#[derive(Debug, thiserror::Error)]
pub(in crate::commands) enum DestinationError {
    #[error("{} exists: name another file, or replace it with --force", .0.display())]
    Exists(PathBuf),
    #[error("standard output is a terminal: name a file with -o, or redirect it")]
    Terminal,
    #[error("another program writes {}: wait until it has ended", .0.display())]
    Taken(PathBuf),
    #[error("failed to {step} {}", path.display())]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to write to standard output")]
    Stdout(#[source] io::Error),
    #[error(
        "the disk has changed since the export began, and what was written to standard output cannot be taken back: \
         start again"
    )]
    Written,
}

type Result<T> = std::result::Result<T, DestinationError>;

/// What was received, and where it is.
#[derive(Debug)]
pub(in crate::commands) struct Destination {
    place: Place,
    received: u64,
    sum: Sha256,
}

#[derive(Debug)]
enum Place {
    File {
        file: File,
        part: PathBuf,
        path: PathBuf,
        force: bool,
    },
    Stdout,
}

impl Destination {
    /// The place that a user names; `-` is standard output.
    pub(in crate::commands) fn open(name: &Path, force: bool) -> Result<Self> {
        if name.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                return Err(DestinationError::Terminal);
            }
            return Ok(Self::new(Place::Stdout));
        }
        refuse_existing(name, force)?;
        let mut part = name.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        // A file of another name is not written to by a link.
        options.custom_flags(nix::libc::O_NOFOLLOW);
        let file = options.open(&part).map_err(failed("open", &part))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DestinationError::Taken(part)),
            Err(TryLockError::Error(e)) => return Err(failed("lock", &part)(e)),
        }
        let path = name.to_owned();
        let mut this = Self::new(Place::File {
            file,
            part,
            path,
            force,
        });
        this.read()?;
        Ok(this)
    }

    fn new(place: Place) -> Self {
        Self {
            place,
            received: 0,
            sum: Sha256::new(),
        }
    }

    /// Takes what an earlier call has received into account.
    fn read(&mut self) -> Result<()> {
        let Place::File { file, part, .. } = &mut self.place else {
            return Ok(());
        };
        let mut piece = vec![0; PIECE];
        file.rewind().map_err(failed("read", part))?;
        loop {
            match file.read(&mut piece).map_err(failed("read", part))? {
                0 => return Ok(()),
                count => {
                    self.sum.update(&piece[..count]);
                    self.received += count as u64;
                }
            }
        }
    }

    /// Bytes from the beginning of the file.
    const fn received(&self) -> u64 {
        self.received
    }

    /// Their checksum, in hexadecimal digits.
    fn checksum(&self) -> String {
        let sum = self.sum.clone().finalize();
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.place {
            Place::File { file, part, .. } => {
                file.write_all(bytes).map_err(failed("write", part))?;
            }
            Place::Stdout => {
                let mut out = io::stdout().lock();
                let written = out.write_all(bytes).and_then(|()| out.flush());
                written.map_err(DestinationError::Stdout)?;
            }
        }
        self.sum.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// Drops what was received.
    fn restart(&mut self) -> Result<()> {
        match &self.place {
            Place::File { file, part, .. } => file.set_len(0).map_err(failed("empty", part))?,
            Place::Stdout if self.received > 0 => return Err(DestinationError::Written),
            Place::Stdout => {}
        }
        (self.received, self.sum) = (0, Sha256::new());
        Ok(())
    }

    /// Gives a complete file its name.
    pub(in crate::commands) fn finish(self) -> Result<()> {
        let Place::File {
            file,
            part,
            path,
            force,
        } = self.place
        else {
            return Ok(());
        };
        file.sync_all().map_err(failed("write", &part))?;
        refuse_existing(&path, force)?;
        std::fs::rename(&part, &path).map_err(failed("name", &path))?;
        let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
        match service::files::sync_directory(directory.unwrap_or(Path::new("."))) {
            // One that only takes files cannot be opened; the file is complete all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced.map_err(failed("name", &path)),
        }
    }
}

impl Target for Destination {
    type Error = DestinationError;

    fn received(&self) -> u64 {
        Self::received(self)
    }

    fn checksum(&self) -> String {
        Self::checksum(self)
    }

    async fn begin(&mut self, _size: u64) -> Result<()> {
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Self::write(self, bytes)
    }

    async fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn is_passing(_error: &DestinationError) -> bool {
        false
    }
}

fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) if !force => Err(DestinationError::Exists(path.to_owned())),
        _ => Ok(()),
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DestinationError {
    let path = path.to_owned();
    move |source| DestinationError::File { step, path, source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_complete_and_is_continued_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let part = dir.path().join("d.part");
        let mut first = Destination::open(&path, false).unwrap();
        first.write(b"begin").unwrap();
        let second = Destination::open(&path, false);
        assert!(matches!(second, Err(DestinationError::Taken(_))));
        drop(first);
        let mut again = Destination::open(&path, false).unwrap();
        assert_eq!(again.received(), 5);
        again.write(b" end").unwrap();
        let sum = again.checksum();
        assert_eq!(fs::read(&part).unwrap(), b"begin end");
        again.finish().unwrap();
        assert!(!part.exists());
        assert_eq!(fs::read(&path).unwrap(), b"begin end");

        let refused = Destination::open(&path, false);
        assert!(matches!(refused, Err(DestinationError::Exists(_))));
        let mut forced = Destination::open(&path, true).unwrap();
        forced.write(b"begin end").unwrap();
        assert_eq!(forced.checksum(), sum);
        forced.restart().unwrap();
        assert_eq!((forced.received(), fs::read(&part).unwrap().len()), (0, 0));
        forced.write(b"other").unwrap();
        forced.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_power_cut_leaves_a_complete_file_under_its_name() {
        let disk = testfs::StrictDisk::new().unwrap();
        let path = disk.path().join("d");
        let mut destination = Destination::open(&path, false).unwrap();
        destination.write(b"all of it").unwrap();
        destination.finish().unwrap();
        let left = disk.cut().unwrap();
        assert_eq!(fs::read(left.path().join("d")).unwrap(), b"all of it");
        assert_eq!(disk.names_after_cut("").unwrap(), ["d"]);
    }

    /// Such a directory cannot be opened, and so not be synced.
    #[test]
    fn a_file_is_complete_in_a_directory_that_only_takes_files() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("drop");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o300)).unwrap();
        let path = place.join("d");
        let mut destination = Destination::open(&path, false).unwrap();
        destination.write(b"all of it").unwrap();
        destination.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"all of it");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let destination = Destination::open(&path, false).unwrap();
        fs::write(&path, "another program's").unwrap();
        let refused = destination.finish();
        assert!(matches!(refused, Err(DestinationError::Exists(_))));
        assert_eq!(fs::read(&path).unwrap(), b"another program's");
    }

    #[test]
    fn a_link_in_the_place_of_the_part_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let other = dir.path().join("other");
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("d.part")).unwrap();
        let refused = Destination::open(&path, false);
        assert!(matches!(refused, Err(DestinationError::File { .. })));
        assert_eq!(fs::read(&other).unwrap(), b"other");
    }
}

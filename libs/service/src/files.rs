//! Files that are replaced in one step and survive a power cut.
//!
//! Invariant: a reader of the name finds the old content or the new one, never a part; once a
//! function here has returned, that holds after a power cut too.
//! Failure: the kernel's error; the name has the old content or the new one, and what was written
//! under the temporary name may be left there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Makes every file and directory that this process creates from now on inaccessible for other
/// users, until a mode says otherwise. To be called first, before there are other threads.
pub fn create_privately() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
}

/// Replaces a file by `content`, which is written to `temporary` first: a name in the same file
/// system that only one writer uses at a time. Only our user may read the file. Blocks.
///
/// # Errors
///
/// The kernel's.
pub fn replace(path: &Path, temporary: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    place(temporary, path)
}

/// Gives a file that is on the disk already its name for good. Blocks.
///
/// # Errors
///
/// The kernel's.
pub fn place(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    match to.parent() {
        // A name without a directory is one in ours.
        Some(directory) if directory.as_os_str().is_empty() => sync_directory(Path::new(".")),
        Some(directory) => sync_directory(directory),
        None => Ok(()),
    }
}

/// Writes the names in a directory to the disk: what was made, renamed or removed there is so after
/// a power cut, too. Blocks.
///
/// # Errors
///
/// The kernel's.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Some file systems of networks write directories at once, and have no such call.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let temporary = dir.path().join("file.tmp");
        std::fs::write(&temporary, "left by a crash, and longer").unwrap();
        for content in ["first", "second"] {
            replace(&path, &temporary, content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        replace(&path, &dir.path().join("none/file.tmp"), b"new").unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_power_cut_leaves_the_new_content() {
        let disk = testfs::StrictDisk::new().unwrap();
        let path = disk.path().join("file");
        for content in ["first", "second"] {
            replace(&path, &disk.path().join("file.tmp"), content.as_bytes()).unwrap();
            let left = disk.cut().unwrap();
            let read = std::fs::read_to_string(left.path().join("file"));
            assert_eq!(read.unwrap(), content);
            assert_eq!(disk.names_after_cut("").unwrap(), ["file"]);
        }
        std::fs::remove_file(&path).unwrap();
        sync_directory(&disk.path()).unwrap();
        assert!(disk.names_after_cut("").unwrap().is_empty());
    }
}

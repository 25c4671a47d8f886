//! What a power cut leaves, operation by operation.
//!
//! Invariant: each case begins with a synced file `old` that says `1`, and the directory of it.
//! Failure: a name or content that is there, or gone, against the letter of POSIX.

use std::fs::{self, File};
use std::io::Write as _;

use super::*;

/// A directory with the file `old`, all of it synced.
fn settled() -> (StrictDisk, PathBuf) {
    let disk = StrictDisk::new().unwrap();
    let dir = disk.path();
    fs::write(dir.join("old"), "1").unwrap();
    disk.settle().unwrap();
    (disk, dir)
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// The names that are left, with what is in each.
fn left(disk: &StrictDisk) -> Vec<String> {
    let left = disk.cut().unwrap();
    let mut all = Vec::new();
    for entry in fs::read_dir(left.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let content = fs::read_to_string(&path).unwrap_or_else(|_| "directory".to_owned());
        all.push(format!("{name}={content}"));
    }
    all.sort();
    all
}

#[test]
#[ignore = "needs root"]
fn a_file_has_the_content_of_its_own_sync() {
    let (disk, dir) = settled();
    let mut file = File::options().append(true).open(dir.join("old")).unwrap();
    file.write_all(b"2").unwrap();
    assert_eq!(left(&disk), ["old=1"]);
    file.sync_data().unwrap();
    assert_eq!(left(&disk), ["old=12"]);
    file.write_all(b"3").unwrap();
    sync(&dir);
    assert_eq!(left(&disk), ["old=12"], "of the directory, the names alone");
}

#[test]
#[ignore = "needs root"]
fn a_name_is_there_after_the_sync_of_its_directory() {
    let (disk, dir) = settled();
    fs::write(dir.join("new"), "2").unwrap();
    sync(&dir.join("new"));
    assert_eq!(
        left(&disk),
        ["old=1"],
        "its own sync is not that of its name"
    );
    sync(&dir);
    assert_eq!(left(&disk), ["new=2", "old=1"]);
    fs::write(dir.join("empty"), "3").unwrap();
    sync(&dir);
    assert_eq!(left(&disk), ["empty=", "new=2", "old=1"]);
}

#[test]
#[ignore = "needs root"]
fn a_file_is_replaced_by_the_sync_of_the_directory() {
    let (disk, dir) = settled();
    for content in ["2", "3"] {
        let before = left(&disk);
        fs::write(dir.join("new"), content).unwrap();
        sync(&dir.join("new"));
        fs::rename(dir.join("new"), dir.join("old")).unwrap();
        assert_eq!(
            left(&disk),
            before,
            "the number of the first one is not used again"
        );
        sync(&dir);
        assert_eq!(left(&disk), [format!("old={content}")]);
    }
}

#[test]
#[ignore = "needs root"]
fn what_is_removed_or_linked_is_so_after_the_sync_of_the_directory() {
    let (disk, dir) = settled();
    fs::hard_link(dir.join("old"), dir.join("link")).unwrap();
    fs::remove_file(dir.join("old")).unwrap();
    assert_eq!(left(&disk), ["old=1"]);
    sync(&dir);
    assert_eq!(left(&disk), ["link=1"]);
}

#[test]
#[ignore = "needs root"]
fn a_directory_has_its_name_from_its_parent_and_its_names_from_itself() {
    let (disk, dir) = settled();
    let inner = dir.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), "2").unwrap();
    sync(&inner.join("file"));
    sync(&inner);
    assert_eq!(left(&disk), ["old=1"]);
    sync(&dir);
    assert_eq!(left(&disk), ["inner=directory", "old=1"]);
    assert_eq!(disk.names_after_cut("inner").unwrap(), ["file"]);
    fs::remove_dir_all(&inner).unwrap();
    assert_eq!(disk.names_after_cut("inner").unwrap(), ["file"]);
    sync(&dir);
    assert_eq!(left(&disk), ["old=1"]);
}

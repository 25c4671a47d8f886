//! What a power cut leaves of a file that has its name.
//!
//! Invariant: by the letter of POSIX where a file has an unfinished name, and on ext4 where it has
//! none.
//! Failure: the name or the content that is gone.

use std::fs;
use std::io::Write as _;

use testfs::{Ext4, StrictDisk};

use super::*;

const CONTENT: [u8; 512] = [7; 512];

/// Makes the disk in this directory.
fn make(directory: &Path) {
    let disk = FileDisk {
        mount: "/claims/a".to_owned(),
        directory: directory.to_str().unwrap().to_owned(),
        file: "os.img".to_owned(),
        format: Format::Raw,
        size: None,
        path: "/".to_owned(),
        read_only: false,
    };
    let place = Place::open(Path::new("/"), &disk).unwrap();
    let made = place.begin().unwrap();
    (&made.file).write_all(&CONTENT).unwrap();
    assert!(place.finish(&made).unwrap());
}

#[test]
#[ignore = "needs root"]
fn a_file_that_had_an_unfinished_name_is_whole_after_a_power_cut() {
    let disk = StrictDisk::new().unwrap();
    make(&disk.path());
    assert_eq!(disk.names_after_cut("").unwrap(), ["os.img"]);
    let left = disk.cut().unwrap();
    assert_eq!(fs::read(left.path().join("os.img")).unwrap(), CONTENT);
}

#[test]
#[ignore = "needs root"]
fn a_file_that_had_no_name_is_whole_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Ext4::over(dir.path(), 32).unwrap();
    make(dir.path());
    disk.cut().unwrap();
    disk.recover().unwrap();
    assert_eq!(fs::read(dir.path().join("os.img")).unwrap(), CONTENT);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

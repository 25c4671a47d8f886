//! Puts open files where libvirt named a file in the place of a disk.
//!
//! Invariant: QEMU opens no file of a volume by its path: each disk is a set of descriptors, one
//! for each mode in which QEMU may open it. Each file that libvirt named in a disk's place is
//! replaced in exactly one argument.
//! Failure: arguments that do not match the disks.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd as _};

use serde_json::Value;

use crate::files::{Disk, Error};

/// Number of the first set of descriptors; libvirt counts its own from 0.
const FIRST_SET: usize = 1000;

/// The arguments with the descriptors in the place of files, and those that name the descriptors.
pub(crate) fn apply(arguments: Vec<OsString>, disks: &[Disk]) -> Result<Vec<OsString>, Error> {
    let mut arguments = arguments;
    let mut further = Vec::new();
    for (index, disk) in disks.iter().enumerate() {
        let set = FIRST_SET + index;
        let mut found = 0;
        for argument in &mut arguments {
            if let Some(changed) = replaced(argument, &disk.path, set) {
                *argument = changed;
                found += 1;
            }
        }
        if found != 1 {
            let path = disk.path.clone();
            return Err(Error::Arguments { path, found });
        }
        for file in &disk.files {
            fdpass::clear_cloexec(file.as_fd()).map_err(Error::Inherit)?;
            let fd = file.as_raw_fd();
            further.extend(["-add-fd".into(), format!("fd={fd},set={set}").into()]);
        }
    }
    arguments.extend(further);
    Ok(arguments)
}

/// A description of a block device whose file is this one, with the set in its place.
fn replaced(argument: &OsStr, path: &str, set: usize) -> Option<OsString> {
    let text = argument.to_str().filter(|text| text.starts_with('{'))?;
    let mut value: Value = serde_json::from_str(text).ok()?;
    let named = value.get_mut("filename")?;
    if named.as_str() != Some(path) {
        return None;
    }
    *named = Value::String(format!("/dev/fdset/{set}"));
    Some(value.to_string().into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn disk(path: &str, files: Vec<OwnedFd>) -> Disk {
        Disk {
            path: path.to_owned(),
            files,
        }
    }

    #[test]
    fn each_disk_has_its_descriptors_and_one_argument() {
        let disks = [
            disk("/c/disk-0", vec![null(), null()]),
            disk("/c/disk-1", vec![null()]),
        ];
        let fd = |disk: usize, file: usize| disks[disk].files[file].as_raw_fd();
        let line = |file: &str| format!(r#"{{"driver":"file","filename":"{file}"}}"#);
        let plain = [
            "-name".to_owned(),
            "guest=/c/disk-0".to_owned(),
            "-blockdev".to_owned(),
            line("/c/disk-0"),
            "-blockdev".to_owned(),
            line("/c/disk-1"),
            "-blockdev".to_owned(),
            line("/c/disk-10"),
        ];
        let given = plain.iter().map(OsString::from).collect();
        let mut expected: Vec<OsString> = plain.iter().map(OsString::from).collect();
        expected[3] = line("/dev/fdset/1000").into();
        expected[5] = line("/dev/fdset/1001").into();
        for (number, set) in [(fd(0, 0), 1000), (fd(0, 1), 1000), (fd(1, 0), 1001)] {
            expected.extend(["-add-fd".into(), format!("fd={number},set={set}").into()]);
        }
        assert_eq!(apply(given, &disks).unwrap(), expected);
    }

    #[test]
    fn a_disk_without_its_argument_is_an_error() {
        let disks = [disk("/c/disk-0", vec![null()])];
        let line = OsString::from(r#"{"driver":"file","filename":"/c/disk-0"}"#);
        for arguments in [vec![], vec![line.clone(), line]] {
            let refused = apply(arguments, &disks);
            assert!(matches!(refused, Err(Error::Arguments { .. })));
        }
        assert!(apply(Vec::new(), &[]).unwrap().is_empty());
    }
}

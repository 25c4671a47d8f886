//! Collects the open files of disks, and puts them where libvirt named a file in their place.
//!
//! Invariant: QEMU opens no file of a volume by its path: each disk is a set of descriptors, one
//! for each mode in which QEMU may open it. Each file that libvirt named in a disk's place is
//! replaced in exactly one argument.
//! Failure: an answer that is late, malformed, or does not match its descriptors or the arguments
//! is refused as a whole. The message mirrors the daemon's; `tests/fixtures/file-disks.json` holds
//! both to the same text.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fdpass::Connection;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most disks of one machine in files.
const MOST: usize = 16;
/// Largest message in bytes.
const MAX_MESSAGE: usize = 64 * 1024;
/// Number of the first set of descriptors; libvirt counts its own from 0.
const FIRST_SET: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("reach the daemon")]
    Connect(#[source] fdpass::Error),
    #[error("receive the answer")]
    Receive(#[source] fdpass::Error),
    #[error("the daemon closed the connection")]
    Closed,
    #[error("the message cannot be read")]
    Message(#[source] serde_json::Error),
    #[error("{disks} disks came with {descriptors} descriptors")]
    Mismatch { disks: usize, descriptors: usize },
    #[error("{0} disks are more than {MOST}")]
    TooMany(usize),
    #[error("{found} arguments name the file {path}, and one has to")]
    Arguments { path: String, found: usize },
    #[error("pass a descriptor on")]
    Inherit(#[source] fdpass::Error),
}

/// What the daemon sends, with two descriptors for each disk that QEMU may write, the one for
/// reading first, and one for each other disk.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    disks: Vec<WireDisk>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDisk {
    path: String,
    read_only: bool,
}

/// An open disk.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The file that libvirt names in its place.
    path: String,
    files: Vec<OwnedFd>,
}

/// Collects the disks of this start; each step takes at most `deadline`.
pub(crate) fn fetch(socket: &Path, deadline: Duration) -> Result<Vec<Disk>, Error> {
    let connection = Connection::connect_within(socket, deadline).map_err(Error::Connect)?;
    connection
        .set_deadline(Some(deadline))
        .map_err(Error::Connect)?;
    let received = connection.recv(MAX_MESSAGE).map_err(Error::Receive)?;
    let received = received.ok_or(Error::Closed)?;
    let message = serde_json::from_slice(&received.bytes).map_err(Error::Message)?;
    pair(message, received.fds)
}

fn pair(Message { disks }: Message, descriptors: Vec<OwnedFd>) -> Result<Vec<Disk>, Error> {
    if disks.len() > MOST {
        return Err(Error::TooMany(disks.len()));
    }
    let count = |disk: &WireDisk| if disk.read_only { 1 } else { 2 };
    let mismatch = Error::Mismatch {
        disks: disks.len(),
        descriptors: descriptors.len(),
    };
    if descriptors.len() != disks.iter().map(count).sum::<usize>() {
        return Err(mismatch);
    }
    let mut descriptors = descriptors.into_iter();
    let one = |disk: WireDisk| Disk {
        files: descriptors.by_ref().take(count(&disk)).collect(),
        path: disk.path,
    };
    Ok(disks.into_iter().map(one).collect())
}

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
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn disk(path: &str, read_only: bool) -> WireDisk {
        WireDisk {
            path: path.to_owned(),
            read_only,
        }
    }

    #[test]
    fn the_message_is_that_of_the_shared_fixture() {
        let text = include_str!("../../tests/fixtures/file-disks.json");
        let message: Message = serde_json::from_str(text).unwrap();
        let disks = vec![
            disk("/var/lib/vmlet/console/0123/disk-0", false),
            disk("/var/lib/vmlet/console/0123/disk-1", true),
        ];
        assert_eq!(message, Message { disks });
    }

    #[test]
    fn each_disk_has_its_descriptors_and_one_argument() {
        let message = Message {
            disks: vec![disk("/c/disk-0", false), disk("/c/disk-1", true)],
        };
        let disks = pair(message, vec![null(), null(), null()]).unwrap();
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
        let message = Message {
            disks: vec![disk("/c/disk-0", true)],
        };
        let disks = pair(message, vec![null()]).unwrap();
        let line = OsString::from(r#"{"driver":"file","filename":"/c/disk-0"}"#);
        for arguments in [vec![], vec![line.clone(), line]] {
            let refused = apply(arguments, &disks);
            assert!(matches!(refused, Err(Error::Arguments { .. })));
        }
        assert!(apply(Vec::new(), &[]).unwrap().is_empty());
    }

    #[test]
    fn disks_and_descriptors_must_match() {
        let message = |count: usize| Message {
            disks: (0..count).map(|n| disk(&format!("/{n}"), true)).collect(),
        };
        assert!(pair(message(16), (0..16).map(|_| null()).collect()).is_ok());
        let many = pair(message(17), (0..17).map(|_| null()).collect());
        assert!(matches!(many, Err(Error::TooMany(17))));
        for given in [0, 2] {
            let refused = pair(message(1), (0..given).map(|_| null()).collect());
            assert!(matches!(refused, Err(Error::Mismatch { .. })));
        }
    }
}

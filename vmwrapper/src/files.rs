//! Collects the open files of disks, and the directories that QEMU serves to its guest.
//!
//! Invariant: each disk and each directory has its own descriptors.
//! Failure: an answer that is late, malformed, or does not match its descriptors is refused as a
//! whole. The message mirrors the daemon's; `tests/fixtures/emulator-files.json` holds both to the same
//! text.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use fdpass::Connection;
use serde::{Deserialize, Serialize};

/// Most disks of one machine in files, and most directories.
const MOST: usize = 16;
/// Largest message in bytes.
const MAX_MESSAGE: usize = 64 * 1024;

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
    #[error("{disks} disks and {directories} directories came with {descriptors} descriptors")]
    Mismatch {
        disks: usize,
        directories: usize,
        descriptors: usize,
    },
    #[error("{0} {1} are more than {MOST}")]
    TooMany(usize, &'static str),
    #[error("the tag {0:?} of a directory is none")]
    Tag(String),
    #[error("{found} arguments name the file {path}, and one has to")]
    Arguments { path: String, found: usize },
    #[error("pass a descriptor on")]
    Inherit(#[source] fdpass::Error),
}

/// What the daemon sends, with two descriptors for each disk that QEMU may write, the one for
/// reading first, one for each other disk, and then one for each directory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    disks: Vec<WireDisk>,
    #[serde(default)]
    directories: Vec<WireDirectory>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDisk {
    path: String,
    read_only: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDirectory {
    tag: String,
    read_only: bool,
}

/// The files of a machine.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) disks: Vec<Disk>,
    pub(crate) directories: Vec<Directory>,
}

/// An open disk.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The file that libvirt names in its place.
    pub(crate) path: String,
    pub(crate) files: Vec<OwnedFd>,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// By which the guest mounts it.
    pub(crate) tag: String,
    pub(crate) read_only: bool,
    pub(crate) file: OwnedFd,
}

/// Collects the files of this start; each step takes at most `deadline`.
pub(crate) fn fetch(socket: &Path, deadline: Duration) -> Result<Files, Error> {
    let connection = Connection::connect_within(socket, deadline).map_err(Error::Connect)?;
    connection
        .set_deadline(Some(deadline))
        .map_err(Error::Connect)?;
    let received = connection.recv(MAX_MESSAGE).map_err(Error::Receive)?;
    let received = received.ok_or(Error::Closed)?;
    let message = serde_json::from_slice(&received.bytes).map_err(Error::Message)?;
    pair(message, received.fds)
}

fn pair(message: Message, descriptors: Vec<OwnedFd>) -> Result<Files, Error> {
    let Message { disks, directories } = message;
    for (count, what) in [(disks.len(), "disks"), (directories.len(), "directories")] {
        if count > MOST {
            return Err(Error::TooMany(count, what));
        }
    }
    // A tag is a part of an argument.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_tag = |tag: &str| !tag.is_empty() && tag.chars().all(is_plain);
    if let Some(odd) = directories.iter().find(|directory| !is_tag(&directory.tag)) {
        return Err(Error::Tag(odd.tag.clone()));
    }
    let count = |disk: &WireDisk| if disk.read_only { 1 } else { 2 };
    if descriptors.len() != disks.iter().map(count).sum::<usize>() + directories.len() {
        return Err(Error::Mismatch {
            disks: disks.len(),
            directories: directories.len(),
            descriptors: descriptors.len(),
        });
    }
    let mut descriptors = descriptors.into_iter();
    let disk = |disk: WireDisk| Disk {
        files: descriptors.by_ref().take(count(&disk)).collect(),
        path: disk.path,
    };
    let disks = disks.into_iter().map(disk).collect();
    let directory = |(wire, file): (WireDirectory, OwnedFd)| Directory {
        tag: wire.tag,
        read_only: wire.read_only,
        file,
    };
    let directories = directories.into_iter().zip(descriptors);
    Ok(Files {
        disks,
        directories: directories.map(directory).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

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

    fn directory(tag: &str, read_only: bool) -> WireDirectory {
        WireDirectory {
            tag: tag.to_owned(),
            read_only,
        }
    }

    #[test]
    fn the_message_is_that_of_the_shared_fixture() {
        let text = include_str!("../../tests/fixtures/emulator-files.json");
        let message: Message = serde_json::from_str(text).unwrap();
        let expected = Message {
            disks: vec![
                disk("/var/lib/vmlet/console/0123/disk-0", false),
                disk("/var/lib/vmlet/console/0123/disk-1", true),
            ],
            directories: vec![directory("vmlet-0", false), directory("vmlet-1", true)],
        };
        assert_eq!(message, expected);
        let without = serde_json::from_str(r#"{"disks": []}"#);
        let empty = Message {
            disks: Vec::new(),
            directories: Vec::new(),
        };
        assert_eq!(without.ok(), Some(empty));
    }

    #[test]
    fn each_disk_and_each_directory_has_its_descriptors() {
        let message = Message {
            disks: vec![disk("/c/disk-0", false), disk("/c/disk-1", true)],
            directories: vec![directory("vmlet-0", true), directory("vmlet-1", false)],
        };
        let given: Vec<_> = (0..5).map(|_| null()).collect();
        let numbers: Vec<_> = given.iter().map(|file| file.as_raw_fd()).collect();
        let Files { disks, directories } = pair(message, given).unwrap();
        let of_disks = disks.iter().flat_map(|disk| &disk.files);
        let of_directories = directories.iter().map(|directory| &directory.file);
        let found: Vec<_> = of_disks
            .chain(of_directories)
            .map(|f| f.as_raw_fd())
            .collect();
        assert_eq!(found, numbers);
        assert_eq!((disks[0].files.len(), disks[1].files.len()), (2, 1));
        assert!(directories[0].read_only && directories[1].tag == "vmlet-1");
    }

    #[test]
    fn files_and_descriptors_must_match() {
        let message = |count: usize| Message {
            disks: (0..count).map(|n| disk(&format!("/{n}"), true)).collect(),
            directories: (0..count)
                .map(|n| directory(&n.to_string(), true))
                .collect(),
        };
        assert!(pair(message(16), (0..32).map(|_| null()).collect()).is_ok());
        let many = pair(message(17), (0..34).map(|_| null()).collect());
        assert!(matches!(many, Err(Error::TooMany(17, "disks"))));
        for given in [0, 1, 3] {
            let refused = pair(message(1), (0..given).map(|_| null()).collect());
            assert!(matches!(refused, Err(Error::Mismatch { .. })));
        }
    }

    #[test]
    fn a_tag_that_would_change_the_command_line_is_refused() {
        for tag in ["", "vmlet-0,x=1", "../x"] {
            let message = Message {
                disks: Vec::new(),
                directories: vec![directory(tag, true)],
            };
            let refused = pair(message, vec![null()]);
            assert!(matches!(refused, Err(Error::Tag(_))), "{tag}");
        }
    }
}

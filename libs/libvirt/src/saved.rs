//! Files of saved memory.
//!
//! Invariant: libvirt writes the header that marks a file as complete after everything else in it.
//! Failure: a file that cannot be read is not whole.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The beginning of a whole file. One that is being written begins with `LibvirtQemudPart`.
pub(crate) const WHOLE: &[u8; 16] = b"LibvirtQemudSave";

/// Length of the header in bytes: the beginning, and 19 numbers of four bytes.
const HEADER: usize = WHOLE.len() + 19 * 4;

/// Longest description, in bytes; ours have some 10 KiB.
const LONGEST: u32 = 1 << 20;

/// A switch of a disk to another file, with the memory of the guest at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemorySwitch {
    /// The file that the disk writes to afterwards.
    pub disk: PathBuf,
    /// The file that the memory is written to.
    pub memory: PathBuf,
    /// Whether the guest runs while its memory is written. What it changes meanwhile is written again, so that the file
    /// may become larger than the memory. Otherwise it stands still for all that time.
    pub runs: bool,
}

/// Whether a file is a machine's whole memory. Blocks.
pub fn is_saved_memory(file: &Path) -> bool {
    let mut beginning = [0; WHOLE.len()];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut beginning));
    read.is_ok() && beginning == *WHOLE
}

/// The description of the domain whose memory a file holds; `None` when the file cannot be read.
/// Blocks.
pub fn saved_description(file: &Path) -> Option<String> {
    let mut file = File::open(file).ok()?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    let (magic, rest) = header.split_first_chunk()?;
    // Version, then the length of the description, in the node's own byte order.
    let length = u32::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    if magic != WHOLE || length > LONGEST {
        return None;
    }
    let mut description = Vec::new();
    let read = file.take(length.into()).read_to_end(&mut description);
    read.ok()?;
    Some(String::from_utf8_lossy(&description).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_long_as_the_header_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory");
        assert_eq!(saved_description(&file), None);
        let header = |length: u32| {
            let mut header = WHOLE.to_vec();
            header.extend(2_u32.to_ne_bytes());
            header.extend(length.to_ne_bytes());
            header.resize(HEADER, 0);
            header
        };
        for (length, rest, expected) in [
            (5, "<a/>\0memory", Some("<a/>\0")),
            (u32::MAX, "<a/>", None),
        ] {
            std::fs::write(&file, [&header(length), rest.as_bytes()].concat()).unwrap();
            assert_eq!(saved_description(&file).as_deref(), expected);
        }
    }

    #[test]
    fn only_a_whole_file_is_saved_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory");
        assert!(!is_saved_memory(&file));
        for (text, whole) in [
            ("", false),
            ("LibvirtQemudPart and more", false),
            ("LibvirtQemud", false),
            ("LibvirtQemudSave and more", true),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(is_saved_memory(&file), whole, "{text}");
        }
    }
}

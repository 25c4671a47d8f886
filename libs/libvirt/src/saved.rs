//! Files of saved memory.
//!
//! Invariant: libvirt writes the header that marks a file as complete after everything else in it.
//! Failure: a file that cannot be read is not whole.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The beginning of a whole file. One that is being written begins with `LibvirtQemudPart`.
pub(crate) const WHOLE: &[u8; 16] = b"LibvirtQemudSave";

/// Whether a file is a machine's whole memory. Blocks.
pub fn is_saved_memory(file: &Path) -> bool {
    let mut beginning = [0; WHOLE.len()];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut beginning));
    read.is_ok() && beginning == *WHOLE
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! The marker in the first sector of a device that we wrote an image to.
//!
//! Invariant: what is read back equals what was written; nothing of a device is believed but the
//! exact bytes. They fit into one sector, which a device writes whole or not at all.
//! Failure: none: a marker that cannot be parsed belongs to another program.

use crate::images::Digest;

/// Where the guest's disk begins.
pub(super) const OFFSET: u64 = 1 << 20;

/// Bytes that are written: the text and zeros.
pub(super) const BLOCK: usize = 4096;

const NAME: &str = "vmlet-root";
const VERSION: &str = "1";
const SECTOR: usize = 512;

/// The marker of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// An image is being written, or was when the writer ended.
    Writing(Digest),
    /// All of the image was written, and guests may have run on it.
    Whole(Digest),
    /// A version of ours that we do not know wrote it.
    Later,
}

impl Marker {
    /// The marker in the first sector of a device; `None` when there is none.
    pub(super) fn read(head: &[u8]) -> Option<Self> {
        let sector = head.get(..SECTOR)?;
        let end = sector.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&sector[..end]).ok()?;
        let mut words = line.split(' ');
        if words.next() != Some(NAME) {
            return None;
        }
        if words.next() != Some(VERSION) {
            return Some(Self::Later);
        }
        let state = words.next()?;
        let digest = words.next()?.parse().ok()?;
        match (state, words.next()) {
            ("writing", None) => Some(Self::Writing(digest)),
            ("whole", None) => Some(Self::Whole(digest)),
            _ => None,
        }
    }

    /// The first bytes of the device; `None` for what we do not write.
    pub(super) fn block(&self) -> Option<Vec<u8>> {
        let (state, digest) = match self {
            Self::Writing(digest) => ("writing", digest),
            Self::Whole(digest) => ("whole", digest),
            Self::Later => return None,
        };
        let mut block = format!("{NAME} {VERSION} {state} {digest}\n").into_bytes();
        block.resize(BLOCK, 0);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let digest = Digest::from_bytes([0xab; 32]);
        for marker in [Marker::Writing(digest), Marker::Whole(digest)] {
            let block = marker.block().unwrap();
            assert_eq!(block.len(), BLOCK);
            assert_eq!(Marker::read(&block), Some(marker));
        }
        let later = format!("vmlet-root 2 whole {digest} more\n{}", "\0".repeat(512));
        assert_eq!(Marker::read(later.as_bytes()), Some(Marker::Later));
    }

    #[test]
    fn other_content_is_no_marker() {
        let digest = Digest::from_bytes([1; 32]);
        let pad = |text: String| {
            let mut bytes = text.into_bytes();
            bytes.resize(SECTOR, 0);
            bytes
        };
        for odd in [
            String::new(),
            format!("vmlet-root 1 whole {digest}"),
            format!("vmlet-root 1 half {digest}\n"),
            format!("vmlet-root 1 whole {digest} x\n"),
            "vmlet-root 1 whole sha256:ab\n".to_owned(),
            "vmlet-root 1\n".to_owned(),
            format!("virtlet-root 1 whole {digest}\n"),
            format!("{}vmlet-root 1 whole {digest}\n", " ".repeat(500)),
        ] {
            assert_eq!(Marker::read(&pad(odd.clone())), None, "{odd:?}");
        }
        assert_eq!(Marker::read(b"vmlet-root 1"), None);
        assert_eq!(Marker::read(&[0xff; 4096]), None);
    }

    proptest! {
        #[test]
        fn a_marker_of_ours_begins_with_the_bytes_that_we_write(
            text in prop_oneof![
                "vmlet-root [0-9]{1,2} (whole|writing|half) sha256:[0-9a-fA-F]{63,65}( x)?\n",
                "vmlet-root[ -~\n]{0,100}",
            ],
            rest in prop::collection::vec(any::<u8>(), SECTOR..600),
        ) {
            let head = [text.as_bytes(), &rest].concat();
            let line = text.split_inclusive('\n').next().unwrap();
            match Marker::read(&head) {
                Some(Marker::Later) => prop_assert!(!line.starts_with("vmlet-root 1 ")),
                Some(marker) => prop_assert!(marker.block().unwrap().starts_with(line.as_bytes())),
                None => {}
            }
            // What is behind the first sector has no effect.
            prop_assert_eq!(Marker::read(&head[..SECTOR]), Marker::read(&head));
        }
    }
}

//! How a raw disk begins, in contrast to a text or another answer of a service.
//!
//! Invariant: a signature has bytes that no text has, and no disk begins with a text: an answer that
//! repeats words of its request is no disk.
//! Failure: none; a disk with a beginning that is not known here is none, as an empty one.

/// First bytes that show whether a file is a text.
const BEGINNING: usize = 16;

/// End of a boot sector, which every table of partitions for a BIOS has, and FAT and NTFS.
const BOOT_SECTOR: (usize, &[u8]) = (510, &[0x55, 0xaa]);
/// A GPT with its revision and the size of its header, for sectors of either size.
const GPT: &[u8] = b"EFI PART\0\0\x01\0\x5c\0\0\0";
const GPT_PLACES: [usize; 2] = [512, 4096];
/// ISO 9660: a descriptor of a volume, and its version.
const CD: (usize, &[u8]) = (0x8000, b"\x01CD001\x01\0");
/// ext2, ext3 and ext4: the magic number, and the revision, which is 0 or 1.
const EXT: (usize, &[u8]) = (1024 + 56, &[0x53, 0xef]);
const EXT_REVISION: usize = 1024 + 76;
/// XFS: the size of a block, a power of two from 512 on, follows.
const XFS: &[u8] = b"XFSB";

/// Whether a raw file that begins with `head` is a disk.
pub(super) fn is_disk(head: &[u8]) -> bool {
    let has = |(offset, magic): (usize, &[u8])| at(head, offset).starts_with(magic);
    let is_gpt = || GPT_PLACES.into_iter().any(|place| has((place, GPT)));
    !is_text(head) && (has(BOOT_SECTOR) || is_gpt() || has(CD) || is_ext(head) || is_xfs(head))
}

fn is_ext(head: &[u8]) -> bool {
    let (offset, magic) = EXT;
    let revision = at(head, EXT_REVISION);
    at(head, offset).starts_with(magic) && matches!(revision, [0 | 1, 0, 0, 0, ..])
}

fn is_xfs(head: &[u8]) -> bool {
    let block = head.strip_prefix(XFS).and_then(|rest| rest.first_chunk());
    let block = block.map(|bytes| u32::from_be_bytes(*bytes));
    block.is_some_and(|size| size.is_power_of_two() && (512..=65536).contains(&size))
}

fn is_text(head: &[u8]) -> bool {
    let beginning = &head[..head.len().min(BEGINNING)];
    let is_written = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    beginning.iter().all(is_written)
}

fn at(head: &[u8], offset: usize) -> &[u8] {
    head.get(offset..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The beginning of a file with these bytes at these places.
    fn head(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; 64 << 10];
        for (at, bytes) in parts {
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[rstest]
    #[case::boot_sector(&[BOOT_SECTOR])]
    #[case::gpt(&[(512, GPT)])]
    #[case::gpt_of_large_sectors(&[(4096, GPT)])]
    #[case::cd(&[CD])]
    #[case::ext4(&[EXT, (EXT_REVISION, &[1])])]
    #[case::ext2(&[EXT])]
    #[case::xfs(&[(0, &b"XFSB\0\0\x10\0"[..])])]
    fn a_disk_is_known_by_its_beginning(#[case] parts: &[(usize, &[u8])]) {
        assert!(is_disk(&head(parts)));
        // The same behind a text is what a service answers that repeats a part of its request.
        let mut answer = head(parts);
        answer[..BEGINNING].copy_from_slice(b"{\"error\": \"no su");
        assert!(!is_disk(&answer));
    }

    #[rstest]
    #[case::zeros(&[])]
    #[case::words_of_a_gpt(&[(512, &b"EFI PART of a text"[..])])]
    #[case::words_of_a_cd(&[(0x8000, &b"?CD001??"[..])])]
    #[case::ext_in_a_text(&[(0, &[0xef, 0xbb, 0xbf][..]), EXT, (EXT_REVISION, b"text")])]
    #[case::xfs_in_a_text(&[(0, &b"XFSB text"[..])])]
    #[case::signature_elsewhere(&[(511, &[0x55, 0xaa][..])])]
    fn other_bytes_are_no_disk(#[case] parts: &[(usize, &[u8])]) {
        assert!(!is_disk(&head(parts)));
    }

    #[test]
    fn a_short_file_is_judged_by_what_it_has() {
        for length in 0..600 {
            assert!(!is_disk(&vec![0; length]), "{length}");
        }
        assert!(is_disk(&head(&[BOOT_SECTOR])[..512]));
    }
}

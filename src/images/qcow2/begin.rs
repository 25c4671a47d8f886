//! The first bytes of the disk in a qcow2 file.
//!
//! Invariant: for files whose header was accepted; at most one cluster is read and unpacked, and
//! every offset is checked. A cluster is unpacked in a process of its own. Nothing is written.
//! Failure: `None` where the file does not show them; no decision depends on them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::super::unpack::cluster_in;
use super::{COMPRESSION_TYPE, EXTENDED_L2, Header, MAGIC};

/// Most bytes of the disk that are of interest.
const MOST: u64 = 64 << 10;
/// Bits of an offset in a table.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// What a guest reads first, with `head` the first bytes of the file. Blocks; on a thread of a runtime.
pub(in crate::images) fn begin(head: &[u8], file: &File) -> Option<Vec<u8>> {
    begin_by(head, |bytes, offset| file.read_at(bytes, offset).ok())
}

/// The same of a file that begins so; `length` is that of the file, where it is known.
pub(in crate::images) fn begin_in(beginning: &[u8], length: Option<u64>) -> Option<Vec<u8>> {
    let is_all = length == Some(beginning.len() as u64);
    begin_by(beginning, |bytes, offset| {
        let there = beginning.get(usize::try_from(offset).ok()?..)?;
        // The rest may be behind what is known.
        if there.len() < bytes.len() && !is_all {
            return None;
        }
        let read = there.len().min(bytes.len());
        bytes[..read].copy_from_slice(&there[..read]);
        Some(read)
    })
}

/// `read` fills a buffer from an offset, as far as the file goes.
fn begin_by(head: &[u8], read: impl Fn(&mut [u8], u64) -> Option<usize>) -> Option<Vec<u8>> {
    if !head.starts_with(MAGIC) {
        return None;
    }
    let header = Header { head, length: 0 };
    let cluster_bits = header.u32(20).ok().filter(|bits| (9..=21).contains(bits))?;
    let features = match header.u32(4).ok()? {
        3 => header.u64(72).ok()?,
        _ => 0,
    };
    let entry = |offset: u64| {
        let mut bytes = [0; 8];
        let is_whole = read(&mut bytes, offset)? == bytes.len();
        is_whole.then(|| u64::from_be_bytes(bytes))
    };
    let table = entry(header.u64(40).ok()?)? & OFFSET;
    // Where nothing is allocated, a guest reads zeros.
    let zeros = || Some(vec![0; usize::try_from(MOST.min(1 << cluster_bits)).ok()?]);
    if table == 0 {
        return zeros();
    }
    let cluster = entry(table)?;
    if cluster & COMPRESSED != 0 {
        let packed = packed(cluster, cluster_bits, &read)?;
        let is_zstd = features & COMPRESSION_TYPE != 0 && header.bytes(104) == Ok([1]);
        return cluster_in(&packed, is_zstd);
    }
    let is_zero = features & EXTENDED_L2 == 0 && cluster & ZEROS != 0;
    match cluster & OFFSET {
        0 => zeros(),
        _ if is_zero => zeros(),
        offset => {
            let mut bytes = zeros()?;
            let filled = read(&mut bytes, offset)?;
            bytes.truncate(filled);
            Some(bytes)
        }
    }
}

/// A compressed cluster: its end is known to the sector.
fn packed(
    cluster: u64,
    cluster_bits: u32,
    read: impl Fn(&mut [u8], u64) -> Option<usize>,
) -> Option<Vec<u8>> {
    let offset_bits = 62 - (cluster_bits - 8);
    let offset = cluster & ((1 << offset_bits) - 1);
    let sectors = (cluster & (COMPRESSED - 1)) >> offset_bits;
    let length = (sectors + 1) * 512 - (offset & 511);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let filled = read(&mut bytes, offset)?;
    bytes.truncate(filled);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use rstest::rstest;

    use super::*;
    use crate::images::head_of;

    fn qemu_img(arguments: &[&str], files: &[&Path]) {
        let mut command = Command::new("qemu-img");
        let output = command.args(arguments).args(files).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[rstest]
    #[case::plain(&[])]
    #[case::zlib(&["-c"])]
    #[case::zstd(&["-c", "-o", "compression_type=zstd"])]
    #[case::small_clusters(&["-o", "cluster_size=4k"])]
    #[case::small_compressed_clusters(&["-c", "-o", "cluster_size=4k"])]
    #[case::large_clusters(&["-o", "cluster_size=2M"])]
    #[case::old(&["-o", "compat=0.10"])]
    #[case::subclusters(&["-o", "extended_l2=on,cluster_size=64k"])]
    fn the_first_bytes_of_a_disk_are_read_as_qemu_wrote_them(#[case] options: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let disk = dir.path().join("disk");
        let content: Vec<u8> = (0..3_u32 << 20)
            .map(|i| (i / 7 % 251).to_le_bytes()[0])
            .collect();
        std::fs::write(&raw, &content).unwrap();
        let convert = ["convert", "-f", "raw", "-O", "qcow2"];
        qemu_img(&[&convert, options].concat(), &[&raw, &disk]);
        let file = File::open(&disk).unwrap();
        let found = begin(&head_of(&file).unwrap(), &file).unwrap();
        assert!(found.len() >= 4096, "{}", found.len());
        assert_eq!(found, content[..found.len()]);

        let whole = std::fs::read(&disk).unwrap();
        let length = whole.len() as u64;
        assert_eq!(begin_in(&whole, Some(length)).as_ref(), Some(&found));
        // What is known of a file is the same as more of it is known, or nothing.
        for known in (0..whole.len()).step_by(whole.len() / 97) {
            for length in [None, Some(length)] {
                let begun = begin_in(&whole[..known], length);
                assert!(begun.is_none_or(|begun| begun == found), "{known}");
            }
        }
    }

    #[test]
    fn a_disk_without_content_begins_with_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        qemu_img(&["create", "-q", "-f", "qcow2"], &[&disk, Path::new("1M")]);
        let file = File::open(&disk).unwrap();
        let found = begin(&head_of(&file).unwrap(), &file).unwrap();
        assert_eq!(found, vec![0; 64 << 10]);
    }

    #[test]
    fn tables_that_lead_nowhere_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut bytes = vec![0xff; 4096];
        bytes[..4].copy_from_slice(MAGIC);
        for cluster_bits in [0_u32, 9, 16, 21, 22, u32::MAX] {
            bytes[20..24].copy_from_slice(&cluster_bits.to_be_bytes());
            for table in [0_u64, 512, 4088, 4096, u64::MAX] {
                bytes[40..48].copy_from_slice(&table.to_be_bytes());
                std::fs::write(&path, &bytes).unwrap();
                let file = File::open(&path).unwrap();
                let found = begin(&head_of(&file).unwrap(), &file);
                assert_eq!(begin_in(&bytes, Some(bytes.len() as u64)), found);
                assert!(found.is_none_or(|found| found.len() <= 64 << 10));
            }
        }
    }
}

//! Files that are downloaded as disks and converted.
//!
//! Invariant: an accepted VMDK has one extent without a directory in its name and no parent, an
//! accepted VHDX no parent and no log; their sizes are read here a second time.
//! Failure: a panic.

use daemon::fuzzing::convertible;
use daemon::images::Convertible;

const SECTOR: usize = 512;
/// What QEMU reads as the descriptor of a VMDK.
const DESCRIPTOR: std::ops::Range<usize> = SECTOR..21 * SECTOR;
const HINT: &[u8] = b"parentfilenamehint";

/// Parts of a VHDX, in the order in which an input has them behind the signature: their places and
/// lengths. The rest of the file is zero.
const PARTS: [(usize, usize); 6] = [
    (64 << 10, 128),
    (128 << 10, 128),
    (192 << 10, 128),
    (256 << 10, 128),
    (METADATA, 288),
    (METADATA + (64 << 10), 64),
];
const METADATA: usize = 1 << 20;
const LENGTH: usize = 3 << 20;
const VHDX: &[u8] = b"vhdxfile";

/// A VMDK file, or the parts of a VHDX.
pub(super) fn check(input: &[u8]) {
    if input.starts_with(VHDX) {
        return vhdx(&vhdx_of(input));
    }
    let read = |offset: u64, most: usize| part(input, offset, most).to_vec();
    if let Some((format, Ok(size))) = convertible(input.len() as u64, read) {
        assert_eq!(format, Convertible::Vmdk);
        vmdk(input, size);
    }
}

/// The file that the parts are of; those that the input lacks are zero.
fn vhdx_of(input: &[u8]) -> Vec<u8> {
    let mut file = vec![0; LENGTH];
    file[..VHDX.len()].copy_from_slice(VHDX);
    let mut rest = &input[VHDX.len()..];
    for (place, length) in PARTS {
        let (part, behind) = rest.split_at(length.min(rest.len()));
        file[place..place + part.len()].copy_from_slice(part);
        rest = behind;
    }
    file
}

fn part(file: &[u8], offset: u64, length: usize) -> &[u8] {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    &file[offset..offset + length]
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn vmdk(file: &[u8], size: u64) {
    assert!(file.starts_with(b"KDMV"));
    assert_eq!(number(&file[12..20]) * SECTOR as u64, size);
    assert!(size > 0, "QEMU would open what the descriptor names");
    let read_by_qemu = &file[DESCRIPTOR.start..DESCRIPTOR.end.min(file.len())];
    let lower = read_by_qemu.to_ascii_lowercase();
    assert!(!lower.windows(HINT.len()).any(|text| text == HINT));
    let lines = |text: &[u8]| -> Vec<String> {
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect()
    };
    let all = lines(read_by_qemu);
    let is_extent = |line: &&String| {
        let first = line.split_ascii_whitespace().next();
        first.is_some_and(|word| ["RW", "RDONLY", "NOACCESS"].contains(&word))
    };
    let extents: Vec<_> = all.iter().filter(is_extent).collect();
    assert_eq!(extents.len(), 1, "{extents:?}");
    let extent = extents[0];
    let kind = extent.split_ascii_whitespace().nth(2).unwrap_or_default();
    assert!(kind.starts_with("SPARSE"), "{extent}");
    assert!(!extent.contains(['/', '\\']), "{extent}");
    for line in lines(&lower) {
        if let Some(parent) = line.strip_prefix("parentcid=") {
            assert_eq!(parent.trim_ascii(), "ffffffff");
        }
    }
}

fn vhdx(file: &[u8]) {
    let read = |offset: u64, most: usize| part(file, offset, most).to_vec();
    let Some((Convertible::Vhdx, Ok(size))) = convertible(LENGTH as u64, read) else {
        return;
    };
    let headers = [64 << 10, 128 << 10].map(|at| &file[at..at + 128]);
    let valid = headers
        .into_iter()
        .filter(|header| header.starts_with(b"head"));
    let latest = valid.max_by_key(|header| number(&header[8..16]));
    assert_eq!(
        latest.map(|header| &header[48..64]),
        Some(&[0; 16][..]),
        "a log"
    );
    let metadata = metadata_of(file);
    let table = &file[metadata..];
    let count = usize::try_from(number(&table[10..12])).unwrap_or_default();
    let entries: Vec<_> = (1..=count).map(|n| &table[n * 32..n * 32 + 32]).collect();
    let item = |first: [u8; 4]| {
        let found = entries.iter().find(|entry| entry.starts_with(&first));
        let at = found.map_or(0, |entry| number(&entry[16..20]));
        &table[usize::try_from(at).unwrap_or_default()..]
    };
    // By the first field of their GUIDs.
    assert_eq!(number(&item([0x24, 0x42, 0xa5, 0x2f])[..8]), size);
    assert_eq!(item([0x37, 0x67, 0xa1, 0xca])[4] & 2, 0, "a parent");
    let locator = [0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45];
    assert!(
        !entries.iter().any(|entry| entry.starts_with(&locator)),
        "a parent"
    );
}

/// Where the first region table says that the metadata are.
fn metadata_of(file: &[u8]) -> usize {
    let table = &file[192 << 10..];
    let entries = (0..64).map(|n| &table[16 + n * 32..48 + n * 32]);
    let found = entries
        .filter(|entry| entry.starts_with(&[0x06, 0xa2, 0x7c, 0x8b]))
        .map(|entry| number(&entry[16..24]))
        .next();
    usize::try_from(found.unwrap_or_default()).unwrap_or(usize::MAX)
}

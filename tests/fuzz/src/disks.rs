//! Files that are downloaded as disks.
//!
//! Invariant: an accepted qcow2 refers to no other file by its header, whose fields are read here a
//! second time; an accepted raw disk has none of the signatures of other formats. What is known of
//! a file does not change as more of it is known: its length only ever turns a yes into a no.
//! Failure: a panic.

use daemon::fuzzing::judge;
use daemon::images::{Boot, Format, FormatError};

use super::convertible_disks;

/// Largest disk that is accepted here.
const LIMIT: u64 = 1 << 40;
/// What is looked at of a file.
const HEAD: usize = 64 << 10;
const QCOW2: &[u8] = b"QFI\xfb";

/// Signatures, at their offsets, of what QEMU would take for another format than raw.
const SIGNATURES: &[(usize, &[u8])] = &[
    (0, QCOW2),
    (0, b"KDMV"),
    (0, b"COWD"),
    (0, b"vhdxfile"),
    (0, b"conectix"),
    (0, b"QED\0"),
    (0, b"LUKS\xba\xbe"),
    (0, b"WithoutFreeSpace"),
    (0, b"WithouFreSpacExt"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe]),
];

/// A whole file.
///
/// # Panics
///
/// When a file is accepted that must not be, or is judged in two ways.
pub fn disks(input: &[u8]) {
    let head = &input[..input.len().min(HEAD)];
    let length = input.len() as u64;
    let judged = judge(head, Some(length), LIMIT);
    let unknown = judge(head, None, LIMIT);
    match judged {
        Ok((Format::Qcow2, size)) => {
            assert!(
                size > 0 && size <= LIMIT && size.is_multiple_of(512),
                "{size}"
            );
            qcow2(head, length, size);
            assert_eq!(unknown, judged);
            assert_eq!(judge(head, Some(u64::MAX), LIMIT), judged);
            let small = judge(head, Some(length), size - 1);
            assert_eq!(
                small,
                Err(FormatError::VirtualSize {
                    size,
                    limit: size - 1
                })
            );
            assert_eq!(judge(head, Some(length), size), judged);
        }
        Ok((Format::Raw, size)) => {
            assert_eq!(size, length);
            assert!(length.is_multiple_of(512) && length > 0);
            for (offset, signature) in SIGNATURES {
                let at = head.get(*offset..).unwrap_or_default();
                assert!(!at.starts_with(signature), "{signature:x?}");
            }
            assert_eq!(unknown, Ok((Format::Raw, 0)));
        }
        Err(FormatError::Qcow2(_)) => assert!(head.starts_with(QCOW2)),
        Err(FormatError::Sectors(odd)) => assert_eq!(odd, length),
        Err(FormatError::VirtualSize { size, limit }) => assert!(size > limit),
        Err(FormatError::Empty | FormatError::WebPage | FormatError::Foreign(_)) => {
            // Nothing that comes later can make a disk of it.
            assert_eq!(unknown.map(drop), judged.map(drop));
        }
        Err(
            FormatError::NotConverted(_)
            | FormatError::Convertible { .. }
            | FormatError::NoSignature,
        ) => {
            assert!(judged.is_ok(), "only stores say so: {judged:?}");
        }
    }
    convertible_disks::check(input);
    // Firmware looks at fixed places: bytes behind them change nothing.
    let longer = [head, &[0; 512]].concat();
    if Boot::detect(head).is_bootable() {
        assert!(Boot::detect(&longer).is_bootable());
    }
}

/// What the header says, by the field table of QEMU's specification.
fn qcow2(head: &[u8], length: u64, size: u64) {
    let u32 = |at: usize| {
        head[at..at + 4]
            .iter()
            .fold(0, |n, b| n << 8 | u64::from(*b))
    };
    let u64 = |at: usize| u32(at) << 32 | u32(at + 4);
    assert!(head.starts_with(QCOW2));
    let version = u32(4);
    assert!([2, 3].contains(&version));
    assert_eq!((u64(8), u32(16)), (0, 0), "a backing file");
    let bits = u32(20);
    assert!((9..=21).contains(&bits), "{bits}");
    assert_eq!(u64(24), size);
    assert_eq!(u32(32), 0, "encryption");
    let cluster = 1 << bits;
    for (what, offset, bytes) in [
        ("L1", u64(40), u32(36) * 8),
        ("reference counts", u64(48), u32(56) * cluster),
    ] {
        assert!(bytes > 0, "{what}");
        assert!(offset > 0 && offset % cluster == 0, "{what}");
        assert!(
            u128::from(offset) + u128::from(bytes) <= length.into(),
            "{what}"
        );
    }
    let mut extension = 72;
    if version == 3 {
        // Neither an external data file nor a mark of damage nor an unknown feature.
        assert_eq!(u64(72) & !0b1_1001, 0, "{:#x}", u64(72));
        extension = usize::try_from(u32(100)).unwrap_or(usize::MAX);
    }
    let end = usize::try_from(cluster)
        .unwrap_or(usize::MAX)
        .min(head.len());
    while extension + 8 <= end {
        let kind = u32(extension);
        assert!(![0x4441_5441, 0x0537_be77].contains(&kind), "{kind:#x}");
        if kind == 0 {
            break;
        }
        let bytes = usize::try_from(u32(extension + 4)).unwrap_or(usize::MAX);
        extension += 8 + bytes.next_multiple_of(8);
    }
}

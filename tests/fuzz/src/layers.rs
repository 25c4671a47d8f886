//! Files of registries and image servers that have a disk in them: layers of container disks, and
//! compressed disks.
//!
//! Invariant: a disk is no larger than it may be and passes the check of disks; the disk of a layer
//! is the one file that a second reader of archives finds directly in `disk/`, byte for byte.
//! What the beginning of a file shows is the beginning of the disk. A refusal is a bounded line.
//! Failure: a panic.

use std::ops::Range;

use daemon::fuzzing::{beginning, disk_in, judge};

/// Largest disk here.
const MOST: u64 = 1 << 20;
/// What is looked at of a disk.
const HEAD: usize = 64 << 10;
const LONGEST: usize = 1024;
/// Bytes of an archive's header.
const BLOCK: usize = 512;

/// Beginnings of compressed files.
const PACKED: &[&[u8]] = &[
    &[0x1f, 0x8b, 8],
    &[0xfd, b'7', b'z', b'X', b'Z', 0],
    &[0x28, 0xb5, 0x2f, 0xfd],
];

/// A whole file.
///
/// # Panics
///
/// When the disk in it is not what it has to be.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn image_layers(input: &[u8]) {
    let scratch = tempfile::tempdir().expect("a directory");
    for is_layer in [true, false] {
        let found = disk_in(scratch.path(), input, is_layer, MOST);
        let disk = match found {
            Ok(disk) => disk,
            Err(error) => {
                let reason = error.to_string();
                assert!(reason.len() <= LONGEST, "{reason}");
                assert!(!reason.contains(char::is_control), "{reason:?}");
                continue;
            }
        };
        if let Some(disk) = &disk {
            accepted(disk);
            for known in [input, &input[..input.len() / 2]] {
                if let Some((head, length)) = beginning(known, is_layer) {
                    assert!(disk.starts_with(&head));
                    assert!(length.is_none_or(|length| length == disk.len() as u64));
                }
            }
        }
        if is_layer {
            layer(input, disk.as_deref());
        } else {
            let disk = disk.expect("a disk");
            assert!(is_packed(input) || disk == input);
        }
    }
    let left = std::fs::read_dir(scratch.path()).expect("a directory");
    let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["packed"]);
}

fn is_packed(bytes: &[u8]) -> bool {
    // A frame of zstd that readers skip comes in front of others.
    let is_skipped = matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    is_skipped || PACKED.iter().any(|magic| bytes.starts_with(magic))
}

fn accepted(disk: &[u8]) {
    assert!(disk.len() as u64 <= MOST);
    let head = &disk[..disk.len().min(HEAD)];
    let judged = judge(head, Some(disk.len() as u64), u64::MAX);
    assert!(judged.is_ok(), "{judged:?}");
}

/// The disk of a layer that is not compressed, by a second reader.
fn layer(archive: &[u8], disk: Option<&[u8]>) {
    if is_packed(archive) {
        return;
    }
    let Some(files) = files(archive) else { return };
    let mut disks = files.iter().filter(|(path, _)| is_disk(path));
    let found = disks.next().map(|(_, range)| &archive[range.clone()]);
    assert!(disks.next().is_none(), "two disks");
    match (disk, found) {
        (Some(_), Some(found)) if is_packed(found) => {}
        (disk, found) => assert!(disk == found, "{:?} {:?}", disk.is_some(), found.is_some()),
    }
}

fn is_disk(path: &[u8]) -> bool {
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<_> = parts
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    matches!(*parts, [b"disk", name] if !name.starts_with(b".wh."))
}

/// A file of an archive: its path and where its content is.
type Found = (Vec<u8>, Range<usize>);

/// All files but directories; `None` for what this reader does not know.
fn files(archive: &[u8]) -> Option<Vec<Found>> {
    let mut files = Vec::new();
    let mut at = 0;
    let mut path = None;
    let mut size = None;
    while let Some(header) = archive.get(at..at + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let kind = header[156];
        let is_extension = matches!(kind, b'L' | b'K' | b'x');
        let own = number(&header[124..136])?;
        let length = if is_extension {
            own
        } else {
            size.take().unwrap_or(own)
        };
        let start = at + BLOCK;
        let end = start.checked_add(length)?;
        let content = archive.get(start..end)?;
        at = end.checked_next_multiple_of(BLOCK)?;
        match kind {
            b'L' if path.is_none() => path = Some(until_zero(content).to_vec()),
            b'x' if path.is_none() && size.is_none() => {
                let extended = extended(content)?;
                path = extended
                    .iter()
                    .find(|(k, _)| *k == b"path")
                    .map(|(_, v)| v.to_vec());
                if let Some((_, written)) = extended.iter().find(|(k, _)| *k == b"size") {
                    size = Some(decimal(written)?);
                }
            }
            // Two of them for one file, and what else extends a header.
            b'L' | b'x' | b'K' | b'g' | b'S' => return None,
            _ => {
                let path = path.take().unwrap_or_else(|| name(header));
                if kind != b'5' {
                    files.push((path, start..end));
                }
            }
        }
    }
    Some(files)
}

fn name(header: &[u8]) -> Vec<u8> {
    let name = until_zero(&header[..100]);
    let prefix = until_zero(&header[345..500]);
    if header[257..265] == *b"ustar\x0000" && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number in octal digits.
fn number(field: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(until_zero(field)).ok()?.trim();
    usize::from_str_radix(text, 8).ok()
}

/// Records of an extended header: `LENGTH KEY=VALUE`, each with a line break.
fn extended(mut content: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !content.is_empty() {
        let space = content.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&content[..space]).ok()?.parse().ok()?;
        let record = content.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        content = &content[length..];
    }
    Some(records)
}

fn decimal(value: &[u8]) -> Option<usize> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

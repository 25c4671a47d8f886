//! Reads the descriptor in a VMDK file.
//!
//! Invariant: an accepted descriptor describes the file that it is in and no other.
//! Failure: [`Error`].

use super::super::Error;

/// First line of every descriptor.
const TITLE: &str = "# Disk DescriptorFile";
/// Stands for no parent.
const NO_PARENT: &str = "ffffffff";
/// Names the parent's file.
const PARENT_HINT: &[u8] = b"parentfilenamehint";
/// Kinds of disks in one file.
const KINDS: [&str; 2] = ["monolithicSparse", "streamOptimized"];
/// Rights, with which the line of an extent begins.
const RIGHTS: [&str; 3] = ["RW", "RDONLY", "NOACCESS"];

/// Checks the descriptor of a disk with so many sectors. `read_by_qemu` is what QEMU looks through for
/// a parent, whatever the header says about the length. The descriptor ends at the first zero: without
/// one in its own sectors, it has what follows them.
pub(super) fn check(read_by_qemu: &[u8], sectors: u64, grain: u64) -> Result<(), Error> {
    let names_parent = |bytes: &[u8]| bytes.eq_ignore_ascii_case(PARENT_HINT);
    if read_by_qemu.windows(PARENT_HINT.len()).any(names_parent) {
        return Err(Error::Parent);
    }
    let text = read_by_qemu
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    if text.is_empty() {
        // A part of a disk in several files.
        return Err(Error::OtherFile);
    }
    let text = String::from_utf8_lossy(text);
    if !text.starts_with(TITLE) {
        return Err(Error::Malformed("descriptor"));
    }
    let lines = text.lines().map(str::trim_ascii);
    let mut found = Found::default();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        found.line(line, sectors.next_multiple_of(grain), grain)?;
    }
    match found {
        Found { extents: 2.., .. } => Err(Error::OtherFile),
        Found {
            extents: 1,
            kind: true,
            parent: true,
        } => Ok(()),
        _ => Err(Error::Malformed("descriptor")),
    }
}

/// What a descriptor has.
#[derive(Default)]
struct Found {
    extents: usize,
    kind: bool,
    parent: bool,
}

impl Found {
    fn line(&mut self, line: &str, sectors: u64, grain: u64) -> Result<(), Error> {
        if RIGHTS
            .into_iter()
            .any(|right| line.split_ascii_whitespace().next() == Some(right))
        {
            self.extents += 1;
            return extent(line, sectors, grain);
        }
        let (key, value) = line.split_once('=').ok_or(Error::Malformed("descriptor"))?;
        let key = key.trim_ascii();
        let value = value.trim_ascii();
        let is = |name: &str| key.eq_ignore_ascii_case(name);
        if is("parentCID") {
            if !value.eq_ignore_ascii_case(NO_PARENT) {
                return Err(Error::Parent);
            }
            self.parent = true;
        } else if is("createType") {
            // Of all other kinds the content is elsewhere.
            if !KINDS.contains(&value.trim_matches('"')) {
                return Err(Error::OtherFile);
            }
            self.kind = true;
        }
        Ok(())
    }
}

/// Checks the line of an extent: the name without a directory that this file had.
fn extent(line: &str, sectors: u64, grain: u64) -> Result<(), Error> {
    let malformed = Error::Malformed("extent description");
    let (words, name) = line.split_once('"').ok_or(malformed)?;
    let words: Vec<_> = words.split_ascii_whitespace().collect();
    let [_, size, kind] = *words else {
        return Err(malformed);
    };
    if kind != "SPARSE" {
        return Err(Error::OtherFile);
    }
    let name = name.strip_suffix('"').ok_or(malformed)?;
    if name.is_empty() || name.contains(['/', '\\', ':', '"']) {
        return Err(Error::OtherFile);
    }
    let size: u64 = size.parse().map_err(|_| malformed)?;
    if size.checked_next_multiple_of(grain) == Some(sectors) {
        Ok(())
    } else {
        Err(Error::OutOfRange("size of the extent"))
    }
}

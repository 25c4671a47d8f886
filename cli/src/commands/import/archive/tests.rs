use std::io::Write as _;

use super::*;

fn read(bytes: &[u8]) -> Result<Vec<Entry>, ArchiveError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    entries(&mut file, bytes.len() as u64)
}

fn put(builder: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, content: &[u8]) {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn archive(all: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, content) in all {
        put(&mut builder, *kind, name, content);
    }
    builder.into_inner().unwrap()
}

const FILE: EntryType = EntryType::Regular;

#[test]
fn files_are_found_with_their_places() {
    let bytes = archive(&[
        (FILE, "a.ovf", b"<a/>"),
        (FILE, "./a-disk1.vmdk", &[7; 600]),
    ]);
    let found = read(&bytes).unwrap();
    let names: Vec<_> = found.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a.ovf", "a-disk1.vmdk"]);
    let disk = &found[1];
    let start = usize::try_from(disk.offset).unwrap();
    assert_eq!(bytes[start..start + 600], [7; 600]);
    // Without the two blocks at its end.
    assert_eq!(read(&bytes[..bytes.len() - 1024]).unwrap(), found);
}

#[test]
fn extended_headers_are_read() {
    let long = "l".repeat(150);
    let pax = format!("{} path={long}\n10 size=3\n", long.len() + 10);
    let bytes = archive(&[
        (EntryType::XHeader, "x", pax.as_bytes()),
        (FILE, "short", b"abc"),
        (EntryType::GNULongName, "x", format!("{long}2\0").as_bytes()),
        (FILE, "short", b"de"),
    ]);
    let found = read(&bytes).unwrap();
    let found: Vec<_> = found.iter().map(|e| (e.name.clone(), e.size)).collect();
    assert_eq!(found, [(long.clone(), 3), (format!("{long}2"), 2)]);
}

#[test]
fn an_entry_that_is_no_file_of_the_package_is_refused() {
    for name in [
        "../a.vmdk",
        "/etc/passwd",
        "d/a.vmdk",
        "..",
        "a\\b",
        "a\u{7}",
    ] {
        let refused = read(&archive(&[(FILE, name, b"x")])).unwrap_err();
        assert!(
            matches!(refused, ArchiveError::Entry(_)),
            "{name}: {refused}"
        );
    }
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Directory,
        EntryType::GNUSparse,
        EntryType::Char,
    ] {
        let refused = read(&archive(&[(kind, "a", b"")])).unwrap_err();
        assert!(
            matches!(refused, ArchiveError::Entry(_)),
            "{kind:?}: {refused}"
        );
    }
    let twice = read(&archive(&[(FILE, "a", b"1"), (FILE, "a", b"2")]));
    assert!(matches!(twice, Err(ArchiveError::Twice(_))));
    let sparse = archive(&[
        (EntryType::XHeader, "x", b"22 GNU.sparse.major=1\n"),
        (FILE, "a", b"1"),
    ]);
    assert!(matches!(read(&sparse), Err(ArchiveError::Entry(_))));
}

#[test]
fn a_damaged_archive_is_refused() {
    let bytes = archive(&[(FILE, "a.ovf", b"<a/>"), (FILE, "b", &[7; 5000])]);
    assert!(matches!(read(&bytes[..3000]), Err(ArchiveError::CutOff(_))));
    assert!(matches!(read(b"no archive"), Err(ArchiveError::NoArchive)));
    assert!(matches!(read(&[1; 2048]), Err(ArchiveError::NoArchive)));
    let mut damaged = bytes.clone();
    damaged[1024 + 3] ^= 1;
    assert!(matches!(read(&damaged), Err(ArchiveError::Damaged(1024))));
    let mut huge = Header::new_ustar();
    huge.set_size(u64::MAX);
    huge.set_cksum();
    assert!(matches!(
        read(huge.as_bytes()),
        Err(ArchiveError::CutOff(_))
    ));
    let many: Vec<_> = (0..=ENTRIES).map(|n| n.to_string()).collect();
    let many: Vec<_> = many
        .iter()
        .map(|name| (FILE, name.as_str(), &b""[..]))
        .collect();
    assert!(matches!(read(&archive(&many)), Err(ArchiveError::Many)));
    let endless = archive(&[(EntryType::XHeader, "x", &[b'1'; 70_000])]);
    assert!(matches!(read(&endless), Err(ArchiveError::Damaged(0))));
}

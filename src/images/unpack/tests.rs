//! Disks in files that independent tools have packed.
//!
//! Invariant: `gzip`, `xz`, `zstd` and the crate `tar` make the files.
//! Failure: a tool that is missing fails the test with its name.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rstest::rstest;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::images::RawData;
use crate::images::digest::Digest;
use crate::images::format::Rules;
use crate::images::partial::Room;
use crate::space::Space;

mod apart;

/// Bytes of zstd's frame that readers skip.
const SKIPPED: &[u8] = &[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];

fn packed(tool: &str, bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(tool);
    command
        .args(["-c", "-1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{tool}: {e}"));
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{tool}");
    output.stdout
}

/// A raw disk of some MiB with holes and a boot sector.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; 3 << 20];
    for (i, byte) in disk.iter_mut().take(1 << 20).enumerate() {
        *byte = (i % 251).to_le_bytes()[0] ^ (i >> 9).to_le_bytes()[0];
    }
    disk[0] = 0xeb;
    *disk.last_mut().unwrap() = 1;
    disk
}

/// An archive of files, and of directories, whose names end in `/`.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        if path.ends_with('/') {
            header.set_entry_type(EntryType::Directory);
        }
        builder.append_data(&mut header, path, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

use tar::EntryType;

struct Unpacked {
    scratch: TempDir,
    outcome: Result<bool>,
    digest: Digest,
    length: u64,
}

impl Unpacked {
    fn reason(&self) -> String {
        match &self.outcome {
            Ok(found) => panic!("unpacked: {found}"),
            Err(error) => format!("{error}"),
        }
    }
}

const fn rules() -> Rules {
    Rules {
        max_virtual_bytes: 1 << 30,
        convert: Vec::new(),
        raw_data: RawData::Allow,
    }
}

fn run(bytes: &[u8], shape: Shape, max_bytes: u64) -> Unpacked {
    run_by(bytes, max_bytes, |file, disk, limits| {
        unpack(file, shape, disk, limits)
    })
}

fn run_by(
    bytes: &[u8],
    max_bytes: u64,
    unpack: impl FnOnce(File, &mut Partial, Limits) -> Result<bool>,
) -> Unpacked {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("packed");
    std::fs::write(&path, bytes).unwrap();
    let mut disk = Partial::open(scratch.path(), "disk", Path::new("/none")).unwrap();
    let limits = Limits {
        location: "h/a".into(),
        max_bytes,
        rules: rules(),
        room: Room::new(u64::MAX).claim(0).unwrap(),
        space: Space::default().claim(disk.path(), 0, 0).unwrap(),
        stopping: CancellationToken::new(),
    };
    let outcome = unpack(File::open(&path).unwrap(), &mut disk, limits);
    let digest = disk.finish().unwrap();
    Unpacked {
        outcome,
        digest,
        length: disk.received(),
        scratch,
    }
}

fn digest_of(bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    Digest::from_bytes(sha2::Sha256::digest(bytes).into())
}

#[rstest]
#[case::gzip("gzip")]
#[case::xz("xz")]
#[case::zstd("zstd")]
fn a_compressed_disk_is_unpacked_to_a_sparse_file(#[case] tool: &str) {
    let disk = disk();
    let mut bytes = packed(tool, &disk);
    if tool == "zstd" {
        // Several frames, as parallel compressors write them.
        let (first, rest) = disk.split_at(1 << 20);
        bytes = [&packed(tool, first), SKIPPED, &packed(tool, rest)].concat();
    }
    assert!(Shape::Disk.is_packed(&bytes));
    let done = run(&bytes, Shape::Disk, 1 << 30);
    assert!(matches!(done.outcome, Ok(true)), "{:?}", done.outcome);
    assert_eq!(
        (done.length, done.digest),
        (disk.len() as u64, digest_of(&disk))
    );
    let file = std::fs::read(done.scratch.path().join("disk.part")).unwrap();
    assert_eq!(digest_of(&file), digest_of(&disk));
    let blocks = std::fs::metadata(done.scratch.path().join("disk.part")).unwrap();
    assert!(blocks.blocks() * 512 < disk.len() as u64, "not sparse");
}

#[rstest]
#[case::plain(None)]
#[case::gzip(Some("gzip"))]
#[case::zstd(Some("zstd"))]
fn the_disk_of_a_layer_is_found(#[case] tool: Option<&str>) {
    let disk = disk();
    for (name, content) in [
        ("disk/a.img", disk.clone()),
        ("./disk/a.img", disk.clone()),
        ("/disk/a.img.xz", packed("xz", &disk)),
        (&format!("disk/{}", "a".repeat(200)), disk.clone()),
    ] {
        let layer = archive_with(name, &content);
        let layer = tool.map_or(layer.clone(), |tool| packed(tool, &layer));
        let done = run(&layer, Shape::Layer, 1 << 30);
        assert!(
            matches!(done.outcome, Ok(true)),
            "{name}: {:?}",
            done.outcome
        );
        assert_eq!(done.digest, digest_of(&disk), "{name}");
        let found = head_here(&layer[..layer.len().min(256 << 10)], Shape::Layer).unwrap();
        assert!(found.is_enough());
        assert_eq!(found.head, disk[..found.head.len()], "{name}");
        let known = !name.ends_with("xz");
        assert_eq!(found.length, known.then_some(disk.len() as u64), "{name}");
        // An inspection begins with less.
        let begun = head_here(&layer[..layer.len().min(64 << 10)], Shape::Layer);
        assert!(begun.is_none_or(|begun| disk.starts_with(&begun.head)));
    }
}

/// An archive with the disk under a name that the crate would not write, and what else is there.
fn archive_with(name: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut put = |path: &str, kind: EntryType, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        if path.len() > 100 {
            builder.append_data(&mut header, path, bytes).unwrap();
            return;
        }
        let field = header.as_gnu_mut().unwrap();
        field.name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, bytes).unwrap();
    };
    put("etc/", EntryType::Directory, b"");
    put("etc/disk", EntryType::Regular, b"not it");
    put("disk/", EntryType::Directory, b"");
    put("disk/.wh.old", EntryType::Regular, b"");
    put("disk/sub/b.img", EntryType::Regular, b"not it either");
    put(name, EntryType::Regular, content);
    builder.into_inner().unwrap()
}

#[test]
fn a_layer_without_a_disk_has_none() {
    let layer = archive(&[("bin/", b""), ("bin/sh", b"#!"), ("disk/", b"")]);
    assert!(matches!(
        run(&layer, Shape::Layer, 1 << 30).outcome,
        Ok(false)
    ));
    assert_eq!(head_here(&layer, Shape::Layer), None);
}

#[test]
fn two_disks_or_one_that_is_no_file_are_refused_by_name() {
    let sector = [0xeb; 512];
    let two = archive(&[("disk/a.img", &sector), ("disk/b.img", &sector)]);
    let reason = run(&two, Shape::Layer, 1 << 30).reason();
    assert!(
        reason.contains("\"a.img\"") && reason.contains("\"b.img\""),
        "{reason}"
    );

    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    builder
        .append_link(&mut header, "disk/a.img", "/etc/shadow")
        .unwrap();
    let link = builder.into_inner().unwrap();
    let reason = run(&link, Shape::Layer, 1 << 30).reason();
    assert!(reason.contains("no plain file"), "{reason}");
}

#[test]
fn the_disk_in_a_file_is_judged_as_any_disk() {
    let encrypted = [b"LUKS\xba\xbe".as_slice(), &[0; 1024]].concat();
    let reason = run(&packed("gzip", &encrypted), Shape::Disk, 1 << 30).reason();
    assert!(reason.contains("unusable image"), "{reason}");
    let twice = packed("gzip", &packed("gzip", &disk()));
    let refused = run(&twice, Shape::Disk, 1 << 30);
    assert!(matches!(refused.outcome, Err(Error::Format { .. })));
    let large = archive(&[("disk/a.img", &disk())]);
    let reason = run(&large, Shape::Layer, 1 << 20).reason();
    assert!(reason.contains("too large"), "{reason}");
}

#[rstest]
#[case::gzip("gzip")]
#[case::xz("xz")]
#[case::zstd("zstd")]
fn a_bomb_ends_at_the_limit(#[case] tool: &str) {
    let bomb = packed(tool, &vec![0; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    let done = run(&bomb, Shape::Disk, 8 << 20);
    assert!(matches!(done.outcome, Err(Error::TooLarge { .. })));
    assert!(done.length <= 8 << 20, "{}", done.length);
}

#[rstest]
#[case::gzip("gzip")]
#[case::xz("xz")]
#[case::zstd("zstd")]
fn a_file_that_is_cut_or_broken_is_refused(#[case] tool: &str) {
    let mut bytes = packed(tool, &disk());
    let cut = run(&bytes[..bytes.len() / 2], Shape::Disk, 1 << 30).reason();
    assert!(cut.contains("cannot be unpacked"), "{cut}");
    if tool != "zstd" {
        // Without its checksum; that of the download is checked for all.
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].fill(0xa5);
        let broken = run(&bytes, Shape::Disk, 1 << 30).reason();
        assert!(
            broken.contains("unpacked") || broken.contains("unusable"),
            "{broken}"
        );
    }
}

#[test]
fn what_is_beside_the_disk_is_bounded() {
    // A name of many MiB is not read into memory.
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(8 << 20);
    header.set_cksum();
    builder
        .append(&header, vec![b'a'; 8 << 20].as_slice())
        .unwrap();
    let layer = builder.into_inner().unwrap();
    let reason = run(&layer, Shape::Layer, 1 << 30).reason();
    assert!(reason.contains("more beside the disk"), "{reason}");
}

#[test]
fn a_daemon_that_stops_does_not_wait_for_the_rest() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("packed");
    std::fs::write(&path, packed("gzip", &disk())).unwrap();
    let mut disk = Partial::open(scratch.path(), "disk", Path::new("/none")).unwrap();
    let limits = Limits {
        location: "h/a".into(),
        max_bytes: 1 << 30,
        rules: rules(),
        room: Room::new(u64::MAX).claim(0).unwrap(),
        space: Space::default().claim(disk.path(), 0, 0).unwrap(),
        stopping: CancellationToken::new(),
    };
    limits.stopping.cancel();
    let outcome = unpack(File::open(&path).unwrap(), Shape::Disk, &mut disk, limits);
    assert!(matches!(outcome, Err(Error::Stopping)));
    assert_eq!(disk.received(), 0);
}

#[test]
fn a_disk_that_the_reserve_leaves_no_room_for_is_refused_with_its_setting() {
    const GIB: u64 = 1 << 30;
    let scratch = tempfile::tempdir().unwrap();
    let mut disk = Partial::open(scratch.path(), "disk", Path::new("/none")).unwrap();
    let free = Space::default().check(disk.path()).unwrap();
    // Other programs write to that file system, too.
    let space = Space::new(free - GIB);
    let mut limits = Limits {
        location: "h/a".into(),
        max_bytes: u64::MAX,
        rules: Rules {
            max_virtual_bytes: u64::MAX,
            ..rules()
        },
        room: Room::new(u64::MAX).claim(0).unwrap(),
        space: space.claim(disk.path(), 0, 0).unwrap(),
        stopping: CancellationToken::new(),
    };
    let content = vec![1; 4096];
    let refused = limits.write(&mut content.as_slice(), Some(3 * GIB), &mut disk);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains(", but images.reserve keeps "), "{text}");
}

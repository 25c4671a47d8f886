//! What is taken for a disk.
//!
//! Invariant: anything that is no disk is refused with a name for it.
//! Failure: none expected.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::images::Boot;

const LIMIT: u64 = 1 << 40;

fn padded(head: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[at..at + head.len()].copy_from_slice(head);
    bytes
}

fn raw(bytes: &[u8]) -> Result<Disk, Error> {
    judge(bytes, Some(bytes.len() as u64), LIMIT)
}

#[test]
fn the_bytes_of_a_disk_are_raw() {
    let boot_sector = padded(&[0x55, 0xaa], 510);
    let iso = padded(b"CD001", 2049);
    for bytes in [boot_sector, iso, vec![0; 512]] {
        let virtual_size = bytes.len() as u64;
        let disk = Disk {
            format: Format::Raw,
            virtual_size,
        };
        assert_eq!(raw(&bytes), Ok(disk));
    }
}

#[rstest]
#[case::vmdk(b"KDMV", 0, "a VMDK disk")]
#[case::old_vmdk(b"COWD", 0, "a VMDK disk of an old kind (COWD)")]
#[case::descriptor(b"# Disk DescriptorFile\n", 0, "a VMDK descriptor without its disk")]
#[case::vdi(&[0x7f, 0x10, 0xda, 0xbe], 64, "a VDI disk")]
#[case::vhdx(b"vhdxfile", 0, "a VHDX disk")]
#[case::gzip(&[0x1f, 0x8b, 8], 0, "compressed by gzip")]
#[case::xz(b"\xfd7zXZ\0", 0, "compressed by xz")]
#[case::zstd(&[0x28, 0xb5, 0x2f, 0xfd], 0, "compressed by zstd")]
#[case::ova(b"ustar\0", 257, "a tar archive (an OVA, perhaps)")]
fn other_formats_are_refused_by_name(
    #[case] magic: &[u8],
    #[case] at: usize,
    #[case] what: &'static str,
) {
    assert_eq!(raw(&padded(magic, at)), Err(Error::Foreign(what)));
}

#[rstest]
#[case(b"<!DOCTYPE html>")]
#[case(b"\xef\xbb\xbf \r\n<HTML>")]
#[case(b"<?xml version='1.0'?><Error>")]
fn web_pages_are_refused_whatever_their_length(#[case] page: &[u8]) {
    assert_eq!(raw(page), Err(Error::WebPage));
    assert_eq!(raw(&padded(page, 0)), Err(Error::WebPage));
}

#[test]
fn files_that_are_no_whole_sectors_are_no_disks() {
    assert_eq!(raw(b""), Err(Error::Empty));
    assert_eq!(raw(&[0; 513]), Err(Error::Sectors(513)));
    assert_eq!(raw(b"not found"), Err(Error::Sectors(9)));
}

#[test]
fn a_disk_above_the_limit_is_refused() {
    assert!(matches!(
        judge(&[0; 512], Some(1024), 512),
        Err(Error::VirtualSize {
            size: 1024,
            limit: 512
        })
    ));
}

#[test]
fn a_raw_disk_of_unknown_length_has_no_size() {
    let disk = judge(&[0; 513], None, 512).unwrap();
    assert_eq!((disk.format, disk.virtual_size), (Format::Raw, 0));
    assert_eq!(judge(b"", None, LIMIT), Err(Error::Empty));
    assert_eq!(judge(b"<html>", None, LIMIT), Err(Error::WebPage));
}

#[rstest]
#[case::boot_sector(510, &[0x55, 0xaa], true)]
#[case::partition_table_without_code(512, b"EFI PART", false)]
#[case::partition_table_of_large_sectors(4096, b"EFI PART", false)]
#[case::cd(0x8001, b"CD001", false)]
#[case::elsewhere(511, &[0x55, 0xaa], false)]
#[case::none(0, b"", false)]
fn a_raw_disk_boots_with_what_firmware_looks_for(
    #[case] at: usize,
    #[case] magic: &[u8],
    #[case] boots: bool,
) {
    let mut head = vec![0; 64 << 10];
    head[at..at + magic.len()].copy_from_slice(magic);
    head[0] = 0xeb;
    assert_eq!(Boot::detect(&head).is_bootable(), boots);
    assert_eq!(Boot::detect(&head[..at + magic.len()]).is_bootable(), boots);
}

#[test]
fn a_file_is_read_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let look = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        rules(&[]).inspect(&File::open(&path).unwrap()).unwrap()
    };
    for length in [512, HEAD, HEAD + SECTOR] {
        let disk = Disk {
            format: Format::Raw,
            virtual_size: length,
        };
        let found = look(&vec![0; usize::try_from(length).unwrap()]);
        assert_eq!(found, Ok(Accepted::Disk(disk)));
    }
    assert_eq!(look(b""), Err(Error::Empty));
    assert_eq!(
        look(&padded(b"KDMV", 0)),
        Err(Error::NotConverted(Convertible::Vmdk))
    );
}

fn rules(convert: &[Convertible]) -> Rules {
    Rules {
        max_virtual_bytes: LIMIT,
        convert: convert.to_vec(),
        raw_data: RawData::Allow,
    }
}

#[test]
fn a_raw_file_has_to_begin_as_a_disk_unless_the_settings_take_other_data() {
    let open = rules(&[]);
    let closed = Rules {
        raw_data: RawData::Refuse,
        ..open.clone()
    };
    // What a service answers, made a whole number of sectors by a part of the request.
    let mut answer = br#"{"status":"success","data":"hush"}"#.to_vec();
    answer.resize(1024, b' ');
    for other in [answer, vec![0; 1024]] {
        assert_eq!(closed.judge(&other, Some(1024)), Err(Error::NoSignature));
        assert!(open.judge(&other, Some(1024)).is_ok());
    }
    let disk = padded(&[0x55, 0xaa], 510);
    assert!(closed.judge(&disk, Some(4096)).is_ok());
    assert_eq!(closed.judge(b"", Some(0)), Err(Error::Empty));
}

#[rstest]
#[case(b"KDMV", Convertible::Vmdk, Convertible::Vhdx)]
#[case(b"vhdxfile", Convertible::Vhdx, Convertible::Vmdk)]
fn a_format_is_converted_only_if_it_is_listed(
    #[case] magic: &[u8],
    #[case] from: Convertible,
    #[case] other: Convertible,
) {
    let head = padded(magic, 0);
    for convert in [&[][..], &[other]] {
        let judged = rules(convert).judge(&head, Some(4096));
        assert_eq!(judged, Err(Error::NotConverted(from)));
    }
    for convert in [&[from][..], &[other, from]] {
        let judged = rules(convert).judge(&head, Some(4096));
        assert!(
            matches!(judged, Err(Error::Convertible { from: found, .. }) if found == from),
            "{judged:?}"
        );
    }
    assert_eq!(
        judge(&head, Some(4096), LIMIT),
        Err(Error::Foreign(from.shown()))
    );
}

#[test]
fn a_format_has_the_name_that_qemu_uses() {
    for (format, name) in [(Format::Qcow2, "qcow2"), (Format::Raw, "raw")] {
        assert_eq!(format.as_str(), name);
        assert_eq!(name.parse(), Ok(format));
        assert_eq!(serde_json::json!(format), name);
    }
    assert_eq!("vmdk".parse::<Format>(), Err(()));
}

#[test]
fn a_disk_of_exactly_the_limit_is_accepted() {
    assert!(judge(&[0; 512], Some(512), 512).is_ok());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(head in prop::collection::vec(any::<u8>(), 0..600), length: u64) {
        let _ = judge(&head, Some(length), LIMIT);
        let _ = judge(&head, None, LIMIT);
    }
}

//! What qemu-img makes in both formats, and honest and hostile headers.
//!
//! Invariant: what qemu-img makes in one file without a parent is accepted; a file that is cut
//! anywhere, or whose bytes are others, never makes the check panic.
//! Failure: tests with qemu-img fail if it is not installed.

use std::process::Command;

use proptest::prelude::*;

use super::*;

/// What the check of a whole file says.
pub(super) fn check(format: Convertible, file: &[u8]) -> Result<u64, Error> {
    let read = |offset: u64, most: usize| {
        let offset = usize::try_from(offset).unwrap();
        Ok(file[offset..offset + most].to_vec())
    };
    let whole = format.virtual_size(file.len() as u64, read).unwrap();
    let head = &file[..file.len().min(64 << 10)];
    // What is known of a file does not change as more of it is known.
    for length in [None, Some(file.len() as u64)] {
        let beginning = format.beginning(head, length);
        if let Ok(size) = whole {
            assert!([Ok(0), Ok(size)].contains(&beginning), "{beginning:?}");
        }
    }
    whole
}

/// What qemu-img makes: a disk of 3 MiB and a half, with something in it.
pub(super) fn made(format: &str, options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let mut content = vec![7; 100_000];
    content.resize((3 << 20) + (512 << 10), 0);
    std::fs::write(&raw, content).unwrap();
    let disk = dir.path().join("disk");
    let made = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", format])
        .args(options)
        .args([&raw, &disk])
        .status();
    assert!(made.expect("qemu-img is installed").success());
    std::fs::read(disk).unwrap()
}

#[test]
fn what_qemu_img_makes_is_accepted() {
    let size = Ok((3 << 20) + (512 << 10));
    for kind in ["monolithicSparse", "streamOptimized"] {
        let file = made("vmdk", &["-o", &format!("subformat={kind}")]);
        assert_eq!(Convertible::detect(&file), Some(Convertible::Vmdk));
        assert_eq!(check(Convertible::Vmdk, &file), size, "{kind}");
        assert_eq!(Convertible::Vmdk.beginning(&file, None), size, "{kind}");
    }
    let file = made("vmdk", &["-o", "zeroed_grain=on"]);
    assert_eq!(check(Convertible::Vmdk, &file), size);
    for options in ["subformat=dynamic", "subformat=fixed", "block_size=1M"] {
        let file = made("vhdx", &["-o", options]);
        assert_eq!(Convertible::detect(&file), Some(Convertible::Vhdx));
        let whole = check(Convertible::Vhdx, &file).unwrap();
        // It is a multiple of the size of blocks.
        assert!((3 << 20..=32 << 20).contains(&whole), "{options}: {whole}");
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_or_has_all_that_counts() {
    let vmdk = made("vmdk", &[]);
    for length in (0..11 << 10).chain([20 << 10, 40 << 10]) {
        let cut = &vmdk[..length];
        assert!(check(Convertible::Vmdk, cut).is_err(), "{length}");
    }
    let vhdx = made("vhdx", &[]);
    for length in (0..4 << 20).step_by(4099) {
        let cut = &vhdx[..length];
        assert!(check(Convertible::Vhdx, cut).is_err(), "{length}");
    }
}

#[test]
fn other_files_are_of_neither_format() {
    for head in [&b""[..], b"KDM", b"COWD", b"vhdxfil", b"conectix"] {
        assert_eq!(Convertible::detect(head), None);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        changes in prop::collection::vec((0..11_264_usize, any::<u8>()), 0..20),
        length in 0..12_000_usize,
    ) {
        let mut file = vmdk::tests::file();
        for (at, byte) in changes {
            file[at] = byte;
        }
        let _ = check(Convertible::Vmdk, &file);
        file.truncate(length);
        let _ = check(Convertible::Vmdk, &file);
    }

    #[test]
    fn no_places_in_a_region_table_make_it_panic(
        changes in prop::collection::vec((0..120_usize, any::<u8>()), 1..20),
        metadata in prop::collection::vec((0..250_usize, any::<u8>()), 0..20),
    ) {
        let mut file = vhdx::tests::file();
        for (at, byte) in changes {
            for table in [192 << 10, 256 << 10] {
                file[table + at] = byte;
            }
        }
        for (at, byte) in metadata {
            file[vhdx::tests::METADATA_AT + at] = byte;
        }
        let _ = check(Convertible::Vhdx, &file);
    }
}

//! Honest and hostile headers.
//!
//! Invariant: what qemu-img makes without references to other files is accepted; everything else is
//! not.
//! Failure: tests with qemu-img fail if it is not installed.

use std::process::Command;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const LENGTH: u64 = 0x6_0000;

/// A version 3 header of a disk of 1 GiB with clusters of 64 KiB.
fn header() -> Vec<u8> {
    let mut h = vec![0; 512];
    h[..4].copy_from_slice(MAGIC);
    for (at, value) in [(4, 3_u32), (20, 16), (36, 2), (56, 1), (96, 4), (100, 112)] {
        put32(&mut h, at, value);
    }
    for (at, value) in [(24, 1_u64 << 30), (40, 0x3_0000), (48, 0x1_0000)] {
        put64(&mut h, at, value);
    }
    h
}

fn put32(head: &mut [u8], at: usize, value: u32) {
    head[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put64(head: &mut [u8], at: usize, value: u64) {
    head[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn a_valid_header_gives_the_virtual_size() {
    assert_eq!(virtual_size(&header(), LENGTH), Ok(1 << 30));
}

#[rstest]
#[case::version_1(4, 1, Error::Version(1))]
#[case::version_4(4, 4, Error::Version(4))]
#[case::backing_offset(12, 0x200, Error::BackingFile)]
#[case::backing_length(16, 7, Error::BackingFile)]
#[case::small_clusters(20, 8, Error::OutOfRange("cluster size"))]
#[case::large_clusters(20, 22, Error::OutOfRange("cluster size"))]
#[case::absurd_clusters(20, u32::MAX, Error::OutOfRange("cluster size"))]
#[case::odd_size(28, 513, Error::OutOfRange("virtual size"))]
#[case::more_than_l1(24, 1, Error::OutOfRange("virtual size"))]
#[case::aes(32, 1, Error::Encrypted)]
#[case::luks(32, 2, Error::Encrypted)]
#[case::no_l1(36, 0, Error::OutOfRange("L1 table"))]
#[case::huge_l1(36, u32::MAX, Error::OutOfRange("L1 table"))]
#[case::l1_at_the_header(44, 0, Error::OutOfRange("L1 table"))]
#[case::l1_off_cluster(44, 0x3_0001, Error::OutOfRange("L1 table"))]
#[case::l1_outside(44, 0x6_0000, Error::OutOfRange("L1 table"))]
#[case::l1_far_outside(40, u32::MAX, Error::OutOfRange("L1 table"))]
#[case::no_refcounts(56, 0, Error::OutOfRange("reference count table"))]
#[case::huge_refcounts(56, u32::MAX, Error::OutOfRange("reference count table"))]
#[case::refcounts_outside(48, 1, Error::OutOfRange("reference count table"))]
#[case::snapshots_nowhere(60, 1, Error::OutOfRange("snapshot table"))]
#[case::too_many_snapshots(60, 65_537, Error::OutOfRange("snapshot table"))]
#[case::corrupt(76, 2, Error::Corrupt)]
#[case::data_file(76, 4, Error::DataFile)]
#[case::unknown_feature(76, 32, Error::UnknownFeatures(32))]
#[case::unknown_high_feature(72, 1 << 31, Error::UnknownFeatures(1 << 63))]
#[case::refcount_width(96, 7, Error::OutOfRange("reference count width"))]
#[case::short_header(100, 96, Error::OutOfRange("header length"))]
#[case::odd_header(100, 113, Error::OutOfRange("header length"))]
#[case::long_header(100, 0x1_0000, Error::OutOfRange("header length"))]
#[case::data_file_extension(112, EXTENSION_DATA_FILE, Error::DataFile)]
#[case::encryption_extension(112, EXTENSION_ENCRYPTION, Error::Encrypted)]
fn a_hostile_field_is_refused(#[case] at: usize, #[case] value: u32, #[case] error: Error) {
    let mut head = header();
    put32(&mut head, at, value);
    assert_eq!(virtual_size(&head, LENGTH), Err(error));
}

#[rstest]
#[case::dirty(&[(76, 1)])]
#[case::widest_reference_counts(&[(96, 6)])]
#[case::compression_type_without_its_feature(&[(104, 2 << 24)])]
#[case::smallest_extended_clusters(&[(76, 16), (20, 14), (24, 0), (28, 512)])]
#[case::an_extension_up_to_the_end_of_the_cluster(&[(20, 9), (24, 0), (28, 512), (112, 1), (116, 512 - 120)])]
fn a_field_at_its_limit_is_accepted(#[case] fields: &[(usize, u32)]) {
    let mut head = header();
    for (at, value) in fields {
        put32(&mut head, *at, *value);
    }
    assert!(virtual_size(&head, LENGTH).is_ok());
}

#[rstest]
#[case::small_extended_clusters(&[(76, 16), (20, 13), (24, 0), (28, 512)], "cluster size")]
#[case::a_header_of_a_whole_cluster(&[(20, 9), (24, 0), (28, 512), (100, 512)], "header length")]
fn fields_that_do_not_fit_each_other_are_refused(
    #[case] fields: &[(usize, u32)],
    #[case] names: &'static str,
) {
    let mut head = header();
    for (at, value) in fields {
        put32(&mut head, *at, *value);
    }
    let refused = Err(Error::OutOfRange(names));
    assert_eq!(virtual_size(&head, LENGTH), refused);
}

#[test]
fn the_compression_type_must_be_known() {
    let mut head = header();
    put32(&mut head, 76, 8);
    for (kind, expected) in [
        (0, Ok(1 << 30)),
        (1, Ok(1 << 30)),
        (2, Err(Error::Compression(2))),
    ] {
        head[104] = kind;
        assert_eq!(virtual_size(&head, LENGTH), expected);
    }
}

#[test]
fn an_extension_behind_another_is_seen_and_an_endless_one_refused() {
    let mut head = header();
    put32(&mut head, 112, 0x6803_f857);
    put32(&mut head, 116, 3);
    put32(&mut head, 128, EXTENSION_DATA_FILE);
    assert_eq!(virtual_size(&head, LENGTH), Err(Error::DataFile));
    put32(&mut head, 116, u32::MAX);
    assert_eq!(
        virtual_size(&head, LENGTH),
        Err(Error::OutOfRange("header extension"))
    );
}

#[test]
fn a_snapshot_table_inside_the_file_is_fine() {
    let mut head = header();
    put32(&mut head, 60, 2);
    put64(&mut head, 64, 0x5_0000);
    assert!(virtual_size(&head, LENGTH).is_ok());
    assert!(virtual_size(&head, 0x5_0000 + 79).is_err());
}

#[rstest]
#[case::ordinary("10G", "compat=1.1", true)]
#[case::old("10G", "compat=0.10", true)]
#[case::tiny("512", "compat=1.1", true)]
#[case::extended("1T", "extended_l2=on,cluster_size=128k", true)]
#[case::zstd("10M", "compression_type=zstd,cluster_size=512", true)]
#[case::large_clusters("10G", "cluster_size=2M,lazy_refcounts=on", true)]
#[case::data_file("10M", "data_file=other.raw", false)]
#[case::backing_file("10M", "backing_file=/etc/passwd,backing_fmt=raw", false)]
fn images_of_qemu_img_are_judged_rightly(
    #[case] size: &str,
    #[case] options: &str,
    #[case] accepted: bool,
) {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("qemu-img")
        .args([
            "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", size,
        ])
        .current_dir(&dir)
        .status();
    assert!(made.expect("qemu-img is installed").success());
    let bytes = std::fs::read(dir.path().join("a.qcow2")).unwrap();
    let judged = virtual_size(&bytes, bytes.len() as u64);
    assert_eq!(judged.is_ok(), accepted, "{judged:?}");
}

proptest! {
    #[test]
    fn random_headers_are_judged_without_panic(
        rest in prop::collection::vec(any::<u8>(), 0..300),
        length: u64,
    ) {
        let head = [MAGIC, &rest].concat();
        let _ = virtual_size(&head, length);
    }

    #[test]
    fn an_honest_header_with_noise_keeps_every_promise(
        noise in prop::collection::vec((4_usize..128, any::<u8>()), 0..6),
        cut in 0_usize..=512,
        length in 0_u64..0x10_0000,
    ) {
        let mut head = header();
        for (at, byte) in noise {
            head[at] = byte;
        }
        head.truncate(cut);
        if let Ok(size) = virtual_size(&head, length) {
            prop_assert!(size > 0 && size.is_multiple_of(512));
            prop_assert_eq!(&head[8..20], &[0; 8].into_iter().chain([0; 4]).collect::<Vec<u8>>()[..]);
            prop_assert_eq!(head[79] & 4, 0);
            prop_assert_eq!(&head[32..36], &[0; 4][..]);
        }
    }
}

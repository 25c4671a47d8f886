//! Honest and hostile VMDK files.
//!
//! Invariant: each change of a valid file is refused with its own words.
//! Failure: tests with qemu-img fail if it is not installed.

use rstest::rstest;

use super::super::tests::{check, made};
use super::super::{Convertible, Error};

const TEXT: &str = "# Disk DescriptorFile\nversion=1\nCID=e5f50f20\nparentCID=ffffffff\n\
    createType=\"monolithicSparse\"\n\n# Extent description\nRW 2048 SPARSE \"a.vmdk\"\n\n\
    #DDB\nddb.adapterType = \"ide\"\n";

/// A valid file with an empty disk of 1 MiB.
pub(in super::super) fn file() -> Vec<u8> {
    let mut file = vec![0; 64 << 10];
    file[..4].copy_from_slice(b"KDMV");
    for (at, value) in [(4, 1_u32), (8, 3), (44, 512)] {
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let fields = [
        (12, 2048_u64),
        (20, 128),
        (28, 1),
        (36, 20),
        (48, 21),
        (56, 26),
        (64, 128),
    ];
    for (at, value) in fields {
        put(&mut file, at, value);
    }
    file[73..77].copy_from_slice(b"\n \r\n");
    file[512..512 + TEXT.len()].copy_from_slice(TEXT.as_bytes());
    file
}

fn put(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn vmdk(file: &[u8]) -> Result<u64, Error> {
    check(Convertible::Vmdk, file)
}

/// The file with another descriptor.
fn described(text: &str) -> Vec<u8> {
    let mut file = file();
    file[512..11_264].fill(0);
    file[512..512 + text.len()].copy_from_slice(text.as_bytes());
    file
}

#[test]
fn a_valid_file_gives_the_virtual_size() {
    assert_eq!(vmdk(&file()), Ok(1 << 20));
}

#[rstest]
#[case::version_0(4, 0, Error::Version(0))]
#[case::version_4(4, 4, Error::Version(4))]
#[case::unknown_flag(8, 3 | 1 << 5, Error::UnknownFeatures(1 << 5))]
#[case::compressed_by_its_flag_only(8, 3 | 1 << 16, Error::OutOfRange("compression"))]
#[case::markers_without_compression(8, 3 | 1 << 17, Error::OutOfRange("compression"))]
#[case::small_tables(44, 256, Error::OutOfRange("grain table"))]
#[case::large_tables(44, 1024, Error::OutOfRange("grain table"))]
#[case::text_transfer(73, u32::from_le_bytes(*b"\r\n \n"), Error::Malformed("header"))]
fn other_numbers_in_the_header_are_refused(
    #[case] at: usize,
    #[case] value: u32,
    #[case] expected: Error,
) {
    let mut file = file();
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    assert_eq!(vmdk(&file), Err(expected));
}

#[rstest]
// QEMU would take the embedded descriptor for that of a disk in other files.
#[case::no_capacity(12, 0, Error::OutOfRange("capacity"))]
#[case::absurd_capacity(12, u64::MAX, Error::OutOfRange("capacity"))]
#[case::capacity_that_wraps(12, 1 << 55, Error::OutOfRange("capacity"))]
#[case::more_than_its_tables(12, 1 << 50, Error::OutOfRange("grain directory"))]
#[case::more_than_its_extent(12, 2048 + 128, Error::OutOfRange("size of the extent"))]
#[case::no_grain(20, 0, Error::OutOfRange("grain size"))]
#[case::odd_grain(20, 129, Error::OutOfRange("grain size"))]
#[case::small_grain(20, 4, Error::OutOfRange("grain size"))]
#[case::large_grain(20, 8192, Error::OutOfRange("grain size"))]
#[case::descriptor_elsewhere(28, 2, Error::OutOfRange("descriptor"))]
#[case::no_descriptor(28, 0, Error::OtherFile)]
#[case::empty_descriptor(36, 0, Error::OutOfRange("descriptor"))]
#[case::long_descriptor(36, 21, Error::OutOfRange("descriptor"))]
#[case::second_directory_outside(48, 128, Error::OutOfRange("grain directory"))]
#[case::directory_in_the_header(56, 0, Error::OutOfRange("grain directory"))]
#[case::directory_outside(56, 128, Error::OutOfRange("grain directory"))]
#[case::directory_that_wraps(56, u64::MAX - 1, Error::OutOfRange("grain directory"))]
#[case::footer_without_compression(56, u64::MAX, Error::OutOfRange("grain directory"))]
#[case::overhead_outside(64, 129, Error::CutOff)]
fn other_sizes_in_the_header_are_refused(
    #[case] at: usize,
    #[case] value: u64,
    #[case] expected: Error,
) {
    let mut file = file();
    put(&mut file, at, value);
    assert_eq!(vmdk(&file), Err(expected));
}

#[rstest]
#[case::parent("parentCID=ffffffff", "parentCID=12345678", Error::Parent)]
#[case::parent_in_capitals("parentCID=ffffffff", "PARENTCID = 0", Error::Parent)]
#[case::second_parent("#DDB", "parentCID=12345678", Error::Parent)]
#[case::hint("#DDB", "parentFileNameHint=\"/etc/passwd\"", Error::Parent)]
#[case::hint_in_a_comment("#DDB", "# parentFileNameHint=\"/etc/passwd\"", Error::Parent)]
#[case::no_parent_id("parentCID=ffffffff\n", "", Error::Malformed("descriptor"))]
#[case::no_title("# Disk", "# disk", Error::Malformed("descriptor"))]
#[case::no_kind("createType", "kind", Error::Malformed("descriptor"))]
#[case::flat_kind("monolithicSparse", "monolithicFlat", Error::OtherFile)]
#[case::kind_of_a_device("monolithicSparse", "fullDevice", Error::OtherFile)]
#[case::second_kind("#DDB", "createType=\"vmfs\"", Error::OtherFile)]
#[case::flat("SPARSE \"a.vmdk\"", "FLAT \"a.vmdk\" 0", Error::OtherFile)]
#[case::zero("SPARSE \"a.vmdk\"", "ZERO \"\"", Error::OtherFile)]
#[case::path("a.vmdk", "/etc/passwd", Error::OtherFile)]
#[case::path_above("a.vmdk", "../a", Error::OtherFile)]
#[case::path_of_windows("a.vmdk", "..\\\\a", Error::OtherFile)]
#[case::protocol("a.vmdk", "nbd:unix:a", Error::OtherFile)]
#[case::no_name("\"a.vmdk\"", "\"\"", Error::OtherFile)]
#[case::second_extent("#DDB", "RW 2048 SPARSE \"b.vmdk\"", Error::OtherFile)]
#[case::second_flat_extent("#DDB", "RDONLY 1 FLAT \"/etc/shadow\" 0", Error::OtherFile)]
#[case::no_extent("RW 2048 SPARSE \"a.vmdk\"", "", Error::Malformed("descriptor"))]
#[case::open_name("\"a.vmdk\"", "\"a.vmdk", Error::Malformed("extent description"))]
#[case::no_quotes("\"a.vmdk\"", "a.vmdk", Error::Malformed("extent description"))]
#[case::no_number("RW 2048", "RW x", Error::Malformed("extent description"))]
#[case::absurd_number(
    "RW 2048",
    "RW 18446744073709551615",
    Error::OutOfRange("size of the extent")
)]
#[case::another_size("RW 2048", "RW 4096", Error::OutOfRange("size of the extent"))]
#[case::another_line("#DDB", "call me", Error::Malformed("descriptor"))]
fn other_descriptors_are_refused(#[case] from: &str, #[case] to: &str, #[case] expected: Error) {
    assert!(TEXT.contains(from), "{from}");
    assert_eq!(vmdk(&described(&TEXT.replace(from, to))), Err(expected));
}

#[test]
fn descriptors_of_other_programs_are_accepted() {
    for text in [
        TEXT.replace('\n', "\r\n"),
        TEXT.replace("RW 2048 SPARSE", "RDONLY  2048\tSPARSE"),
        TEXT.replace("monolithicSparse", "streamOptimized"),
        TEXT.replace("a.vmdk", "Größe (1).vmdk"),
        TEXT.replace("RW 2048", "RW 2047"),
        TEXT.replace("parentCID=ffffffff", "parentCID = FFFFFFFF"),
    ] {
        assert_eq!(vmdk(&described(&text)), Ok(1 << 20), "{text}");
    }
}

#[test]
fn a_parent_behind_a_short_descriptor_is_found() {
    let mut file = file();
    put(&mut file, 36, 1);
    assert_eq!(vmdk(&file), Ok(1 << 20));
    let hint = b"parentFileNameHint=\"/etc/passwd\"";
    file[9_000..9_000 + hint.len()].copy_from_slice(hint);
    assert_eq!(vmdk(&file), Err(Error::Parent));
}

#[test]
fn a_descriptor_that_does_not_end_in_its_sectors_is_read_to_its_end() {
    let filler = |length: usize| "#".repeat(length - 1) + "\n";
    let text = format!("{TEXT}{}", filler(1024 - TEXT.len()));
    let mut file = described(&text);
    put(&mut file, 36, 2);
    assert_eq!(vmdk(&file), Ok(1 << 20));
    let extent = b"RW 2048 SPARSE \"b.vmdk\"";
    file[1536..1536 + extent.len()].copy_from_slice(extent);
    assert_eq!(vmdk(&file), Err(Error::OtherFile));
}

#[test]
fn a_parent_and_other_kinds_that_qemu_img_makes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new("qemu-img");
        command
            .current_dir(dir.path())
            .args(["create", "-q", "-f", "vmdk"]);
        assert!(command.args(arguments).status().unwrap().success());
    };
    run(&["base", "1M"]);
    run(&["-b", "base", "-F", "vmdk", "child"]);
    let child = std::fs::read(dir.path().join("child")).unwrap();
    assert_eq!(vmdk(&child), Err(Error::Parent));
    run(&["-o", "subformat=twoGbMaxExtentSparse", "parts.vmdk", "1M"]);
    let descriptor = std::fs::read(dir.path().join("parts.vmdk")).unwrap();
    assert_eq!(Convertible::detect(&descriptor), None);
    // Its extents are files with a header and no descriptor.
    let extent = std::fs::read(dir.path().join("parts-s001.vmdk")).unwrap();
    assert_eq!(vmdk(&extent), Err(Error::OtherFile));
}

/// A compressed file whose directory is where its footer says, as programs that write to a stream
/// make it.
fn streamed() -> Vec<u8> {
    let mut file = made("vmdk", &["-o", "subformat=streamOptimized"]);
    file.resize(file.len().next_multiple_of(512), 0);
    let header = file[..512].to_vec();
    let mut marker = [0; 512];
    (marker[0], marker[12]) = (1, 3);
    file.extend(marker);
    file.extend(header);
    file.extend([0; 512]);
    put(&mut file, 56, u64::MAX);
    file
}

#[test]
fn the_footer_says_where_the_directory_is() {
    let file = streamed();
    assert_eq!(vmdk(&file), Ok((3 << 20) + (512 << 10)));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.vmdk");
    std::fs::write(&path, &file).unwrap();
    let read = std::process::Command::new("qemu-img")
        .args(["convert", "-f", "vmdk", "-O", "raw"])
        .args([&path, &dir.path().join("raw")])
        .status();
    assert!(read.unwrap().success());
    let raw = std::fs::read(dir.path().join("raw")).unwrap();
    assert_eq!(raw[..100_000], [7; 100_000]);
}

#[rstest]
#[case::marker(12, 2)]
#[case::marker_with_data(8, 1)]
#[case::end(1024, 1)]
#[case::end_with_data(1032, 1)]
#[case::end_of_another_kind(1036, 1)]
#[case::magic(512, b'k')]
#[case::version(512 + 4, 2)]
#[case::capacity(512 + 12, 1)]
#[case::grain(512 + 20, 64)]
#[case::directory(512 + 63, 1)]
#[case::no_capacity(512 + 13, 0)]
fn a_footer_that_says_something_else_is_refused(#[case] at: usize, #[case] byte: u8) {
    let mut file = streamed();
    let at = file.len() - 1536 + at;
    assert_ne!(file[at], byte);
    file[at] = byte;
    assert!(vmdk(&file).is_err());
}

#[test]
fn a_footer_that_is_not_there_is_refused() {
    let file = streamed();
    for cut in [1, 512, 1024, 1536, 2048] {
        assert!(vmdk(&file[..file.len() - cut]).is_err(), "{cut}");
    }
    let mut again = file.clone();
    let at = file.len() - 1024 + 56;
    put(&mut again, at, u64::MAX);
    assert_eq!(vmdk(&again), Err(Error::Malformed("footer")));
}

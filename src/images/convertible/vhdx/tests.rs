//! Honest and hostile VHDX files.
//!
//! Invariant: each change of a valid file is refused with its own words.
//! Failure: none expected.

use rstest::rstest;
use uuid::Uuid;

use super::super::tests::check;
use super::super::{Convertible, Error};
use super::{
    BLOCKS_REGION, DISK_ID, DISK_SIZE, FILE_PARAMETERS, LOGICAL_SECTOR, METADATA_REGION,
    PARENT_LOCATOR, PHYSICAL_SECTOR,
};

const HEADERS: [usize; 2] = [64 << 10, 128 << 10];
const TABLES: [usize; 2] = [192 << 10, 256 << 10];
/// Place of the metadata.
pub(in super::super) const METADATA_AT: usize = 1 << 20;
const ITEMS_AT: usize = METADATA_AT + (64 << 10);
/// Places of the entries of the metadata's table.
const PARAMETERS: usize = METADATA_AT + 32;
const SIZE: usize = METADATA_AT + 64;
const LAST: usize = METADATA_AT + 160;

/// A valid file with an empty disk of 1 GiB: metadata in the second mebibyte, the table of blocks
/// in the third.
pub(in super::super) fn file() -> Vec<u8> {
    let mut file = vec![0; 3 << 20];
    file[..8].copy_from_slice(b"vhdxfile");
    for (n, at) in HEADERS.into_iter().enumerate() {
        file[at..at + 4].copy_from_slice(b"head");
        file[at + 8] = u8::try_from(n).unwrap();
        file[at + 66] = 1;
    }
    for at in TABLES {
        file[at..at + 4].copy_from_slice(b"regi");
        put32(&mut file, at + 8, 2);
        region(&mut file, at + 16, BLOCKS_REGION, 2 << 20);
        region(&mut file, at + 48, METADATA_REGION, 1 << 20);
    }
    file[METADATA_AT..METADATA_AT + 8].copy_from_slice(b"metadata");
    file[METADATA_AT + 10] = 5;
    item(
        &mut file,
        PARAMETERS,
        FILE_PARAMETERS,
        0,
        &(1_u64 << 20).to_le_bytes(),
    );
    item(&mut file, SIZE, DISK_SIZE, 8, &(1_u64 << 30).to_le_bytes());
    item(
        &mut file,
        METADATA_AT + 96,
        LOGICAL_SECTOR,
        16,
        &512_u32.to_le_bytes(),
    );
    item(
        &mut file,
        METADATA_AT + 128,
        PHYSICAL_SECTOR,
        20,
        &4096_u32.to_le_bytes(),
    );
    item(&mut file, LAST, DISK_ID, 24, &[7; 16]);
    file
}

fn region(file: &mut [u8], at: usize, id: Uuid, offset: u32) {
    file[at..at + 16].copy_from_slice(&id.to_bytes_le());
    put32(file, at + 16, offset);
    put32(file, at + 24, 1 << 20);
    put32(file, at + 28, 1);
}

fn item(file: &mut [u8], at: usize, id: Uuid, offset: u32, value: &[u8]) {
    file[at..at + 16].copy_from_slice(&id.to_bytes_le());
    put32(file, at + 16, (64 << 10) + offset);
    put32(file, at + 20, u32::try_from(value.len()).unwrap());
    put32(file, at + 24, 4);
    let place = ITEMS_AT + usize::try_from(offset).unwrap();
    file[place..place + value.len()].copy_from_slice(value);
}

fn put32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn vhdx(file: &[u8]) -> Result<u64, Error> {
    check(Convertible::Vhdx, file)
}

#[test]
fn a_valid_file_gives_the_virtual_size() {
    assert_eq!(vhdx(&file()), Ok(1 << 30));
}

#[test]
fn a_log_that_counts_is_refused() {
    let mut one = file();
    one[HEADERS[0] + 48] = 1;
    assert_eq!(vhdx(&one), Ok(1 << 30), "the other header is the later one");
    let mut other = file();
    other[HEADERS[1] + 63] = 1;
    assert_eq!(vhdx(&other), Err(Error::Log));
    // The later header is cut out: the first one counts.
    one[HEADERS[1]] = 0;
    assert_eq!(vhdx(&one), Err(Error::Log));
    // With the same number, both count.
    for at in HEADERS {
        let mut same = file();
        same[HEADERS[1] + 8] = 0;
        assert_eq!(vhdx(&same), Ok(1 << 30));
        same[at + 50] = 1;
        assert_eq!(vhdx(&same), Err(Error::Log));
    }
}

#[test]
fn headers_of_another_version_and_none_are_refused() {
    for at in HEADERS {
        let mut file = file();
        file[at + 66] = 2;
        assert_eq!(vhdx(&file), Err(Error::Version(2)));
    }
    let mut none = file();
    HEADERS.into_iter().for_each(|at| none[at] = 0);
    assert_eq!(vhdx(&none), Err(Error::Malformed("header")));
}

#[rstest]
#[case::signature(0, 0, Error::Malformed("region table"))]
#[case::none(8, 0, Error::Malformed("region table"))]
#[case::one(8, 1, Error::Malformed("region table"))]
#[case::too_many(8, 65, Error::Malformed("region table"))]
#[case::unknown_that_is_required(16, 0, Error::UnknownFeatures(1))]
#[case::in_the_headers(16 + 16, 0, Error::OutOfRange("region table"))]
#[case::off_the_mebibyte(16 + 16, (2 << 20) + 512, Error::OutOfRange("region table"))]
#[case::outside(16 + 16, 3 << 20, Error::OutOfRange("region table"))]
#[case::far_outside(16 + 20, 1, Error::OutOfRange("region table"))]
#[case::empty(16 + 24, 0, Error::OutOfRange("region table"))]
#[case::too_long(16 + 24, 2 << 20, Error::OutOfRange("region table"))]
#[case::on_the_other(16 + 16, 1 << 20, Error::Malformed("region table"))]
fn other_region_tables_are_refused(#[case] at: usize, #[case] value: u32, #[case] expected: Error) {
    let mut file = file();
    TABLES
        .into_iter()
        .for_each(|table| put32(&mut file, table + at, value));
    assert_eq!(vhdx(&file), Err(expected));
}

#[test]
fn region_tables_that_differ_or_name_a_region_twice_are_refused() {
    for table in TABLES {
        let mut file = file();
        file[table + 20] = 1;
        assert_eq!(vhdx(&file), Err(Error::Malformed("region table")));
    }
    let mut file = file();
    for table in TABLES {
        region(&mut file, table + 16, METADATA_REGION, 2 << 20);
    }
    assert_eq!(vhdx(&file), Err(Error::Malformed("region table")));
}

#[test]
fn a_region_that_is_not_required_is_left_alone() {
    let mut file = file();
    for table in TABLES {
        put32(&mut file, table + 8, 3);
        region(&mut file, table + 80, Uuid::from_u128(7), 0);
        put32(&mut file, table + 80 + 28, 0);
    }
    assert_eq!(vhdx(&file), Ok(1 << 30));
}

#[rstest]
#[case::signature(METADATA_AT, 0, Error::Malformed("metadata table"))]
#[case::too_many(METADATA_AT + 8, 1024 << 16, Error::Malformed("metadata table"))]
#[case::without_the_size(SIZE, 7, Error::UnknownFeatures(4))]
#[case::in_the_table(SIZE + 16, 8, Error::Malformed("metadata table"))]
#[case::outside(SIZE + 16, 1 << 20, Error::CutOff)]
#[case::far_outside(SIZE + 16, u32::MAX, Error::Malformed("metadata table"))]
#[case::of_another_length(SIZE + 20, 4, Error::Malformed("metadata table"))]
#[case::parent(ITEMS_AT + 4, 2, Error::Parent)]
#[case::unknown_parameter(ITEMS_AT + 4, 4, Error::UnknownFeatures(4))]
#[case::no_blocks(ITEMS_AT, 0, Error::OutOfRange("block size"))]
#[case::odd_blocks(ITEMS_AT, (1 << 20) + 512, Error::OutOfRange("block size"))]
#[case::small_blocks(ITEMS_AT, 512 << 10, Error::OutOfRange("block size"))]
#[case::large_blocks(ITEMS_AT, 512 << 20, Error::OutOfRange("block size"))]
#[case::odd_size(ITEMS_AT + 8, 513, Error::OutOfRange("virtual size"))]
#[case::no_size(ITEMS_AT + 8, 0, Error::OutOfRange("virtual size"))]
#[case::more_than_its_table(ITEMS_AT + 12, 1 << 16, Error::OutOfRange("block allocation table"))]
#[case::no_sectors(ITEMS_AT + 16, 0, Error::OutOfRange("sector size"))]
#[case::other_sectors(ITEMS_AT + 16, 1024, Error::OutOfRange("sector size"))]
fn other_metadata_is_refused(#[case] at: usize, #[case] value: u32, #[case] expected: Error) {
    let mut file = file();
    put32(&mut file, at, value);
    assert_eq!(vhdx(&file), Err(expected));
}

#[test]
fn items_are_known_unique_or_not_required() {
    let mut parent = file();
    parent[LAST..LAST + 16].copy_from_slice(&PARENT_LOCATOR.to_bytes_le());
    assert_eq!(vhdx(&parent), Err(Error::Parent));
    let mut twice = file();
    twice[LAST..LAST + 16].copy_from_slice(&DISK_SIZE.to_bytes_le());
    assert_eq!(vhdx(&twice), Err(Error::Malformed("metadata table")));
    let mut other = file();
    other[LAST] ^= 1;
    assert_eq!(vhdx(&other), Err(Error::UnknownFeatures(4)));
    put32(&mut other, LAST + 24, 1);
    assert_eq!(vhdx(&other), Ok(1 << 30));
}

#[test]
fn the_table_has_an_entry_for_each_block_and_each_chunk() {
    // 131,072 entries fit. With blocks of 1 MiB, an entry follows each 4096 of them.
    let with = |blocks: u64| {
        let mut file = file();
        file[ITEMS_AT + 8..ITEMS_AT + 16].copy_from_slice(&(blocks << 20).to_le_bytes());
        vhdx(&file)
    };
    let most = 131_072 - 31;
    assert_eq!(with(most), Ok(most << 20));
    let refused = Err(Error::OutOfRange("block allocation table"));
    assert_eq!(with(most + 1), refused);
}

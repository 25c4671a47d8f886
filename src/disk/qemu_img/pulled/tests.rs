//! Which parts of an image a disk has, by its own tables.
//!
//! Invariant: what `qemu-img` prints is given as text.
//! Failure: a test names the parts.

use super::*;

fn part(start: u64, length: u64, present: bool) -> Extent {
    Extent {
        start,
        length,
        present,
        zero: !present,
        data: present,
    }
}

fn needs(parts: &[(u64, u64)]) -> Cover {
    let parts = parts.iter();
    Cover::from(parts.map(|(start, end)| *start..*end).collect())
}

#[test]
fn a_disk_is_complete_when_it_has_each_place_where_the_image_has_data() {
    for (needed, there, is_complete) in [
        (vec![], vec![], true),
        (vec![(0, 10)], vec![part(0, 10, true)], true),
        (
            vec![(0, 10)],
            vec![part(0, 4, true), part(4, 6, true)],
            true,
        ),
        (vec![(2, 4), (6, 8)], vec![part(0, 10, true)], true),
        (
            vec![(2, 4), (6, 8)],
            vec![part(2, 2, true), part(6, 9, true)],
            true,
        ),
        (vec![(0, 10)], vec![], false),
        (vec![(0, 10)], vec![part(0, 10, false)], false),
        (vec![(0, 10)], vec![part(0, 9, true)], false),
        (vec![(0, 10)], vec![part(1, 20, true)], false),
        (
            vec![(0, 10)],
            vec![part(0, 4, true), part(5, 5, true)],
            false,
        ),
        (
            vec![(0, 10)],
            vec![part(0, 4, true), part(4, 1, false), part(5, 5, true)],
            false,
        ),
        (vec![(2, 4), (6, 8)], vec![part(2, 2, true)], false),
        (vec![(2, 4), (6, 8)], vec![part(6, 2, true)], false),
        (vec![(0, 10)], vec![part(u64::MAX, u64::MAX, true)], false),
    ] {
        let mut cover = needs(&needed);
        there.iter().for_each(|part| cover.add(*part));
        assert_eq!(cover.is_complete(), is_complete, "{needed:?} {there:?}");
    }
}

#[test]
fn what_is_missing_is_counted_in_clusters_from_the_first_place_on() {
    const KIB: u64 = 1 << 10;
    for (needed, there, missing) in [
        (vec![], vec![], 0),
        (vec![(0, 128 * KIB)], vec![], 128 * KIB),
        (
            vec![(0, 128 * KIB)],
            vec![part(0, 64 * KIB, true)],
            64 * KIB,
        ),
        (vec![(0, 1), (4 * KIB, 8 * KIB)], vec![], 64 * KIB),
        (vec![(63 * KIB, 65 * KIB)], vec![], 128 * KIB),
        (
            vec![(0, 1), (64 * KIB, 65 * KIB)],
            vec![part(0, 64 * KIB, true)],
            64 * KIB,
        ),
        (vec![(0, 64 * KIB)], vec![part(0, 64 * KIB, true)], 0),
        (vec![(u64::MAX, u64::MAX)], vec![], 64 * KIB - 1),
    ] {
        let mut cover = needs(&needed);
        there.iter().for_each(|part| cover.add(*part));
        assert_eq!(cover.missing(), missing, "{needed:?} {there:?}");
    }
}

/// Zeros that the tables say of a place are as good as data; a hole in an image needs nothing.
#[test]
fn zeros_are_as_the_tables_say() {
    let mut cover = needs(&[(0, 10)]);
    cover.add(Extent {
        zero: true,
        data: false,
        ..part(0, 10, true)
    });
    assert!(cover.is_complete());
    let mut needed = Needed::default();
    for (start, present) in [(0, true), (10, true), (20, false), (30, true)] {
        needed.add(part(start, 10, present));
    }
    needed.add(Extent {
        zero: true,
        ..part(40, 10, true)
    });
    assert_eq!(needed.parts, [0..20, 30..40]);
}

#[test]
fn the_list_is_read_in_any_pieces() {
    let text = concat!(
        r#"[{ "start": 0, "length": 65536, "depth": 0, "present": true, "zero": false, "data": true, "offset": 327680},"#,
        "\n",
        r#"{ "start": 65536, "length": 7, "depth": 0, "present": false, "zero": true, "data": false}]"#,
        "\n"
    );
    for size in [1, 7, text.len()] {
        let mut found = Vec::new();
        let mut take = |part: Extent| found.push((part.start, part.length, part.present));
        let mut lines = Lines::default();
        for piece in text.as_bytes().chunks(size) {
            lines.add(piece, &mut take);
        }
        lines.end(&mut take).unwrap();
        assert_eq!(found, [(0, 65536, true), (65536, 7, false)]);
    }
    for odd in ["x", "[{}]", &"9".repeat(3 * LINE)] {
        let mut lines = Lines::default();
        let mut none = |part: Extent| panic!("{part:?}");
        lines.add(odd.as_bytes(), &mut none);
        let error = lines.end(&mut none).unwrap_err();
        assert!(error.len() < 300, "{error}");
    }
}

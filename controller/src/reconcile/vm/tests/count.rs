//! No row of the workflows is without a test.
//!
//! Invariant: the table names every case; a test begins with the name of its case.
//! Failure: the cases that no test is named after.

/// Rows and how many cases each has; 0: the row is one case.
const ROWS: [(&str, u8); 46] = [
    ("r1", 2),
    ("r2", 3),
    ("r3", 2),
    ("r4", 5),
    ("r5", 5),
    ("x1", 2),
    ("x2", 0),
    ("x3", 2),
    ("x4", 6),
    ("x5", 0),
    ("v1", 7),
    ("f1", 3),
    ("f2", 4),
    // An image has one disk: there are no disks to match by their names.
    ("f3", 1),
    ("f4", 3),
    ("n1", 2),
    ("n2", 0),
    ("n3", 3),
    ("n4", 3),
    ("n5", 0),
    ("c1", 0),
    ("c2", 4),
    ("c3", 0),
    ("c4", 0),
    ("u1", 0),
    ("u2", 0),
    ("u3", 2),
    ("u4", 2),
    ("u5", 3),
    ("u6", 0),
    ("s1", 3),
    ("s2", 4),
    ("s3", 2),
    ("g1", 2),
    ("g2", 3),
    ("g3", 5),
    ("g4", 2),
    ("g5", 4),
    ("w1", 4),
    ("w2", 2),
    ("w3", 3),
    ("w4", 3),
    ("w5", 5),
    ("w6", 2),
    ("h1", 5),
    ("t1", 5),
];
const LAST: (&str, u8) = ("b1", 5);

const SOURCES: [&str; 22] = [
    include_str!("backup_rows.rs"),
    include_str!("cache_rows.rs"),
    include_str!("cache_rows/disk.rs"),
    include_str!("cache_rows/pulls.rs"),
    include_str!("group_rows.rs"),
    include_str!("reconcile_rows.rs"),
    include_str!("delete_rows.rs"),
    include_str!("delete_rows/left_objects.rs"),
    include_str!("normal_rows.rs"),
    include_str!("create_rows.rs"),
    include_str!("create_rows/secrets.rs"),
    include_str!("update_rows.rs"),
    include_str!("status_rows.rs"),
    include_str!("config_rows.rs"),
    include_str!("config_rows/class_edits.rs"),
    include_str!("power_rows.rs"),
    include_str!("power_rows/off.rs"),
    include_str!("power_rows/restarts.rs"),
    include_str!("probe_rows.rs"),
    include_str!("revert_rows.rs"),
    include_str!("snapshot_rows.rs"),
    include_str!("snapshot_rows/deletions.rs"),
];

#[test]
fn every_case_of_every_row_has_a_test_named_after_it() {
    let mut cases = Vec::new();
    for (row, count) in ROWS.into_iter().chain([LAST]) {
        match count {
            0 => cases.push(row.to_owned()),
            n => cases.extend((b'a'..b'a' + n).map(|c| format!("{row}{}", char::from(c)))),
        }
    }
    assert_eq!(cases.len(), 133);
    let is_tested = |case: &String| {
        let name = format!("fn {case}_");
        let found = SOURCES.iter().map(|s| s.matches(&name).count());
        found.sum::<usize>() == 1
    };
    let missing: Vec<_> = cases.iter().filter(|case| !is_tested(case)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

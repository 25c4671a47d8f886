//! Boots as guests count them, with and without reverts and clones.
//!
//! Invariant: each case says when each boot was.
//! Failure: boots that are accepted, or found, against what their history explains.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// Boots of `vm`: second, disk and number.
fn seen(boots: &[(i64, &str, u64)]) -> Seen {
    let mut seen = Seen::default();
    for (number, (second, disk, count)) in boots.iter().enumerate() {
        let boot = Boot {
            disk: (*disk).to_owned(),
            count: *count,
            at: at(*second),
        };
        let file = PathBuf::from(format!("{number}.log"));
        seen.add(file, "vm".to_owned(), Some(boot), true);
    }
    seen
}

fn back(taken: i64, requested: i64, done: Option<i64>) -> Return {
    Return {
        taken: at(taken),
        requested: at(requested),
        done: done.map(at),
    }
}

fn verdict(boots: &[(i64, &str, u64)], creations: u32, returns: &[Return]) -> Result<Testimony> {
    let history = History {
        creations,
        returns: returns.to_vec(),
        source: None,
    };
    seen(boots).verdict(&[("vm".to_owned(), history)].into())
}

fn finding(boots: &[(i64, &str, u64)], creations: u32, returns: &[Return]) -> String {
    verdict(boots, creations, returns).unwrap_err().to_string()
}

#[test]
fn a_disk_counts_up_and_each_birth_has_a_disk() {
    let boots = [(1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "b", 4)];
    let reported = verdict(&boots, 2, &[]).unwrap();
    assert_eq!((reported.boots, reported.disks), (4, 2));
}

#[test]
fn a_boot_that_two_logs_count_is_found() {
    let found = finding(&[(1, "a", 1), (2, "a", 1)], 1, &[]);
    assert!(found.contains("no revert"), "{found}");
    assert!(
        found.contains("0.log") && found.contains("1.log"),
        "{found}"
    );
}

#[test]
fn a_recreated_disk_is_detected() {
    let found = finding(&[(1, "a", 1), (2, "b", 1)], 1, &[]);
    assert!(found.contains("was made 1 times"), "{found}");
}

#[test]
fn a_disk_that_two_machines_booted_is_found() {
    let mut seen = seen(&[(1, "a", 1)]);
    let boot = Boot {
        disk: "a".to_owned(),
        count: 2,
        at: at(2),
    };
    seen.add("other.log".into(), "other".to_owned(), Some(boot), true);
    let history = History {
        creations: 1,
        ..History::default()
    };
    let machines = ["vm", "other"].map(|name| (name.to_owned(), history.clone()));
    let found = seen.verdict(&machines.into()).unwrap_err().to_string();
    assert!(found.contains("had the disk a"), "{found}");
}

#[test]
fn a_revert_takes_the_count_back_to_its_snapshot_once() {
    let boots = [
        (1, "a", 1),
        (5, "a", 2),
        (9, "a", 3),
        (20, "a", 2),
        (30, "a", 3),
    ];
    let once = [back(3, 12, Some(15))];
    assert_eq!(verdict(&boots, 1, &once).unwrap().returns, 1);
    // Also if its end was not seen.
    assert!(verdict(&boots, 1, &[back(3, 12, None)]).is_ok());
    // The count that was requested is that of another snapshot.
    let wrong = [back(10, 12, Some(15))];
    assert!(finding(&boots, 1, &wrong).contains("which has 3 boots"));
    // A second return that was not requested.
    let twice = [&boots[..], &[(40, "a", 2)]].concat();
    assert!(finding(&twice, 1, &once).contains("no revert"));
    let both = [once[0], back(3, 32, Some(35))];
    assert_eq!(verdict(&twice, 1, &both).unwrap().returns, 2);
}

#[test]
fn a_revert_that_changed_nothing_is_found() {
    let boots = [(1, "a", 1), (5, "a", 2), (9, "a", 5), (20, "a", 6)];
    let found = finding(&boots, 1, &[back(3, 12, Some(15))]);
    assert!(found.contains("which has 1 boots"), "{found}");
    // It may still be on its way.
    assert!(verdict(&boots, 1, &[back(3, 12, None)]).is_ok());
}

#[test]
fn a_boot_before_the_end_of_a_revert_was_seen_has_its_state_already() {
    let boots = [
        (1, "a", 1),
        (20, "a", 2),
        (40, "a", 3),
        (50, "a", 4),
        (60, "a", 5),
    ];
    assert!(verdict(&boots, 1, &[back(3, 12, Some(55))]).is_ok());
}

#[test]
fn a_disk_that_had_no_name_at_its_snapshot_gets_another_one() {
    let boots = [(5, "a", 1), (20, "b", 1)];
    assert!(verdict(&boots, 1, &[back(2, 10, Some(15))]).is_ok());
    assert!(finding(&boots, 1, &[back(6, 10, Some(15))]).contains("was made 1 times"));
}

#[test]
fn a_boot_that_was_cut_short_leaves_a_gap_after_a_revert() {
    let boots = [(1, "a", 1), (9, "a", 2), (20, "a", 4)];
    let mut seen = seen(&boots);
    let history = |returns: &[Return]| -> BTreeMap<String, History> {
        let history = History {
            creations: 1,
            returns: returns.to_vec(),
            source: None,
        };
        [("vm".to_owned(), history)].into()
    };
    let machines = history(&[back(3, 12, Some(15))]);
    assert!(seen.verdict(&machines).is_err());
    // A guest that went on from its memory counted no boot.
    seen.add("resumed.log".into(), "vm".to_owned(), None, true);
    assert!(seen.verdict(&machines).is_err());
    seen.add("short.log".into(), "vm".to_owned(), None, false);
    assert!(seen.verdict(&machines).is_ok());
}

#[test]
fn a_clone_goes_on_from_the_boots_of_its_snapshot() {
    let verdict = |count, disk: &str, source: Option<&str>| {
        let mut seen = seen(&[(1, "a", 1), (5, "a", 2), (9, "a", 3)]);
        let boot = Boot {
            disk: disk.to_owned(),
            count,
            at: at(20),
        };
        seen.add("clone.log".into(), "clone".to_owned(), Some(boot), true);
        let made = History {
            creations: 1,
            ..History::default()
        };
        let source = source.map(|machine| Source {
            machine: machine.to_owned(),
            taken: at(6),
        });
        let clone = History {
            source,
            ..made.clone()
        };
        seen.verdict(&[("vm".to_owned(), made), ("clone".to_owned(), clone)].into())
    };
    assert!(verdict(3, "a", Some("vm")).is_ok());
    // The guest of the snapshot had not given its disk a name.
    assert!(verdict(1, "b", Some("vm")).is_ok());
    for (count, disk, source) in [
        (1, "a", Some("vm")),
        (9, "a", Some("vm")),
        (9, "b", Some("vm")),
        (3, "a", None),
        (3, "a", Some("other")),
    ] {
        assert!(
            verdict(count, disk, source).is_err(),
            "{count} {disk} {source:?}"
        );
    }
}

#[test]
fn a_copy_that_was_made_between_a_revert_and_the_next_boot_has_the_reverted_state() {
    let verdict = |count| {
        let mut seen = seen(&[(1, "a", 1), (5, "a", 2), (9, "a", 5), (30, "a", 2)]);
        let boot = Boot {
            disk: "a".to_owned(),
            count,
            at: at(40),
        };
        seen.add("copy.log".into(), "copy".to_owned(), Some(boot), true);
        let source = History {
            creations: 1,
            returns: vec![back(3, 12, Some(15))],
            source: None,
        };
        let copy = History {
            creations: 1,
            returns: Vec::new(),
            source: Some(Source {
                machine: "vm".to_owned(),
                taken: at(20),
            }),
        };
        seen.verdict(&[("vm".to_owned(), source), ("copy".to_owned(), copy)].into())
    };
    assert_eq!(verdict(2).unwrap().copies, 1);
    // The revert may not have been done yet.
    assert!(verdict(6).is_ok());
    assert!(verdict(9).is_err());
}

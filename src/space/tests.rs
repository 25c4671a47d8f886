//! Claims on the file system of a scratch directory: amounts are chosen relative to what is free.
//!
//! Invariant: other programs write to that file system, too, so that figures are compared with
//! large margins.
//! Failure: none expected.

use std::fs::File;

use super::*;

const GIB: u64 = 1 << 30;

/// Space of which about `room` bytes are beside the reserve.
fn space(dir: &Path, room: u64) -> Space {
    Space::new(free(&dir.join("file")).unwrap() - room)
}

fn is_full(claimed: &Result<Claim, Full>) -> bool {
    matches!(claimed, Err(Full::NoSpace { .. }))
}

#[test]
fn claims_together_are_no_more_than_what_is_free_beside_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let space = space(dir.path(), 6 * GIB);
    let [one, two, three] = ["1", "2", "3"].map(|name| dir.path().join(name));
    let first = space.claim(&one, 3 * GIB, 3 * GIB).unwrap();
    assert!(is_full(&space.clone().claim(&two, 4 * GIB, 4 * GIB)));
    let second = space.claim(&two, GIB, 6 * GIB).unwrap();
    assert!(second.bytes() < 4 * GIB, "what is left: {}", second.bytes());
    assert!(is_full(&space.claim(&three, GIB, GIB)), "nothing is left");
    assert!(space.check(&three).is_ok(), "the disk itself is not full");
    drop(first);
    drop(space.claim(&three, 2 * GIB, 2 * GIB).unwrap());
}

#[test]
fn the_reserve_is_named_only_where_the_claim_would_fit_without_it() {
    let full = |free| Full::NoSpace {
        needed: 10,
        free,
        reserve: 90,
        claimed: 5,
    };
    assert_eq!(
        full(15).because(),
        ": 10 bytes are needed and 15 are free, but images.reserve keeps 90 of them free"
    );
    assert_eq!(full(14).because(), "");
    let failed = io::Error::other("broken");
    assert_eq!(Full::Measure(failed).because(), "");
}

#[test]
fn what_is_written_already_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("1");
    let two = dir.path().join("2");
    let most = 3 * GIB;
    let space = space(dir.path(), most + 2 * GIB);
    let claim = space.claim(&one, most, most).unwrap();
    let file = File::create(&one).unwrap();
    nix::fcntl::posix_fallocate(&file, 0, 2 << 30).unwrap();
    assert!(is_full(&space.claim(&two, 3 * GIB, 3 * GIB)));
    space.claim(&two, GIB, GIB).unwrap();
    drop(claim);
    // It goes on: what is there needs no more space.
    assert!(space.claim(&one, most, most).is_ok());
}

#[test]
fn a_claim_grows_as_far_as_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let space = space(dir.path(), 4 * GIB);
    let claim = space.claim(&dir.path().join("1"), 0, 0).unwrap();
    claim.at_least(2 * GIB).unwrap();
    assert_eq!(claim.bytes(), 2 * GIB);
    claim.at_least(GIB).unwrap();
    assert_eq!(claim.bytes(), 2 * GIB, "it never shrinks");
    assert!(claim.at_least(6 * GIB).is_err());
    assert_eq!(claim.bytes(), 2 * GIB);
}

#[test]
fn a_claim_grows_with_its_file_until_nothing_is_left_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["1", "2"].map(|name| dir.path().join(name));
    let space = space(dir.path(), 6 * GIB);
    let claim = space.claim(&one, GIB, GIB).unwrap();
    claim.grow(2 * GIB, 5 * GIB).unwrap();
    assert_eq!(claim.bytes(), 2 * GIB);
    let file = File::create(&one).unwrap();
    nix::fcntl::posix_fallocate(&file, 0, 2 << 30).unwrap();
    claim.grow(8 * GIB, 3 * GIB).unwrap();
    assert_eq!(claim.bytes(), 3 * GIB, "more than the file may have");
    claim.grow(0, 3 * GIB).unwrap();
    assert_eq!(claim.bytes(), 3 * GIB, "it never shrinks");
    let other = space.claim(&two, GIB, 6 * GIB).unwrap();
    claim.grow(2 * GIB, 8 * GIB).unwrap();
    assert!(claim.bytes() < 4 * GIB, "what is left: {}", claim.bytes());
    nix::fcntl::posix_fallocate(&file, 0, 4 << 30).unwrap();
    let refused = claim.grow(GIB, 8 * GIB);
    assert!(matches!(refused, Err(Full::NoSpace { .. })), "{refused:?}");
    drop(other);
    claim.grow(GIB, 8 * GIB).unwrap();
}

#[test]
fn a_file_system_with_no_more_than_its_reserve_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let space = Space::new(u64::MAX);
    let file = dir.path().join("1");
    assert!(space.check(&file).is_err());
    for (least, most) in [(0, 0), (0, 1), (1, 1)] {
        assert!(is_full(&space.claim(&file, least, most)), "{least} {most}");
    }
}

#[test]
fn claims_that_change_between_look_and_lock_count_at_their_largest() {
    let claimed = |bytes| Claimed {
        device: 1,
        file: PathBuf::new(),
        bytes,
    };
    let look = Look {
        version: 0,
        device: 1,
        free: 100,
        claims: [(1, (10, 4)), (2, (20, 0)), (3, (30, 30))].into(),
    };
    let elsewhere = Claimed {
        device: 2,
        ..claimed(99)
    };
    // The first grew, the second ended, the third is as it was, the fourth is new; the fifth is on
    // another file system.
    let now = Claims {
        all: [
            (1, claimed(15)),
            (3, claimed(30)),
            (4, claimed(7)),
            (5, elsewhere),
        ]
        .into(),
        ..Claims::default()
    };
    assert_eq!(look.claimed(&now, None), 11 + 20 + 7);
    assert_eq!(look.claimed(&now, Some(4)), 11 + 20);
}

#[test]
fn a_claim_can_end_while_another_is_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let space = space(dir.path(), 2 * GIB);
    let claim = space.claim(&dir.path().join("1"), GIB, GIB).unwrap();
    std::thread::scope(|scope| {
        let grown = space.with_room(&dir.path().join("2"), None, 0, |_, _, _| ());
        grown.unwrap();
        // A look holds no lock.
        let look = space.look(&dir.path().join("2")).unwrap();
        let ended = scope.spawn(|| drop(claim));
        ended.join().unwrap();
        assert_eq!(look.claimed(&space.claims(), None), GIB);
    });
    assert!(space.claims().all.is_empty());
}

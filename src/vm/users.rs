//! The users that machines run as.
//!
//! Invariant: no two containers whose rows exist have the same user; the container's row records it
//! before any file belongs to it. While the daemon runs, a removed container's user is chosen again
//! only after all the others of the range; after a restart, the search starts behind the highest
//! user that a container has.
//! Failure: [`Exhausted`] when every user of the range has a container.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// User and group of files and processes, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group, which all machines share: the one that may read images and open `/dev/kvm`.
    pub gid: u32,
}

/// The numbers that machines may have as users; none when they all run as one user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UidRange {
    /// The first.
    pub first: u32,
    /// How many; 0: all machines run as QEMU's user.
    pub count: u32,
}

/// Every user of the range has a container.
#[derive(Debug, thiserror::Error)]
#[error("all {0} users for machines have a container: remove containers, or raise vm.uid_count")]
pub struct Exhausted(u32);

/// Chooses users.
#[derive(Debug, Default)]
pub(in crate::vm) struct Users {
    /// The number that was chosen last, relative to the range's first.
    last: Mutex<Option<u32>>,
    /// Held from a choice until the row records it, so that the next choice sees it.
    pub(in crate::vm) turn: tokio::sync::Mutex<()>,
}

impl Users {
    /// A user of `range` that is not in `taken`; `None` when there is no range.
    pub(in crate::vm) fn choose(
        &self,
        range: UidRange,
        taken: &HashSet<u32>,
    ) -> Result<Option<u32>, Exhausted> {
        if range.count == 0 {
            return Ok(None);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // After a restart the search starts behind the highest one in use.
        let newest = || {
            let offsets = taken.iter().filter_map(|uid| uid.checked_sub(range.first));
            offsets.filter(|offset| *offset < range.count).max()
        };
        let from = last.or_else(newest).map_or(0, |last| u64::from(last) + 1);
        let count = u64::from(range.count);
        let mut candidates = (0..count).map(|step| (from + step) % count);
        let free = candidates.find_map(|offset| {
            let offset = u32::try_from(offset).ok()?;
            let uid = range.first.checked_add(offset)?;
            (!taken.contains(&uid)).then_some((offset, uid))
        });
        let (offset, uid) = free.ok_or(Exhausted(range.count))?;
        *last = Some(offset);
        Ok(Some(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: UidRange = UidRange {
        first: 1000,
        count: 3,
    };

    fn choose(users: &Users, taken: &[u32]) -> Option<u32> {
        let taken = taken.iter().copied().collect();
        users.choose(RANGE, &taken).ok().flatten()
    }

    #[test]
    fn a_user_is_given_out_again_only_after_all_others() {
        let users = Users::default();
        let given: Vec<_> = (0..4).map(|_| choose(&users, &[])).collect();
        assert_eq!(given, [Some(1000), Some(1001), Some(1002), Some(1000)]);
        assert_eq!(choose(&users, &[1001]), Some(1002));
    }

    #[test]
    fn a_restart_continues_behind_the_highest_user_in_use() {
        assert_eq!(choose(&Users::default(), &[1001]), Some(1002));
        assert_eq!(choose(&Users::default(), &[1002]), Some(1000));
        // A range that the configuration had before.
        assert_eq!(choose(&Users::default(), &[7, 5000]), Some(1000));
    }

    #[test]
    fn a_full_range_is_refused_and_no_range_gives_no_user() {
        let users = Users::default();
        let all = [1000, 1001, 1002].into_iter().collect();
        let refused = users.choose(RANGE, &all).unwrap_err().to_string();
        assert!(refused.contains("vm.uid_count"), "{refused}");
        let none = users.choose(UidRange::default(), &HashSet::new());
        assert_eq!(none.unwrap(), None);
    }
}

//! The users that helpers run as: one for each run.
//!
//! Invariant: no two runs of this process have the same user at a time, and no machine has one of them. The user of a
//! run that has ended is chosen again only after all others.
//! Failure: [`Exhausted`] while every user has a run.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// How many users there are.
const COUNT: u32 = 4096;

/// The first of them: the last numbers before those that programs take for negative.
pub(crate) const FIRST: u32 = 0x7fff_ffff - COUNT;

static USERS: LazyLock<Users> = LazyLock::new(Users::new);

/// Every user has a run.
#[derive(Debug, thiserror::Error)]
#[error("all {COUNT} users for helper programs have one that runs: try again later")]
pub(crate) struct Exhausted;

/// The users.
#[derive(Debug)]
struct Users(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The next one, relative to the first.
    next: u32,
    taken: BTreeSet<u32>,
}

/// A user that no other run has until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    uid: u32,
    of: &'static Users,
}

impl Turn {
    pub(super) fn begin() -> Result<Self, Exhausted> {
        let uid = USERS.choose()?;
        Ok(Self { uid, of: &USERS })
    }

    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.give_back(self.uid);
    }
}

impl Users {
    fn new() -> Self {
        // A run of an earlier process may not have ended.
        let random = RandomState::new().hash_one(std::process::id()) % u64::from(COUNT);
        Self(Mutex::new(State {
            next: u32::try_from(random).unwrap_or_default(),
            taken: BTreeSet::new(),
        }))
    }

    fn choose(&self) -> Result<u32, Exhausted> {
        let mut state = self.lock();
        let next = state.next;
        let mut candidates = (0..COUNT).map(|step| (next + step) % COUNT);
        let free = candidates.find(|offset| !state.taken.contains(offset));
        let free = free.ok_or(Exhausted)?;
        state.taken.insert(free);
        state.next = (free + 1) % COUNT;
        Ok(FIRST + free)
    }

    fn give_back(&self, uid: u32) {
        self.lock().taken.remove(&(uid - FIRST));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_runs_have_the_same_user_and_one_that_ended_comes_last() {
        let users = Users::new();
        let all: BTreeSet<_> = (0..COUNT).map(|_| users.choose().unwrap()).collect();
        assert_eq!(all.len(), usize::try_from(COUNT).unwrap());
        assert!(all.iter().all(|uid| (FIRST..FIRST + COUNT).contains(uid)));
        users.choose().unwrap_err();
        for uid in [FIRST + 7, FIRST + 3] {
            users.give_back(uid);
            assert_eq!(users.choose().unwrap(), uid);
        }
        let users = Users::new();
        let first = users.choose().unwrap();
        users.give_back(first);
        let later = (1..COUNT).map(|_| users.choose().unwrap());
        assert!(later.into_iter().all(|uid| uid != first));
        assert_eq!(users.choose().unwrap(), first);
    }
}

//! A bounded number of places that owners share fairly.
//!
//! Invariant: there are never more holders than places, and no owner holds more than its share. A
//! place that becomes free goes to the waiting owner that holds fewest, and there to its oldest
//! request: whatever others hold and request, an owner that holds none is next.
//! Failure: none. A wait has no limit of its own; a request that is dropped leaves nothing.
//!
//! # Example
//!
//! ```
//! use fair::{Bounds, Owner, Places};
//!
//! let places = Places::new(Bounds { all: 3, per_owner: 2 });
//! let owner = Owner::from("tenant-a");
//! let held = [places.try_take(&owner), places.try_take(&owner)];
//! assert!(places.try_take(&owner).is_none(), "its share is two");
//! assert!(places.try_take(&Owner::from("tenant-b")).is_some());
//! # drop(held);
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Among whom places are shared, such as a namespace.
pub type Owner = Arc<str>;

/// How many places there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// All places; one at least.
    pub all: usize,
    /// Those that one owner may hold; one at least.
    pub per_owner: usize,
}

/// Places; clones are the same.
#[derive(Debug, Clone)]
pub struct Places(Arc<Inner>);

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    owner: Owner,
}

#[derive(Debug)]
struct Inner {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Without owners that hold none.
    held: HashMap<Owner, usize>,
    /// The oldest first. None of them could have a place now.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    owner: Owner,
    grant: oneshot::Sender<Place>,
}

impl Places {
    /// Places of which none is taken.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let bounds = Bounds {
            all: bounds.all.max(1),
            per_owner: bounds.per_owner.max(1),
        };
        Self(Arc::new(Inner {
            bounds,
            state: Mutex::default(),
        }))
    }

    /// A place, if one is free for this owner now.
    #[must_use]
    pub fn try_take(&self, owner: &Owner) -> Option<Place> {
        let is_taken = self.state().take(owner, self.0.bounds);
        is_taken.then(|| self.place(owner))
    }

    /// A place, once one is free for this owner.
    pub async fn take(&self, owner: &Owner) -> Place {
        loop {
            let granted = {
                let mut state = self.state();
                if state.take(owner, self.0.bounds) {
                    drop(state);
                    return self.place(owner);
                }
                let (grant, granted) = oneshot::channel();
                let owner = Arc::clone(owner);
                state.waiting.push_back(Waiting { owner, grant });
                granted
            };
            // Requests are dropped only by those who wait.
            if let Ok(place) = granted.await {
                return place;
            }
        }
    }

    /// How many places are free, for owners that have not had their share.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.bounds.all - self.state().taken
    }

    fn place(&self, owner: &Owner) -> Place {
        Place {
            places: self.clone(),
            owner: Arc::clone(owner),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = {
            let mut state = self.places.state();
            state.give_back(&self.owner);
            state.next(self.places.0.bounds)
        };
        if let Some(Waiting { owner, grant }) = next {
            // A request that was dropped meanwhile gives its place to the one after it.
            drop(grant.send(self.places.place(&owner)));
        }
    }
}

impl State {
    fn held(&self, owner: &Owner) -> usize {
        self.held.get(owner).copied().unwrap_or_default()
    }

    /// Counts a place for this owner, if one is free for it.
    fn take(&mut self, owner: &Owner, bounds: Bounds) -> bool {
        let is_free = self.taken < bounds.all && self.held(owner) < bounds.per_owner;
        if is_free {
            self.taken += 1;
            *self.held.entry(Arc::clone(owner)).or_default() += 1;
        }
        is_free
    }

    fn give_back(&mut self, owner: &Owner) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(held) = self.held.get_mut(owner) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(owner);
            }
        }
    }

    /// The request that gets a place which has become free, counted already.
    fn next(&mut self, bounds: Bounds) -> Option<Waiting> {
        self.waiting.retain(|request| !request.grant.is_closed());
        let all = self.waiting.iter().enumerate();
        let next = all.min_by_key(|(_, request)| self.held(&request.owner))?.0;
        let owner = Arc::clone(&self.waiting[next].owner);
        let is_free = self.take(&owner, bounds);
        is_free.then(|| self.waiting.remove(next)).flatten()
    }
}

#[cfg(test)]
mod tests;

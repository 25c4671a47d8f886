//! The turns of guests that are queried.
//!
//! Invariant: a guest has one turn at a time. [`BOUNDS`] says how many have theirs at once, and how
//! many of one namespace: guests that answer slowly delay others of their own namespace, and those of
//! another one by a single turn at most.
//! Failure: none; turns end when this is dropped.

use std::collections::HashMap;

use fair::{Bounds, Owner, Places};
use podspec::ContainerId;
use tokio::task::{AbortHandle, JoinSet};

/// Turns at once, of guests that may be silent until a deadline: as many as libvirt has calls to agents by
/// default, so that a turn does not wait there.
const BOUNDS: Bounds = Bounds {
    all: 8,
    per_owner: 4,
};

/// Turns that have begun or wait.
#[derive(Debug)]
pub(super) struct Turns {
    places: Places,
    guests: HashMap<ContainerId, AbortHandle>,
    tasks: JoinSet<ContainerId>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            places: Places::new(BOUNDS),
            guests: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }
}

impl Turns {
    /// Queries a guest once it has a place, unless it has a turn already, or waits for it.
    pub(super) fn begin(
        &mut self,
        id: &ContainerId,
        namespace: Owner,
        query: impl Future<Output = ()> + Send + 'static,
    ) {
        if self.guests.contains_key(id) {
            return;
        }
        let places = self.places.clone();
        let guest = id.clone();
        let task = self.tasks.spawn(async move {
            let _place = places.take(&namespace).await;
            query.await;
            guest
        });
        self.guests.insert(id.clone(), task);
    }

    /// Waits for the end of a turn; `None` when there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        match self.tasks.join_next().await? {
            Ok(id) => drop(self.guests.remove(&id)),
            // Of one that panicked the guest is not known.
            Err(_) => self.guests.retain(|_, task| !task.is_finished()),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    /// What a guest takes that answers each question at the last moment.
    const SLOW: Duration = Duration::from_secs(7);

    /// Begins slow turns of so many guests.
    fn flood(turns: &mut Turns, namespace: &str, guests: usize) {
        for _ in 0..guests {
            // Its time begins with its turn.
            let slow = async { tokio::time::sleep(SLOW).await };
            turns.begin(&ContainerId::generate(), namespace.into(), slow);
        }
    }

    /// How long a guest of another namespace waits for its turn.
    async fn waits(turns: &mut Turns) -> Duration {
        let begun = Instant::now();
        let (starts, mut started) = oneshot::channel();
        turns.begin(&ContainerId::generate(), "other".into(), async move {
            starts.send(()).unwrap();
        });
        loop {
            tokio::select! {
                biased;
                started = &mut started => {
                    started.unwrap();
                    return begun.elapsed();
                }
                Some(()) = turns.ended() => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn forty_slow_guests_of_one_namespace_delay_no_guest_of_another() {
        let mut turns = Turns::default();
        flood(&mut turns, "slow", 40);
        tokio::task::yield_now().await;
        assert_eq!(waits(&mut turns).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_guests_of_several_namespaces_delay_another_by_one_turn() {
        let mut turns = Turns::default();
        for namespace in ["a", "b", "c"] {
            flood(&mut turns, namespace, 40);
        }
        tokio::task::yield_now().await;
        assert_eq!(turns.places.free(), 0);
        assert!(waits(&mut turns).await <= SLOW);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_has_one_turn_at_a_time() {
        let mut turns = Turns::default();
        let id = ContainerId::generate();
        let count = |turns: &Turns| turns.tasks.len();
        for _ in 0..3 {
            turns.begin(&id, "n".into(), tokio::time::sleep(SLOW));
        }
        assert_eq!(count(&turns), 1);
        turns.ended().await.unwrap();
        assert!(turns.ended().await.is_none());
        turns.begin(&id, "n".into(), async {});
        assert_eq!(count(&turns), 1);
    }
}

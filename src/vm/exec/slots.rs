//! The places of commands.
//!
//! Invariant: a machine has a bounded number of commands, so that one with commands that hang takes
//! nothing from the others. The node has a bounded number of those that the QEMU guest agent runs,
//! which hold two streams of output; of these, the machines of one namespace have a share. In both,
//! some places are for short commands alone, such as probes: commands of hours take none of them.
//! A place that becomes free goes to the namespace that has fewest. Commands of `vmlet-guest` take
//! no place of the node: their machine bounds how many there are, and their windows what they hold.
//! Failure: none; a command without a place waits. For one in its machine it waits up to its caller's
//! deadline, and two minutes at most: the guest itself fills its machine with commands that hang.
//! For one on the node it waits on account of other machines, so that no deadline of the command
//! includes it.

use std::time::Duration;

use fair::{Bounds, Owner, Place, Places};
use podspec::ContainerId;

/// Commands in one machine.
const PER_MACHINE: usize = 16;
/// Those of them that may be long.
const LONG_PER_MACHINE: usize = 12;
/// Commands on the node.
const PER_NODE: usize = 128;
/// Those of them that may be long.
const LONG_PER_NODE: usize = 96;
/// Commands in the machines of one namespace.
const PER_NAMESPACE: usize = 48;
/// Those of them that may be long.
const LONG_PER_NAMESPACE: usize = 32;
/// The longest time-out of a short command: as long as others wait for a place on the node, so that
/// one of those that short commands have is free in time, unless their guests hang.
pub(super) const SHORT: Duration = Duration::from_secs(30);

/// How long a command may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// [`SHORT`] at most.
    Short,
    /// More, or without a limit.
    Long,
}

/// Places for commands.
#[derive(Debug)]
pub(in crate::vm) struct Slots {
    machines: Kinds,
    node: Kinds,
}

/// Places of which long commands have a part.
#[derive(Debug)]
struct Kinds {
    all: Places,
    long: Places,
}

/// Held while a command runs.
#[derive(Debug)]
pub(super) struct Slot {
    _long: Option<Place>,
    _any: Place,
}

impl Length {
    /// Of a command with this time-out.
    pub(super) fn from_timeout(timeout: Option<Duration>) -> Self {
        match timeout {
            Some(timeout) if timeout <= SHORT => Self::Short,
            Some(_) | None => Self::Long,
        }
    }
}

impl Default for Slots {
    fn default() -> Self {
        let places = |all, per_owner| Places::new(Bounds { all, per_owner });
        Self {
            machines: Kinds {
                all: places(usize::MAX, PER_MACHINE),
                long: places(usize::MAX, LONG_PER_MACHINE),
            },
            node: Kinds {
                all: places(PER_NODE, PER_NAMESPACE),
                long: places(LONG_PER_NODE, LONG_PER_NAMESPACE),
            },
        }
    }
}

impl Slots {
    /// Waits for a place in this machine.
    pub(super) async fn in_machine(&self, id: &ContainerId, length: Length) -> Slot {
        self.machines.take(&id.as_str().into(), length).await
    }

    /// Waits for a place on the node, for a machine of this namespace.
    pub(super) async fn on_node(&self, namespace: &Owner, length: Length) -> Slot {
        self.node.take(namespace, length).await
    }

    /// Nothing is free in the machine until what this returns is dropped.
    #[cfg(test)]
    pub(super) async fn fill_machine(&self, id: &ContainerId) -> Vec<Slot> {
        let mut held = Vec::new();
        for _ in 0..PER_MACHINE {
            held.push(self.in_machine(id, Length::Short).await);
        }
        held
    }

    /// Nothing is free for machines of this namespace until what this returns is dropped.
    #[cfg(test)]
    pub(super) async fn fill(&self, namespace: &str) -> Vec<Slot> {
        let mut held = Vec::new();
        for _ in 0..PER_NAMESPACE {
            held.push(self.on_node(&namespace.into(), Length::Short).await);
        }
        held
    }
}

impl Kinds {
    async fn take(&self, owner: &Owner, length: Length) -> Slot {
        // Those that wait for the second place leave enough of it to short commands.
        let long = match length {
            Length::Short => None,
            Length::Long => Some(self.long.take(owner).await),
        };
        Slot {
            _long: long,
            _any: self.all.take(owner).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// Requests that wait or run until what this returns is dropped; all have been polled.
    async fn requests(
        slots: &Arc<Slots>,
        namespace: &str,
        length: Length,
        count: usize,
    ) -> JoinSet<()> {
        let mut all = JoinSet::new();
        let polled = Arc::<AtomicUsize>::default();
        for _ in 0..count {
            let slots = Arc::clone(slots);
            let polled = Arc::clone(&polled);
            let namespace = Owner::from(namespace);
            all.spawn(async move {
                polled.fetch_add(1, Ordering::Relaxed);
                let _slot = slots.on_node(&namespace, length).await;
                std::future::pending::<()>().await;
            });
        }
        while polled.load(Ordering::Relaxed) < count {
            yield_now().await;
        }
        all
    }

    fn is_free(slots: &Slots, namespace: &str, length: Length) -> bool {
        slots
            .on_node(&namespace.into(), length)
            .now_or_never()
            .is_some()
    }

    #[test]
    fn a_command_without_a_limit_is_a_long_one() {
        let second = Duration::from_secs(1);
        assert_eq!(Length::from_timeout(None), Length::Long);
        assert_eq!(Length::from_timeout(Some(SHORT + second)), Length::Long);
        assert_eq!(Length::from_timeout(Some(SHORT)), Length::Short);
    }

    #[tokio::test]
    async fn a_machine_full_of_commands_leaves_places_to_others_and_to_its_own_short_ones() {
        let slots = Slots::default();
        let busy = ContainerId::generate();
        let idle = ContainerId::generate();
        let mut held = Vec::new();
        for _ in 0..LONG_PER_MACHINE {
            held.push(slots.in_machine(&busy, Length::Long).await);
        }
        let has_place = |id, length| slots.in_machine(id, length).now_or_never();
        assert!(has_place(&busy, Length::Long).is_none());
        for _ in LONG_PER_MACHINE..PER_MACHINE {
            held.push(has_place(&busy, Length::Short).expect("a place of short ones"));
        }
        assert!(has_place(&busy, Length::Short).is_none());
        assert!(has_place(&idle, Length::Long).is_some());
        held.remove(0);
        assert!(has_place(&busy, Length::Long).is_some());
    }

    #[tokio::test]
    async fn long_commands_of_one_namespace_leave_places_to_others_and_to_its_own_probes() {
        let slots = Arc::default();
        // Eight machines, full of commands of hours.
        let mut greedy = requests(&slots, "greedy", Length::Long, 8 * PER_MACHINE).await;
        assert!(is_free(&slots, "other", Length::Long));
        assert!(is_free(&slots, "other", Length::Short));
        assert!(is_free(&slots, "greedy", Length::Short));
        assert!(!is_free(&slots, "greedy", Length::Long));
        greedy.shutdown().await;
        assert!(is_free(&slots, "greedy", Length::Long));
    }

    #[tokio::test]
    async fn long_commands_of_all_namespaces_leave_places_to_probes() {
        let slots = Arc::default();
        let mut held = Vec::new();
        for namespace in ["a", "b", "c", "d"] {
            held.push(requests(&slots, namespace, Length::Long, PER_NODE).await);
        }
        assert!(!is_free(&slots, "e", Length::Long));
        held.push(requests(&slots, "a", Length::Short, PER_NODE).await);
        // "a" has had its share of all places.
        assert!(!is_free(&slots, "a", Length::Short));
        assert!(is_free(&slots, "e", Length::Short));
    }
}

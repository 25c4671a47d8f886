//! Decides which machines of a set are created and which are deleted: pure.
//!
//! ```text
//! index   0 … partition … replicas … replicas + surge …
//!         └── created where missing ──┘└ during an update ┘└── deleted, highest first
//!             └──── replaced ────┘
//! ```
//!
//! Invariant: no index from `replicas + surge` on is created. An update deletes no available machine where
//! fewer than `replicas - unavailable` available ones would be left, not counting indices that are off, and
//! it is under way at no more than
//! `unavailable + surge` indices at a time: a template that gives no available machine costs no more
//! machines than that. What the user scales away is deleted at once. A machine that the set did not make is
//! never replaced.
//! Failure: none; an index stays without a machine while another object has its name.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// Most machines that a pass creates, and most that it deletes.
pub(super) const BURST: usize = 32;

/// A machine of the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts, each independent of the others"
)]
pub(super) struct Replica {
    pub(super) is_deleting: bool,
    /// It was made from some template of the set, as far as is known.
    pub(super) has_revision: bool,
    /// It was made from the present template.
    pub(super) is_updated: bool,
    pub(super) is_ready: bool,
    /// It has been ready for long enough.
    pub(super) is_available: bool,
    /// Its specification has it off, and it is not available.
    pub(super) is_off: bool,
}

/// What has the name of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A machine of the set.
    Replica(Replica),
    /// A machine that is not of the set.
    Taken,
}

/// What the set is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) replicas: u32,
    /// Machines beyond that during an update.
    pub(super) surge: u32,
    /// Machines that an update may make unavailable.
    pub(super) unavailable: u32,
    /// Machines of earlier templates are replaced, from this index on.
    pub(super) replace_from: Option<u32>,
}

/// Why a machine is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The set is to have fewer machines.
    ScaledDown,
    /// It was made from an earlier template.
    Outdated,
    /// It was additional during an update.
    UpdateEnded,
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// All indices without a machine, lowest first.
    pub(super) creates: Vec<u32>,
    /// Indices, in the order in which they are to be deleted.
    pub(super) deletes: Vec<(u32, Cause)>,
    /// Deletes are left for the next pass.
    pub(super) is_cut: bool,
}

/// The machines of the set by index.
pub(super) type Slots = BTreeMap<u32, Slot>;

/// The next steps from this state.
pub(super) fn plan(demand: &Demand, slots: &Slots) -> Plan {
    let state = State { demand, slots };
    let end = demand.replicas + state.surge();
    let mut plan = Plan::default();
    let missing = (0..end).filter(|index| !slots.contains_key(index));
    plan.creates.extend(missing);
    let mut spare = state.spare();
    state.scale_down(end, &mut spare, &mut plan);
    state.replace(end, &mut spare, &mut plan);
    plan.is_cut = plan.deletes.len() > BURST;
    plan.deletes.truncate(BURST);
    plan
}

/// How many machines are available, and how many must be.
struct Spare {
    available: usize,
    least: usize,
}

impl Spare {
    /// Whether an update may delete this machine.
    const fn allows(&self, replica: Replica) -> bool {
        !replica.is_available || self.available > self.least
    }

    /// This machine is to be deleted.
    fn take(&mut self, replica: Replica) {
        self.available = self.available.saturating_sub(replica.is_available.into());
    }
}

struct State<'a> {
    demand: &'a Demand,
    slots: &'a Slots,
}

impl State<'_> {
    fn living(&self) -> impl DoubleEndedIterator<Item = (u32, Replica)> + '_ {
        self.slots.iter().filter_map(|(index, slot)| match slot {
            Slot::Replica(replica) if !replica.is_deleting => Some((*index, *replica)),
            Slot::Replica(_) | Slot::Taken => None,
        })
    }

    fn is_outdated(&self, index: u32, replica: Replica) -> bool {
        let from = self.demand.replace_from;
        replica.has_revision && !replica.is_updated && from.is_some_and(|from| index >= from)
    }

    /// How many additional machines the update uses now.
    fn surge(&self) -> u32 {
        let outdated = self
            .living()
            .take_while(|(index, _)| *index < self.demand.replicas)
            .filter(|(index, replica)| self.is_outdated(*index, *replica));
        let outdated = u32::try_from(outdated.count()).unwrap_or(u32::MAX);
        self.demand.surge.min(outdated)
    }

    /// What an update may take. Machines that are off have no part in it.
    fn spare(&self) -> Spare {
        let least = self.demand.replicas.saturating_sub(self.demand.unavailable);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let of_set = self
            .living()
            .take_while(|(index, _)| *index < self.demand.replicas);
        let off = of_set.filter(|(_, replica)| replica.is_off).count();
        let available = self.living().filter(|(_, replica)| replica.is_available);
        Spare {
            available: available.count(),
            least: least.saturating_sub(off),
        }
    }

    /// What is beyond the end. Machines that an update may have added stay until others are available.
    fn scale_down(&self, end: u32, spare: &mut Spare, plan: &mut Plan) {
        let of_update = self.demand.replicas
            + match self.demand.replace_from {
                Some(_) => self.demand.surge,
                None => 0,
            };
        for (index, replica) in self.living().rev().take_while(|(index, _)| *index >= end) {
            let cause = if index >= of_update {
                Cause::ScaledDown
            } else if spare.allows(replica) {
                Cause::UpdateEnded
            } else {
                continue;
            };
            spare.take(replica);
            plan.deletes.push((index, cause));
        }
    }

    /// Indices with a machine that is missing, on its way out, or new and not available yet.
    fn in_progress(&self) -> usize {
        let is_open = |index: &u32| match self.slots.get(index) {
            Some(Slot::Replica(replica)) => {
                let is_new = replica.is_updated && !replica.is_available;
                replica.is_deleting || (is_new && !replica.is_off)
            }
            Some(Slot::Taken) | None => true,
        };
        (0..self.demand.replicas).filter(is_open).count()
    }

    /// Machines of earlier templates: first those that are not available.
    fn replace(&self, end: u32, spare: &mut Spare, plan: &mut Plan) {
        let limit = self
            .demand
            .unavailable
            .saturating_add(self.demand.surge)
            .max(1);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut open = self.in_progress();
        let outdated = self.living().rev();
        let outdated =
            outdated.filter(|(index, replica)| *index < end && self.is_outdated(*index, *replica));
        let mut outdated: Vec<_> = outdated.collect();
        outdated.sort_by_key(|(_, replica)| replica.is_available);
        for (index, replica) in outdated {
            if open >= limit || plan.deletes.len() > BURST {
                return;
            }
            if spare.allows(replica) {
                spare.take(replica);
                plan.deletes.push((index, Cause::Outdated));
                open += 1;
            }
        }
    }
}

//! The numbers, and where the documented rules and those of the reference implementation's source
//! differ.
//!
//! Invariant: both profiles run through the same function; a profile is a table, never code.
//! Failure: none.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number for everything that can be the reason to look at an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The machine was never made.
    pub creating: i64,
    /// Its power is not the desired one.
    pub power_state_change: i64,
    /// It is being deleted.
    pub deleting: i64,
    /// It runs and has no address yet.
    pub waiting_for_ip: i64,
    /// Its linked disk is not flattened yet.
    pub waiting_for_disk_promotion: i64,
    /// Nothing of that, and the object is new to the watch.
    pub create: i64,
    /// Nothing of that, and the object changed.
    pub update: i64,
    /// Nothing of that, and the object no longer exists.
    pub delete: i64,
    /// Nothing of that, and something outside the API server happened.
    pub generic: i64,
    /// The object was in the first list, whatever its state.
    pub initial: i64,
    /// The object did not change, whatever its state.
    pub unchanged: i64,
}

/// Priorities that differ from the profile. A higher priority is dispatched first; the defaults are
/// those of the profile `page`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LevelOverrides {
    /// The machine is not created yet; 100 unless set.
    pub creating: Option<i64>,
    /// The power state differs from the desired power state; 99 unless set.
    pub power_state_change: Option<i64>,
    /// The machine is being deleted; 98 unless set.
    pub deleting: Option<i64>,
    /// The machine runs and has no address yet; 97 unless set.
    pub waiting_for_ip: Option<i64>,
    /// The linked disk of the machine is not flattened yet; 96 unless set.
    pub waiting_for_disk_promotion: Option<i64>,
    /// The machine is new to the watch and in no state that has a level of its own; -1 unless set.
    pub create: Option<i64>,
    /// The machine changed and is in no state that has a level of its own; -2 unless set.
    pub update: Option<i64>,
    /// The machine was deleted and is in no state that has a level of its own; -3 unless set.
    pub delete: Option<i64>,
    /// The cause is outside the API server, and the machine is in no state that has a level of its
    /// own; -4 unless set.
    pub generic: Option<i64>,
    /// The machine was in the first list, in any state; -1 unless set.
    pub initial: Option<i64>,
    /// The machine did not change, in any state; -2 unless set.
    pub unchanged: Option<i64>,
}

/// What goes beyond the documented rules; each can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Additions {
    /// An object that goes back to the queue gets the priority of its present state.
    pub recompute: bool,
    /// A change of another object counts as a change of the machine.
    pub mapped_by_state: bool,
    /// A pod that contradicts the status counts as a pending change of power.
    pub pod_contradicts: bool,
}

/// Numbers and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The numbers.
    pub levels: Levels,
    /// The additions.
    pub additions: Additions,
    /// Numbers that the annotation may choose; `None`: all.
    pub override_limits: Option<RangeInclusive<i64>>,
    /// A machine that says nothing of the network waits for an address.
    pub absent_network_counts: bool,
    /// A running machine can wait for its disk.
    pub promotion_while_on: bool,
}

impl Levels {
    /// As documented.
    pub const PAGE: Self = Self {
        creating: 100,
        power_state_change: 99,
        deleting: 98,
        waiting_for_ip: 97,
        waiting_for_disk_promotion: 96,
        create: -1,
        update: -2,
        delete: -3,
        generic: -4,
        initial: -1,
        unchanged: -2,
    };

    /// As the reference implementation's source has them.
    pub const PARITY: Self = Self {
        creating: 100,
        power_state_change: 99,
        deleting: 97,
        waiting_for_ip: 98,
        waiting_for_disk_promotion: 96,
        create: 4,
        update: 2,
        delete: 3,
        generic: 1,
        initial: -100,
        unchanged: -100,
    };

    /// Every number, each once: what metrics name. Zero is that of mapped events without
    /// `mapped_by_state`.
    #[must_use]
    pub fn all(&self) -> Vec<i64> {
        let mut all = vec![
            0,
            self.creating,
            self.power_state_change,
            self.deleting,
            self.waiting_for_ip,
            self.waiting_for_disk_promotion,
            self.create,
            self.update,
            self.delete,
            self.generic,
            self.initial,
            self.unchanged,
        ];
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The lowest number that a machine's state can give: what is below is routine.
    #[must_use]
    pub fn lowest_of_states(&self) -> i64 {
        self.creating
            .min(self.power_state_change)
            .min(self.deleting)
            .min(self.waiting_for_ip)
            .min(self.waiting_for_disk_promotion)
    }
}

impl LevelOverrides {
    /// The numbers with those that were chosen.
    #[must_use]
    pub fn apply(&self, levels: Levels) -> Levels {
        Levels {
            creating: self.creating.unwrap_or(levels.creating),
            power_state_change: self.power_state_change.unwrap_or(levels.power_state_change),
            deleting: self.deleting.unwrap_or(levels.deleting),
            waiting_for_ip: self.waiting_for_ip.unwrap_or(levels.waiting_for_ip),
            waiting_for_disk_promotion: self
                .waiting_for_disk_promotion
                .unwrap_or(levels.waiting_for_disk_promotion),
            create: self.create.unwrap_or(levels.create),
            update: self.update.unwrap_or(levels.update),
            delete: self.delete.unwrap_or(levels.delete),
            generic: self.generic.unwrap_or(levels.generic),
            initial: self.initial.unwrap_or(levels.initial),
            unchanged: self.unchanged.unwrap_or(levels.unchanged),
        }
    }
}

impl Additions {
    /// All on.
    pub const ON: Self = Self {
        recompute: true,
        mapped_by_state: true,
        pod_contradicts: true,
    };
    /// All off.
    pub const OFF: Self = Self {
        recompute: false,
        mapped_by_state: false,
        pod_contradicts: false,
    };
}

impl Profile {
    /// The documented rules.
    #[must_use]
    pub const fn page(additions: Additions) -> Self {
        Self {
            levels: Levels::PAGE,
            additions,
            override_limits: Some(-1000..=1000),
            absent_network_counts: true,
            promotion_while_on: true,
        }
    }

    /// The rules of the reference implementation's source, without additions.
    #[must_use]
    pub const fn parity() -> Self {
        Self {
            levels: Levels::PARITY,
            additions: Additions::OFF,
            override_limits: None,
            absent_network_counts: false,
            promotion_while_on: false,
        }
    }
}

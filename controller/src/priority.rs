//! The priority of a machine in the queue.
//!
//! [`Profile::priority`] is a cascade over plain facts; the first rule that matches gives the number.
//! What comes after it are the ways an event reaches it: [`Event`] states which default applies,
//! and when the cascade is not asked at all. `docs/priority.md` has the table for people.
//!
//! Invariant: the number depends on nothing but the event and the object; an unusable annotation is
//! as good as none.
//! Failure: none; there is a number for everything.

mod facts;
mod profile;

pub use facts::{Facts, Machine, pod_contradicts};
pub use profile::{Additions, LevelOverrides, Levels, Profile};

use crds::PowerState;

/// How an object came to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is new to the watch. `initial`: it was in the first list.
    Create {
        /// In the first list.
        initial: bool,
    },
    /// It changed. `unchanged`: only the time for another look came, the resource version is the
    /// same.
    Update {
        /// Same resource version.
        unchanged: bool,
    },
    /// It no longer exists; the facts are the last known ones.
    Delete,
    /// Something outside the API server happened to it.
    Generic,
    /// Another object that it depends on changed.
    Mapped(Mapped),
}

/// How the other object came to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// It was in the first list.
    Initial,
    /// Its resource version is the same.
    Unchanged,
    /// It changed.
    Changed,
}

impl Profile {
    /// The priority of an event about an object. For a deleted object, or an update without the new
    /// object, the facts are those of the last known one; an event without any object is not worth
    /// a place in the queue.
    #[must_use]
    pub fn priority(&self, event: Event, facts: &Facts<'_>) -> i64 {
        let levels = &self.levels;
        match event {
            Event::Create { initial: true } | Event::Mapped(Mapped::Initial) => levels.initial,
            Event::Update { unchanged: true } | Event::Mapped(Mapped::Unchanged) => {
                levels.unchanged
            }
            Event::Create { initial: false } => self.of_state(facts, levels.create),
            Event::Update { unchanged: false } => self.of_state(facts, levels.update),
            Event::Delete => self.of_state(facts, levels.delete),
            Event::Generic => self.of_state(facts, levels.generic),
            Event::Mapped(Mapped::Changed) if self.additions.mapped_by_state => {
                self.of_state(facts, levels.update)
            }
            Event::Mapped(Mapped::Changed) => 0,
        }
    }

    /// The priority that an object which goes back to the queue deserves by its present state;
    /// `None`: it keeps the one that it had.
    #[must_use]
    pub fn of_requeue(&self, facts: &Facts<'_>) -> Option<i64> {
        self.additions
            .recompute
            .then(|| self.of_state(facts, self.levels.update))
    }

    fn of_state(&self, facts: &Facts<'_>, default: i64) -> i64 {
        if let Some(override_) = facts.annotation.and_then(|text| self.parse(text)) {
            return override_;
        }
        let levels = &self.levels;
        let Some(machine) = &facts.machine else {
            return default;
        };
        let contradicted = machine.pod_contradicts && self.additions.pod_contradicts;
        if machine.deleting {
            levels.deleting
        } else if !machine.created {
            levels.creating
        } else if machine.wanted != machine.observed || contradicted {
            levels.power_state_change
        } else if self.waits_for_address(machine) {
            levels.waiting_for_ip
        } else if self.waits_for_promotion(machine) {
            levels.waiting_for_disk_promotion
        } else {
            default
        }
    }

    /// A base-10 integer of 64 bits within the limits.
    fn parse(&self, text: &str) -> Option<i64> {
        let number = text.parse().ok()?;
        self.override_limits
            .as_ref()
            .is_none_or(|limits| limits.contains(&number))
            .then_some(number)
    }

    fn waits_for_address(&self, machine: &Machine<'_>) -> bool {
        let connected = machine
            .network_enabled
            .unwrap_or(self.absent_network_counts);
        machine.observed == Some(PowerState::PoweredOn) && connected && !machine.has_address
    }

    fn waits_for_promotion(&self, machine: &Machine<'_>) -> bool {
        let is_requested =
            self.promotion_while_on || machine.observed != Some(PowerState::PoweredOn);
        // Text, not a type: what is not exactly this word promotes.
        is_requested && machine.promotion != "Disabled" && !machine.promoted
    }
}

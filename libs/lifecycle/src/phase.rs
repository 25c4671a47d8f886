//! The phases of an instance.
//!
//! Invariant: a final phase is never left.
//! Failure: none.

use std::fmt;

/// The state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The pod exists.
    Pending,
    /// The scheduler finds no node for it.
    Scheduling,
    /// It has a node; the guest does not run yet.
    Scheduled,
    /// The guest runs, or is paused.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended badly.
    Failed,
    /// Its node is silent.
    Unknown,
}

impl Phase {
    /// As `status.instance.phase` spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Scheduling => "Scheduling",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Whether a recorded phase, in its spelling, is a final one.
    #[must_use]
    pub fn is_final_name(name: &str) -> bool {
        name == Self::Succeeded.as_str() || name == Self::Failed.as_str()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

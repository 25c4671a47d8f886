//! The kinds of call to libvirt, each with permits and connections of its own.
//!
//! Invariant: a call waits for calls of its own kind only; a lane has as many connections as
//! permits.
//! Failure: none.

/// Which of a session's connections a call uses: what must not wait for others does not share
/// theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// The life cycle, as far as it may wait for a start that hangs.
    Control,
    /// Looks at all domains.
    Survey,
    /// Ending machines, and looking at them.
    Urgent,
    /// Guest agents that answered when they were last queried.
    Agents,
    /// Guest agents that were not called yet, or did not answer.
    UnresponsiveAgents,
}

impl Lane {
    pub(super) const ALL: [Self; 5] = [
        Self::Control,
        Self::Survey,
        Self::Urgent,
        Self::Agents,
        Self::UnresponsiveAgents,
    ];

    /// How many calls there may be at once, where `parallel` is the usual number.
    pub(super) const fn width(self, parallel: usize) -> usize {
        match self {
            // One list and one request for statistics.
            Self::Survey => 2,
            Self::Control | Self::Urgent | Self::Agents | Self::UnresponsiveAgents => parallel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_found_at_its_own_number() {
        for (number, lane) in Lane::ALL.into_iter().enumerate() {
            assert_eq!(lane as usize, number);
            assert!(lane.width(1) >= 1);
        }
    }
}

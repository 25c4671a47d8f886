//! The kinds of call to libvirt, each with permits and connections of its own.
//!
//! Invariant: a call waits for calls of its own kind only; a lane has as many connections as
//! permits. What a hung emulator can hold up shares no lane with starts, kills or looks. What a guest
//! can hold up shares no lane with orders to power off, and leaves permits to other namespaces.
//! Failure: none.

use fair::Bounds;

/// Which of a session's connections a call uses: what must not wait for others does not share
/// theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Definitions and starts.
    Control,
    /// Removals, each of which takes a moment.
    Removals,
    /// Memory that is saved or restored, which may take an hour.
    Memory,
    /// Looks at libvirt itself and at all domains, of each kind one at a time.
    Survey,
    /// Ends of machines. libvirt tries for up to 40 s to end an emulator that cannot be killed.
    Kills,
    /// Looks at one machine, by which its end is known.
    States,
    /// Ends of machines whose last kill failed, and looks at them: libvirt holds such a machine's
    /// lock while it tries.
    Late,
    /// Requests to running emulators, which hang with them.
    Emulators,
    /// Orders to guest agents to power off or to reboot, which take seconds.
    AgentOrders,
    /// Guest agents that answered promptly when they were last queried.
    Agents,
    /// Guest agents that were not called yet, or did not answer promptly.
    UnresponsiveAgents,
}

impl Lane {
    pub(super) const ALL: [Self; 11] = [
        Self::Control,
        Self::Removals,
        Self::Memory,
        Self::Survey,
        Self::Kills,
        Self::States,
        Self::Late,
        Self::Emulators,
        Self::AgentOrders,
        Self::Agents,
        Self::UnresponsiveAgents,
    ];

    /// How many calls there may be at once, where `parallel` is the usual number.
    pub(super) const fn width(self, parallel: usize) -> usize {
        match self {
            // A list, statistics, versions.
            Self::Survey => 3,
            Self::Memory | Self::Removals => half(parallel),
            // Each emulator that hangs keeps a place.
            Self::Emulators => 2 * parallel,
            Self::Control
            | Self::Kills
            | Self::States
            | Self::Late
            | Self::AgentOrders
            | Self::Agents
            | Self::UnresponsiveAgents => parallel,
        }
    }

    /// Whether guests decide how long its calls take, so that namespaces have a share of it each.
    pub(super) const fn is_shared(self) -> bool {
        matches!(
            self,
            Self::AgentOrders | Self::Agents | Self::UnresponsiveAgents
        )
    }

    /// Its permits.
    pub(super) fn bounds(self, parallel: usize) -> Bounds {
        let all = self.width(parallel);
        let kept = usize::from(self.is_shared());
        Bounds {
            all,
            per_owner: all.saturating_sub(kept).max(1),
        }
    }
}

/// Half of the usual number, but one at least.
pub(super) const fn half(parallel: usize) -> usize {
    if parallel < 2 { 1 } else { parallel / 2 }
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

    #[test]
    fn the_documented_number_of_workers_is_enough() {
        for parallel in [1, 2, 4, 7] {
            let all: usize = Lane::ALL.iter().map(|lane| lane.width(parallel)).sum();
            assert!(all <= 11 * parallel + 3, "{all}");
        }
    }
}

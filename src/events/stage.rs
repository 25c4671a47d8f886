//! The states that lists show, as stages of a life, and the events between them.
//!
//! Invariant: a pure value. An object is created once, started and stopped at most once, and
//! deleted last; a phase that lists do not show has no stage.
//! Failure: none.

use crate::{sandbox, vm};

/// What happened to a sandbox or a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Lists show it now.
    Created,
    /// The sandbox is ready, or the machine runs.
    Started,
    /// The sandbox is no longer ready, or the machine has ended.
    Stopped,
    /// No list shows it any more.
    Deleted,
}

/// A state that lists show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Created,
    Started,
    Stopped,
}

impl Stage {
    /// As the CRI state of a sandbox, which is ready or not.
    pub(super) const fn of_sandbox(phase: sandbox::state::Phase) -> Option<Self> {
        use sandbox::state::Phase;
        match phase {
            Phase::Creating => None,
            Phase::Ready => Some(Self::Started),
            Phase::Stopping | Phase::Stopped | Phase::Removing => Some(Self::Stopped),
        }
    }

    /// As the CRI state of a container.
    pub(super) const fn of_container(phase: vm::state::Phase) -> Option<Self> {
        use vm::state::Phase;
        match phase {
            Phase::Creating => None,
            Phase::Created | Phase::Starting => Some(Self::Created),
            Phase::Running | Phase::Stopping => Some(Self::Started),
            Phase::Exited | Phase::Removing => Some(Self::Stopped),
        }
    }

    /// The events of a step from one stage to the next; `None` is an object that lists do not
    /// show. A step that leaves a stage out is that of an object which was never in it.
    pub(super) fn changes(before: Option<Self>, after: Option<Self>) -> Vec<Change> {
        let created = before.is_none().then_some(Change::Created);
        match (before, after) {
            (None, None) => vec![],
            (Some(_), None) => vec![Change::Deleted],
            (before, after) if before == after => vec![],
            (_, Some(Self::Created)) => created.into_iter().collect(),
            (_, Some(Self::Started)) => created.into_iter().chain([Change::Started]).collect(),
            (_, Some(Self::Stopped)) => created.into_iter().chain([Change::Stopped]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Option<Stage>; 4] = [
        None,
        Some(Stage::Created),
        Some(Stage::Started),
        Some(Stage::Stopped),
    ];

    #[test]
    fn each_step_has_its_events() {
        // Rows: before; columns: after. C created, S started, E stopped, D deleted.
        let table = ALL.map(|before| {
            let row = ALL.map(|after| {
                let changes = Stage::changes(before, after).into_iter();
                let letters = changes.map(|change| match change {
                    Change::Created => 'C',
                    Change::Started => 'S',
                    Change::Stopped => 'E',
                    Change::Deleted => 'D',
                });
                letters.collect::<String>()
            });
            row.join(",")
        });
        assert_eq!(table, [",C,CS,CE", "D,,S,E", "D,,,E", "D,,S,"]);
    }

    #[test]
    fn a_life_through_all_phases_has_four_events() {
        use vm::state::Phase;
        let stages = Phase::ALL.map(Stage::of_container);
        let ends = stages.into_iter().skip(1).chain([None]);
        let life: Vec<_> = (stages.into_iter().zip(ends))
            .flat_map(|(before, after)| Stage::changes(before, after))
            .collect();
        let all = [
            Change::Created,
            Change::Started,
            Change::Stopped,
            Change::Deleted,
        ];
        assert_eq!(life, all);
        use sandbox::state::Phase as Of;
        let stages = Of::ALL.map(Stage::of_sandbox);
        let ends = stages.into_iter().skip(1).chain([None]);
        let life = (stages.into_iter().zip(ends)).flat_map(|(b, a)| Stage::changes(b, a));
        assert_eq!(life.collect::<Vec<_>>(), all);
    }
}

//! What a chaos run does beside changes of desired states, dealt like cards.
//!
//! Invariant: every deck has every kind, and a snapshot first, so that a short run makes some of each.
//! Failure: none.

use fastrand::Rng;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A snapshot of a machine.
    Snapshot,
    /// A machine reverts to its newest snapshot.
    Revert,
    /// A snapshot is deleted.
    DeleteSnapshot,
    /// A machine is made of a snapshot.
    Clone,
    /// A backup of a machine.
    Backup,
    /// A backup is deleted.
    DeleteBackup,
    /// A machine is made of a backup.
    Restore,
    /// A schedule of backups begins, or is suspended, or continues.
    Schedule,
    /// A machine is powered off, and its disk becomes independent of the image.
    Promote,
    /// The group gets another power state.
    PowerGroup,
    /// The replica set gets another number of machines.
    Scale,
    /// The replica set gets another template, and replaces its machines.
    EditTemplate,
    /// A machine of the replica set is deleted, and made again by it.
    DeleteReplica,
    /// Every image that no disk needs is removed from a node.
    EvictImages,
    /// The disk of a machine that is off is read by a client.
    Export,
    /// A client sends a file that becomes an image of a node.
    Upload,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// Selects machine, node, number or power state; any number is one.
    pub(super) choice: usize,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Requested, for the object of this name.
    Requested(String),
    /// There was nothing to do it with.
    Skipped(String),
}

impl Kind {
    /// All of them, in the order of the report.
    pub(super) const ALL: [Self; 16] = [
        Self::Snapshot,
        Self::Revert,
        Self::DeleteSnapshot,
        Self::Clone,
        Self::Backup,
        Self::DeleteBackup,
        Self::Restore,
        Self::Schedule,
        Self::Promote,
        Self::PowerGroup,
        Self::Scale,
        Self::EditTemplate,
        Self::DeleteReplica,
        Self::EvictImages,
        Self::Export,
        Self::Upload,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Revert => "revert",
            Self::DeleteSnapshot => "delete snapshot",
            Self::Clone => "clone",
            Self::Backup => "backup",
            Self::DeleteBackup => "delete backup",
            Self::Restore => "restore",
            Self::Schedule => "schedule",
            Self::Promote => "promote",
            Self::PowerGroup => "power group",
            Self::Scale => "scale",
            Self::EditTemplate => "edit template",
            Self::DeleteReplica => "delete replica",
            Self::EvictImages => "evict images",
            Self::Export => "export",
            Self::Upload => "upload",
        }
    }

    /// How many cards of a deck are of this kind.
    const fn cards(self) -> usize {
        match self {
            Self::Snapshot => 3,
            Self::Revert | Self::Backup | Self::PowerGroup | Self::Scale => 2,
            _ => 1,
        }
    }
}

/// The operations that are still to come, the last one first; a new deck follows the last card.
#[derive(Debug, Default)]
pub(super) struct Deck(Vec<Kind>);

/// Cards of a deck.
#[cfg(test)]
pub(super) const CARDS: usize = 22;

impl Deck {
    /// The next operation.
    pub(super) fn deal(&mut self, rng: &mut Rng) -> Operation {
        if self.0.is_empty() {
            self.0 = shuffled(rng);
        }
        Operation {
            kind: self.0.pop().unwrap_or(Kind::Snapshot),
            choice: rng.usize(..1 << 16),
        }
    }
}

fn shuffled(rng: &mut Rng) -> Vec<Kind> {
    let mut cards: Vec<_> = Kind::ALL
        .into_iter()
        .flat_map(|kind| std::iter::repeat_n(kind, kind.cards()))
        .collect();
    rng.shuffle(&mut cards);
    // They are dealt from the end, a snapshot first: others need one.
    let snapshot = cards.iter().rposition(|card| *card == Kind::Snapshot);
    if let Some(snapshot) = snapshot
        && let Some(last) = cards.len().checked_sub(1)
    {
        cards.swap(snapshot, last);
    }
    cards
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn deck(seed: u64) -> Vec<Kind> {
        let mut rng = Rng::with_seed(seed);
        let mut deck = Deck::default();
        (0..CARDS).map(|_| deck.deal(&mut rng).kind).collect()
    }

    #[test]
    fn every_deck_has_every_kind_and_a_snapshot_first() {
        let cards: usize = Kind::ALL.into_iter().map(Kind::cards).sum();
        assert_eq!(cards, CARDS);
        for seed in 0..200 {
            let dealt = deck(seed);
            let kinds: BTreeSet<_> = dealt.iter().copied().collect();
            assert_eq!(kinds.len(), Kind::ALL.len(), "{dealt:?}");
            assert_eq!(dealt[0], Kind::Snapshot, "{dealt:?}");
        }
    }

    #[test]
    fn a_seed_decides_the_order() {
        assert_eq!(deck(7), deck(7));
        assert_ne!(deck(7), deck(8));
    }
}

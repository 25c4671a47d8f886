//! Merges of layers that an emulator has open.
//!
//! ```text
//! Merge ──► Pivot ──► Resume ──► (none)      the child is the active layer
//!   └─────────────────────────► (none)      it is below it
//! ```
//!
//! Invariant: until the record names the layer in the place of its child, the child has all that is read above
//! it: nothing is written to the layer alone. So a merge that is cut short is dropped, and begins again.
//! Failure: none here; a step that makes no sense changes nothing.

use super::{Change, Layers, Step, Unneeded};

impl Layers {
    /// The first merge that waits, of two layers that the active one is made of.
    pub fn merge_in_use(&self) -> Option<Unneeded> {
        let below = self.below(self.active);
        let is_in_use = |number: u32| number == self.active || below.contains(&number);
        let mut merges = self.merges().into_iter();
        merges.find(|merge| matches!(merge, Unneeded::Merge { child, .. } if is_in_use(*child)))
    }

    /// The merges that wait, of two layers that the active one is not made of.
    pub fn merges_in_branches(&self) -> Vec<Unneeded> {
        let below = self.below(self.active);
        let is_in_use = |number: u32| number == self.active || below.contains(&number);
        let mut merges = self.merges();
        // The layer has no other child: where this one is not in use, the layer is not, either.
        merges.retain(|merge| matches!(merge, Unneeded::Merge { child, .. } if !is_in_use(*child)));
        merges
    }

    /// Begins a merge by an emulator; `None` while another change is in progress, or when it does not wait.
    pub fn begin_merge(&mut self, layer: u32, child: u32) -> Option<Change> {
        let waits = self.merges().contains(&Unneeded::Merge { layer, child });
        if !waits || self.change.is_some() {
            return None;
        }
        let step = Step::Merge { child };
        self.change = Some(Change { layer, step });
        self.change
    }

    /// The guest is about to be paused for the end of the merge in progress. False when that is another one, or its
    /// child is not the active layer.
    pub fn begin_pivot(&mut self, layer: u32, resumes: bool) -> bool {
        let Some(Change {
            layer: number,
            step: Step::Merge { child },
        }) = self.change
        else {
            return false;
        };
        if number != layer || child != self.active {
            return false;
        }
        let step = Step::Pivot { child, resumes };
        self.change = Some(Change { layer, step });
        true
    }

    /// The layer of the merge in progress takes the place of its child. False when another change is in progress.
    pub fn end_merge(&mut self, layer: u32) -> bool {
        let Some(change) = self.change.filter(|change| change.layer == layer) else {
            return false;
        };
        let Some(child) = change.step.merged() else {
            return false;
        };
        self.change = None;
        if !self.remove(Unneeded::Merge { layer, child }) {
            self.change = Some(change);
            return false;
        }
        let step = Step::Resume;
        let is_paused = matches!(change.step, Step::Pivot { resumes: true, .. });
        self.change = is_paused.then_some(Change { layer, step });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Snapshot, SnapshotUid};
    use super::*;

    fn uid(n: u8) -> SnapshotUid {
        format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
            .parse()
            .unwrap()
    }

    /// 0 ◄── 1 ◄── 2 (active), with the snapshots 0 and 1.
    fn chain() -> Layers {
        let mut layers = Layers::single(8);
        for n in 0..2 {
            let snapshot = Snapshot {
                uid: uid(n),
                created_at: n.into(),
                quiesced: false,
                running: true,
            };
            let freezes = false;
            let change = layers.begin(Step::Take { snapshot, freezes }).unwrap();
            assert!(layers.commit(change.layer, false));
        }
        layers
    }

    #[test]
    fn a_layer_below_the_active_one_is_merged_in_one_step() {
        let mut layers = chain();
        assert_eq!(layers.begin_merge(0, 1), None, "it has a snapshot");
        assert_eq!(layers.merge_in_use(), None);
        assert!(layers.delete(uid(0)));
        let waits = Unneeded::Merge { layer: 0, child: 1 };
        assert_eq!(layers.merge_in_use(), Some(waits));
        assert_eq!(layers.begin_merge(0, 2), None, "that is no child of it");
        assert!(layers.begin_merge(0, 1).is_some());
        assert_eq!(layers.begin_merge(0, 1), None, "it is in progress");
        assert!(!layers.begin_pivot(0, true), "1 is not active");
        assert!(!layers.commit(0, false) && !layers.end_merge(1));
        let counted = layers.virtual_bytes();
        assert!(layers.end_merge(0));
        assert_eq!(layers.virtual_bytes() + 8, counted);
        assert_eq!(layers.change(), None);
        assert_eq!(layers.below(2), [0]);
        assert_eq!(layers.layer_of(uid(1)).unwrap().0, 0);
    }

    #[test]
    fn a_guest_that_was_paused_for_a_merge_is_resumed_before_the_change_ends() {
        for resumes in [true, false] {
            let mut layers = chain();
            layers.grow(16);
            assert!(layers.delete(uid(1)) && layers.begin_merge(1, 2).is_some());
            assert!(!layers.begin_pivot(0, resumes) && layers.begin_pivot(1, resumes));
            let read = serde_json::to_string(&layers).unwrap();
            assert_eq!(serde_json::from_str::<Layers>(&read).unwrap(), layers);
            assert!(layers.end_merge(1) && !layers.end_merge(1));
            assert_eq!(layers.active(), 1);
            assert_eq!(layers.active_bytes(), 16);
            let step = Step::Resume;
            let left = resumes.then_some(Change { layer: 1, step });
            assert_eq!(layers.change(), left);
            assert_eq!(layers.abandon(1), resumes);
            assert!(layers.is_sound());
        }
    }

    /// The other branch has no file that the emulator has open.
    #[test]
    fn only_layers_of_the_chain_are_merged_by_an_emulator() {
        let mut layers = chain();
        let to = layers.layer_of(uid(1)).unwrap().0;
        let change = layers.begin(Step::Revert { to }).unwrap();
        assert!(layers.commit(change.layer, false));
        let (to, snapshot) = layers.layer_of(uid(0)).unwrap();
        let taken = Snapshot {
            uid: uid(7),
            ..snapshot
        };
        let freezes = false;
        let step = Step::Take {
            snapshot: taken,
            freezes,
        };
        let change = layers.begin(step).unwrap();
        assert!(layers.commit(change.layer, false));
        let change = layers.begin(Step::Revert { to }).unwrap();
        assert!(layers.commit(change.layer, false));
        assert!(layers.delete(uid(1)));
        assert_eq!(layers.merges().len(), 1);
        assert_eq!(layers.merge_in_use(), None);
    }
}

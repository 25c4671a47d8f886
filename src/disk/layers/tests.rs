//! Layers: every sequence of steps leaves a tree that a machine can run on.
//!
//! Invariant: no file is involved.
//! Failure: a test prints the layers.

use proptest::prelude::*;

use super::*;

fn uid(n: u8) -> SnapshotUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

fn snapshot(n: u8) -> Snapshot {
    Snapshot {
        uid: uid(n),
        created_at: n.into(),
        quiesced: false,
        running: false,
    }
}

fn take(layers: &mut Layers, n: u8) {
    let step = Step::Take {
        snapshot: snapshot(n),
        freezes: false,
    };
    let change = layers.begin(step).unwrap();
    assert!(layers.commit(change.layer, false));
}

fn revert(layers: &mut Layers, n: u8) {
    let to = layers.layer_of(uid(n)).unwrap().0;
    let change = layers.begin(Step::Revert { to }).unwrap();
    assert!(layers.commit(change.layer, false));
}

fn merge_all(layers: &mut Layers) {
    while let Some(unneeded) = layers.unneeded() {
        assert!(layers.remove(unneeded));
    }
}

#[test]
fn snapshots_make_a_tree_and_their_parents_are_snapshots() {
    let mut layers = Layers::single(8);
    take(&mut layers, 1);
    take(&mut layers, 2);
    revert(&mut layers, 1);
    take(&mut layers, 3);
    assert_eq!(layers.below(layers.active()), [3, 0]);
    let parents: Vec<_> = layers
        .snapshots()
        .into_iter()
        .map(|(layer, snapshot)| (snapshot.uid, layers.parent_snapshot(layer)))
        .collect();
    assert_eq!(
        parents,
        [
            (uid(1), None),
            (uid(2), Some(uid(1))),
            (uid(3), Some(uid(1)))
        ]
    );
    assert_eq!(layers.parent_snapshot(layers.active()), Some(uid(3)));
    // Both children of the first one get its parent: there is none.
    assert!(layers.delete(uid(1)));
    assert_eq!(layers.unneeded(), None, "two layers need it");
    assert_eq!(layers.parent_snapshot(3), None);
    assert!(layers.delete(uid(2)));
    assert_eq!(layers.unneeded(), Some(Unneeded::Leaf(1)));
    merge_all(&mut layers);
    assert_eq!(layers.snapshots().len(), 1);
    assert_eq!(layers.below(layers.active()), [0]);
}

#[test]
fn the_last_merge_leaves_the_first_file_with_the_size_of_the_disk() {
    let mut layers = Layers::single(8);
    take(&mut layers, 1);
    layers.grow(16);
    assert_eq!(layers.virtual_bytes(), 24);
    assert!(layers.delete(uid(1)) && !layers.delete(uid(1)));
    merge_all(&mut layers);
    assert!(layers.is_single());
    assert_eq!(layers.active_bytes(), 16);
}

#[test]
fn a_disk_that_is_reverted_has_the_size_of_the_snapshot() {
    let mut layers = Layers::single(8);
    take(&mut layers, 1);
    layers.grow(16);
    revert(&mut layers, 1);
    assert_eq!(layers.active_bytes(), 8);
}

#[test]
fn one_change_is_in_progress_and_an_abandoned_one_leaves_nothing() {
    let mut layers = Layers::single(8);
    let step = Step::Take {
        snapshot: snapshot(1),
        freezes: false,
    };
    let change = layers.begin(step).unwrap();
    assert_eq!(layers.begin(step), None);
    assert!(layers.set_freezes(change.layer, true) && !layers.set_freezes(7, true));
    assert!(!layers.commit(7, false) && !layers.abandon(7));
    assert!(layers.abandon(change.layer));
    assert!(layers.is_single());
    // Its file may still be there.
    assert_eq!(layers.begin(step).unwrap().layer, change.layer + 1);
}

#[test]
fn layers_have_a_limit() {
    let mut layers = Layers::single(8);
    for n in 0..32 {
        take(&mut layers, n);
    }
    assert!(layers.is_full());
    assert_eq!(layers.begin(Step::Revert { to: 0 }), None);
}

#[test]
fn a_circle_or_an_active_layer_with_a_child_is_not_sound() {
    let sound = || {
        let mut layers = Layers::single(8);
        take(&mut layers, 1);
        layers
    };
    assert!(sound().is_sound());
    let mut odd = sound();
    odd.active = 0;
    assert!(!odd.is_sound());
    let mut odd = sound();
    odd.all.get_mut(&0).unwrap().parent = Some(1);
    assert!(!odd.is_sound());
    let mut odd = sound();
    odd.all.get_mut(&1).unwrap().parent = Some(9);
    assert!(!odd.is_sound());
    let mut odd = sound();
    odd.next = 1;
    assert!(!odd.is_sound());
}

proptest! {
    #[test]
    fn every_sequence_of_steps_leaves_sound_layers(steps in prop::collection::vec((0..4u8, 0..9u8), 0..40)) {
        let mut layers = Layers::single(8);
        for (kind, n) in steps {
            match (kind, layers.layer_of(uid(n)).is_some()) {
                (0, false) => take(&mut layers, n),
                (1, true) => revert(&mut layers, n),
                (2, true) => assert!(layers.delete(uid(n))),
                (3, _) => merge_all(&mut layers),
                _ => {}
            }
            prop_assert!(layers.is_sound(), "{layers:?}");
            let read: Layers = serde_json::from_str(&serde_json::to_string(&layers).unwrap()).unwrap();
            prop_assert_eq!(&read, &layers);
        }
        for n in 0..9 {
            layers.delete(uid(n));
        }
        merge_all(&mut layers);
        prop_assert!(layers.is_single(), "{layers:?}");
    }
}

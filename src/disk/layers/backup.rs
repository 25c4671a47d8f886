//! Layers that are kept for backups.
//!
//! ```text
//! root.qcow2 (backup A) ◄── layers/1.qcow2 (active)                         what has changed since A is in 1
//! root.qcow2 (backup A) ◄── layers/1.qcow2 (snapshot B) ◄── layers/2.qcow2  B is being written to a target, or has been
//! root.qcow2 ◄── layers/1.qcow2 (backup B) ◄── layers/2.qcow2 (active)      1 is merged into root.qcow2
//! ```
//!
//! Invariant: one layer at most is kept for a backup, the last one that is complete in its target. What the layers
//! above it have is what has changed since then, whichever snapshots were taken or deleted meanwhile.
//! Failure: none here; a backup that is not there changes nothing.

use serde::{Deserialize, Serialize};

use super::{Layer, Layers, Snapshot, SnapshotUid, Unneeded};

/// A backup that is complete in its target, or about to be: where its layer is a snapshot yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupBase {
    /// What it has.
    pub taken: Snapshot,
    /// Of its manifest, in hexadecimal digits.
    pub sha256: String,
}

/// A backup that was complete in its target, and was the base of the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EarlierBackup {
    uid: SnapshotUid,
    /// Of its manifest, in hexadecimal digits.
    sha256: String,
}

/// Maximum number of those that are on record.
const EARLIER: usize = 8;

impl Layer {
    /// Why it is not merged.
    pub(super) fn kept(&self) -> Option<Snapshot> {
        let backup = self.backup.as_ref();
        self.snapshot.or_else(|| backup.map(|base| base.taken))
    }

    const fn is_base(&self) -> bool {
        self.snapshot.is_none() && self.backup.is_some()
    }

    /// It is kept for nothing from now on.
    pub(super) fn release(&mut self) {
        if let Some(kept) = self.kept() {
            self.deleted = Some(kept.uid);
        }
        self.snapshot = None;
        self.backup = None;
    }
}

impl Layers {
    /// The layer that is kept for a backup.
    pub fn backup(&self) -> Option<(u32, &BackupBase)> {
        let mut all = self.all.iter().filter(|(_, layer)| layer.is_base());
        all.find_map(|(number, layer)| Some((*number, layer.backup.as_ref()?)))
    }

    /// The backup of a snapshot, or of the layer that is kept, gets its name in its target now, with a manifest of this
    /// digest. False when there is no such layer.
    pub fn note_backup(&mut self, uid: SnapshotUid, sha256: String) -> bool {
        let all = self.all.values_mut();
        let mut kept = all.filter_map(|layer| Some((layer.kept()?, layer)));
        let Some((taken, layer)) = kept.find(|(taken, _)| taken.uid == uid) else {
            return false;
        };
        layer.backup = Some(BackupBase { taken, sha256 });
        true
    }

    /// The digest of the manifest of a backup that was noted, if it is one of the last ones.
    pub fn noted_backup(&self, uid: SnapshotUid) -> Option<&str> {
        let mut all = self.all.values().filter_map(|layer| layer.backup.as_ref());
        if let Some(found) = all.find(|backup| backup.taken.uid == uid) {
            return Some(&found.sha256);
        }
        let mut earlier = self.earlier.iter().rev();
        let found = earlier.find(|backup| backup.uid == uid);
        found.map(|backup| backup.sha256.as_str())
    }

    /// The layer of a snapshot whose backup was noted is kept as the base of the next one, in place of the one before, and
    /// is no snapshot any more. False when it is so already, or there is no such snapshot.
    pub fn keep_for_backup(&mut self, uid: SnapshotUid) -> bool {
        let is_meant = |layer: &Layer| {
            let is_snapshot = layer.snapshot.is_some_and(|s| s.uid == uid);
            is_snapshot && layer.backup.is_some()
        };
        if !self.all.values().any(is_meant) {
            return false;
        }
        if let Some((_, base)) = self.backup() {
            let uid = base.taken.uid;
            let sha256 = base.sha256.clone();
            self.earlier.push(EarlierBackup { uid, sha256 });
            let surplus = self.earlier.len().saturating_sub(EARLIER);
            self.earlier.drain(..surplus);
        }
        self.release_backup();
        if let Some(layer) = self.all.values_mut().find(|layer| is_meant(layer)) {
            layer.snapshot = None;
        }
        true
    }

    /// A snapshot or backup that was deleted whose layer waits for its merge, or its removal.
    pub fn unmerged(&self) -> Option<SnapshotUid> {
        self.all_unneeded().find_map(|unneeded| {
            let (Unneeded::Leaf(layer) | Unneeded::Merge { layer, .. }) = unneeded;
            self.all.get(&layer)?.deleted
        })
    }

    /// No layer is kept for a backup any more. False when none was.
    pub fn release_backup(&mut self) -> bool {
        let kept = self.all.values_mut().find(|layer| layer.is_base());
        let is_released = kept.is_some();
        kept.into_iter().for_each(Layer::release);
        is_released
    }
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::*;

    fn uid(n: u8) -> SnapshotUid {
        format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
            .parse()
            .unwrap()
    }

    fn keep(layers: &mut Layers, n: u8) -> bool {
        layers.note_backup(uid(n), format!("{n:064x}")) && layers.keep_for_backup(uid(n))
    }

    fn take(layers: &mut Layers, n: u8) {
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

    #[test]
    fn the_base_of_backups_is_no_snapshot_and_is_not_merged() {
        let mut layers = Layers::single(8);
        take(&mut layers, 1);
        assert!(!layers.keep_for_backup(uid(1)), "it is in no target");
        assert!(layers.note_backup(uid(1), String::new()));
        assert_eq!((layers.backup(), layers.snapshots().len()), (None, 1));
        assert!(keep(&mut layers, 1) && !keep(&mut layers, 1));
        assert_eq!(layers.noted_backup(uid(1)).map(str::len), Some(64));
        assert_eq!(layers.snapshots(), []);
        assert_eq!(layers.parent_snapshot(layers.active()), None);
        assert_eq!(layers.unneeded(), None);
        assert!(layers.is_sound());
        let read = serde_json::to_string(&layers).unwrap();
        assert_eq!(serde_json::from_str::<Layers>(&read).unwrap(), layers);
        let (layer, base) = layers.backup().unwrap();
        assert_eq!((layer, base.taken), layers.layer_of(uid(1)).unwrap());
    }

    #[test]
    fn the_digests_of_the_last_backups_stay_on_record() {
        let mut layers = Layers::single(8);
        for n in 1..=12 {
            take(&mut layers, n);
            assert!(keep(&mut layers, n));
            for merge in layers.merges() {
                assert!(layers.remove(merge));
            }
        }
        let read = serde_json::to_string(&layers).unwrap();
        let layers: Layers = serde_json::from_str(&read).unwrap();
        for (n, is_there) in [(12, true), (11, true), (4, true), (3, false)] {
            let expected = is_there.then(|| format!("{n:064x}"));
            assert_eq!(layers.noted_backup(uid(n)), expected.as_deref(), "{n}");
        }
    }

    #[test]
    fn a_later_backup_takes_the_place_of_the_base() {
        let mut layers = Layers::single(8);
        take(&mut layers, 1);
        assert!(keep(&mut layers, 1));
        take(&mut layers, 2);
        take(&mut layers, 3);
        assert!(!keep(&mut layers, 4), "there is none");
        assert_eq!(layers.backup().unwrap().0, 0);
        assert!(keep(&mut layers, 3));
        let merge = Unneeded::Merge { layer: 0, child: 1 };
        assert_eq!(layers.merges(), [merge], "the snapshot stays");
        assert!(layers.is_unmerged(uid(1)));
        assert_eq!(layers.unmerged(), Some(uid(1)));
        assert!(layers.remove(merge));
        assert_eq!(layers.layer_of(uid(2)).unwrap().0, 0);
        // A merge takes the base along.
        assert!(layers.delete(uid(2)));
        assert!(layers.remove(Unneeded::Merge { layer: 0, child: 2 }));
        let (layer, base) = layers.backup().unwrap();
        assert_eq!((layer, base.taken.uid), (0, uid(3)));
        assert!(layers.release_backup() && !layers.release_backup());
        assert_eq!(layers.merges().len(), 1);
    }
}

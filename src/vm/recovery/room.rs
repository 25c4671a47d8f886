//! Whether the file systems of a machine's disks have room again.
//!
//! Invariant: a file system that does not answer takes one thread for all callers, and none waits
//! longer than [`DEADLINE`].
//! Failure: a file system that cannot be measured counts as one with room: the next attempt shows
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::foreign::Foreign;
use crate::platform::Platform;
use crate::vm::file_disks::FileDisk;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::below;

/// Bytes that must be free before a guest continues: more than the reserve file of the daemon has,
/// which is for ends only.
pub(super) const ROOM: u64 = 128 << 20;

/// Of a small file system this part of its size is enough.
const PART: u64 = 8;

/// How long an answer is waited for.
const DEADLINE: Duration = Duration::from_secs(2);

impl<P: Platform> Containers<P> {
    /// Whether the guest of this container can write again, as far as that is known.
    pub(super) async fn has_room(&self, row: &Container) -> bool {
        let root = &self.settings.shares.root;
        let files = row.spec.file_disks.iter().filter(|disk| !disk.read_only);
        let place = |disk: &FileDisk| (disk.directory.clone(), below(root, &disk.directory));
        let mut places: BTreeMap<String, PathBuf> = files.map(place).collect();
        if row.root_block().is_none() && row.root_file().is_none() {
            let pods = self.paths.pods();
            places.insert(pods.display().to_string(), pods);
        }
        have_room(&self.foreign, places).await
    }
}

/// Whether all of the file systems have room, each by its owner.
async fn have_room(foreign: &Foreign, places: BTreeMap<String, PathBuf>) -> bool {
    let measure = |(owner, path): (String, PathBuf)| (owner, move || has_room(&path));
    let measures: Vec<_> = places.into_iter().map(measure).collect();
    let measured = foreign.read_each(measures, DEADLINE).await;
    measured.values().all(|has_room| *has_room)
}

fn has_room(directory: &Path) -> bool {
    let Ok(is) = statvfs(directory) else {
        return true;
    };
    let bytes = |blocks: u64| blocks.saturating_mul(is.fragment_size());
    is_enough(bytes(is.blocks_available()), bytes(is.blocks()))
}

const fn is_enough(free: u64, size: u64) -> bool {
    let part = size / PART;
    free >= if part < ROOM { part } else { ROOM }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_system_needs_less_room() {
        let gib = 1 << 30;
        for (free, size, expected) in [
            (ROOM, 100 * gib, true),
            (ROOM - 1, 100 * gib, false),
            (gib / 16, gib / 2, true),
            (gib / 32, gib / 2, false),
            (0, 0, true),
        ] {
            assert_eq!(is_enough(free, size), expected, "{free} of {size}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_measured_counts_as_room() {
        let foreign = Foreign::default();
        let places = |path: &str| BTreeMap::from([("volume".to_owned(), PathBuf::from(path))]);
        assert!(have_room(&foreign, places("/nonexistent")).await);
        // It has no blocks at all, and a part of nothing is enough.
        assert!(have_room(&foreign, places("/proc")).await);
        let _hangs = foreign.hold("volume".to_owned());
        assert!(have_room(&foreign, places("/proc")).await);
    }
}

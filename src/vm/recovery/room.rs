//! Whether the file systems of a machine's disks have room again.
//!
//! Invariant: few threads measure at once, also when file systems do not answer; no caller waits
//! longer than [`DEADLINE`].
//! Failure: a file system that cannot be measured counts as one with room: the next attempt shows
//! it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::Semaphore;

use crate::platform::Platform;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::below;

/// Bytes that must be free before a guest continues: more than the reserve file of the daemon has,
/// which is for ends only.
pub(super) const ROOM: u64 = 128 << 20;

/// Of a small file system this part of its size is enough.
const PART: u64 = 8;

/// Threads that measure at once. One that hangs keeps its place.
const THREADS: usize = 4;

/// How long an answer is waited for.
const DEADLINE: Duration = Duration::from_secs(2);

/// The places of threads.
#[derive(Debug)]
pub(in crate::vm) struct Measuring(Arc<Semaphore>);

impl Default for Measuring {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS)))
    }
}

impl Measuring {
    /// Whether all of the file systems have room.
    async fn have_room(&self, directories: Vec<PathBuf>) -> bool {
        let Ok(place) = Arc::clone(&self.0).try_acquire_owned() else {
            return true;
        };
        let measured = tokio::task::spawn_blocking(move || {
            let all = directories.iter().all(|directory| has_room(directory));
            drop(place);
            all
        });
        match tokio::time::timeout(DEADLINE, measured).await {
            Ok(Ok(has_room)) => has_room,
            Ok(Err(_)) | Err(_) => true,
        }
    }
}

impl<P: Platform> Containers<P> {
    /// Whether the guest of this container can write again, as far as that is known.
    pub(super) async fn has_room(&self, row: &Container) -> bool {
        let root = &self.settings.shares.root;
        let files = row.spec.file_disks.iter().filter(|disk| !disk.read_only);
        let mut directories: Vec<_> = files.map(|disk| below(root, &disk.directory)).collect();
        if row.root_block().is_none() && row.root_file().is_none() {
            directories.push(self.paths.pods());
        }
        self.measuring.have_room(directories).await
    }
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
        let measuring = Measuring::default();
        assert!(measuring.have_room(vec!["/nonexistent".into()]).await);
        let _all = measuring.0.acquire_many(4).await.unwrap();
        assert!(measuring.have_room(vec!["/proc".into()]).await);
    }
}

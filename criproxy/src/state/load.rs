//! Reads the state directory when the proxy starts, and adapts it to the present boot.
//!
//! Invariant: a list is taken over whole or not at all. After a reboot every list and status is
//! rewritten, and what was lost of sandboxes and containers becomes nothing: no machine of before
//! can run. Files that differ from memory are returned as dirty.
//! Failure: none; a damaged file is logged and counts as lost, as does one that cannot be read.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message as _;
use tokio::time::Instant;

use super::cache::{Cache, Ids, Slot, Statuses};
use super::files::{self, Content, Damage};
use super::owners::Owners;
use super::{BackendIndex, BackendSpec, Kind, entries, reboot};

/// What the files say.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) owners: Owners,
    pub(super) caches: Vec<Cache>,
    /// Files that have to be written.
    pub(super) dirty: BTreeSet<Slot>,
}

/// Where the files are, and which boot this is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) names: Vec<String>,
    /// Empty when it is not known; then nothing is ever taken for a reboot.
    pub(super) boot_id: String,
}

impl Place {
    /// Path of a file.
    pub(super) fn path(&self, slot: Slot) -> PathBuf {
        match slot.backend().and_then(|backend| self.names.get(backend.0)) {
            Some(name) => self.dir.join(name).join(slot.file()),
            None => self.dir.join(slot.file()),
        }
    }

    fn is_other_boot(&self, content: &Content) -> bool {
        let known = !self.boot_id.is_empty() && !content.boot_id.is_empty();
        known && content.boot_id != self.boot_id
    }

    fn read(&self, slot: Slot) -> Option<Content> {
        let path = self.path(slot);
        match files::read(&path) {
            Ok(content) => Some(content),
            Err(Damage::Missing) => None,
            Err(damage) => {
                warn_lost(&path, &damage);
                None
            }
        }
    }
}

/// Reads everything.
pub(super) fn load(place: &Place, specs: &[BackendSpec]) -> Loaded {
    let boot = place.read(Slot::Boot);
    let mut loader = Loader {
        place,
        rebooted: boot.as_ref().is_some_and(|boot| place.is_other_boot(boot)),
        now: Instant::now(),
        loaded: Loaded {
            owners: Owners::new(specs),
            caches: Vec::new(),
            dirty: BTreeSet::new(),
        },
    };
    for index in 0..specs.len() {
        let backend = BackendIndex(index);
        let cache = match backend {
            BackendIndex::PRIMARY => Cache::default(),
            _ => loader.lists(backend),
        };
        loader.loaded.caches.push(cache);
        loader.ids(backend);
        for kind in [Kind::Sandbox, Kind::Container] {
            loader.statuses(backend, kind);
        }
    }
    if boot.is_none_or(|boot| boot.boot_id != place.boot_id) {
        loader.loaded.dirty.insert(Slot::Boot);
    }
    loader.loaded
}

/// Reads only the lists of one secondary; changes nothing.
pub(super) fn peek(dir: &Path, name: &str) -> Cache {
    let place = Place {
        dir: dir.to_owned(),
        names: vec![String::new(), name.to_owned()],
        boot_id: String::new(),
    };
    let mut loader = Loader {
        place: &place,
        rebooted: false,
        now: Instant::now(),
        loaded: Loaded {
            owners: Owners::new(&[]),
            caches: Vec::new(),
            dirty: BTreeSet::new(),
        },
    };
    loader.lists(BackendIndex(1))
}

struct Loader<'a> {
    place: &'a Place,
    rebooted: bool,
    now: Instant,
    loaded: Loaded,
}

impl Loader<'_> {
    fn lists(&mut self, backend: BackendIndex) -> Cache {
        let mut cache = Cache::default();
        cache.connected = self.marked(backend);
        for kind in Kind::ALL {
            if let Some(list) = self.list(backend, kind) {
                cache.set_list(kind, list);
                cache.connected = true;
            }
        }
        for kind in [Kind::Sandbox, Kind::Container] {
            if self.rebooted && cache.connected && cache.list(kind).is_none() {
                tracing::warn!(
                    backend = %self.name(backend),
                    ?kind,
                    "list of an earlier boot dropped"
                );
                cache.set_list(kind, Bytes::new());
                self.loaded.dirty.insert(Slot::List(backend, kind));
            }
        }
        cache
    }

    fn name(&self, backend: BackendIndex) -> &str {
        self.place.names.get(backend.0).map_or("?", String::as_str)
    }

    /// A marker that cannot be looked at counts as there: that is the safe side.
    fn marked(&self, backend: BackendIndex) -> bool {
        match fs::symlink_metadata(self.place.path(Slot::Connected(backend))) {
            Ok(_) => true,
            Err(reason) => reason.kind() != ErrorKind::NotFound,
        }
    }

    fn list(&mut self, backend: BackendIndex, kind: Kind) -> Option<Bytes> {
        let slot = Slot::List(backend, kind);
        let content = self.place.read(slot)?;
        let list = if self.place.is_other_boot(&content) {
            self.loaded.dirty.insert(slot);
            reboot::list(kind, &content.payload).map(Bytes::from)
        } else {
            Ok(content.payload)
        };
        let understood = list.and_then(|list| Ok((entries::of_list(kind, &list)?, list)));
        match understood {
            Ok((known, list)) => {
                self.loaded.owners.replace(backend, kind, known, self.now);
                Some(list)
            }
            Err(malformed) => {
                warn_lost(&self.place.path(slot), &malformed);
                None
            }
        }
    }

    /// Only of objects that a list or the ids mention.
    fn statuses(&mut self, backend: BackendIndex, kind: Kind) {
        let slot = Slot::Statuses(backend, kind);
        let Loaded {
            owners,
            caches,
            dirty,
        } = &mut self.loaded;
        let Some(cache) = caches.get_mut(backend.0) else {
            return;
        };
        let Some(content) = self.place.read(slot) else {
            return;
        };
        let other_boot = self.place.is_other_boot(&content);
        let Ok(statuses) = Statuses::decode(content.payload) else {
            return;
        };
        for status in statuses.entries {
            let response = if other_boot {
                let Ok(rewritten) = reboot::status(kind, &status.response, now()) else {
                    continue;
                };
                Bytes::from(rewritten)
            } else {
                status.response
            };
            if owners.knows(backend, kind, &status.id) {
                cache.set_status(kind, &status.id, &response);
            }
        }
        if other_boot {
            dirty.insert(slot);
        }
    }

    fn ids(&mut self, backend: BackendIndex) {
        let Some(content) = self.place.read(Slot::Ids(backend)) else {
            return;
        };
        let Ok(ids) = Ids::decode(content.payload) else {
            return;
        };
        let lists = [ids.sandboxes, ids.containers, ids.images];
        for (kind, ids) in Kind::ALL.into_iter().zip(lists) {
            for id in ids {
                self.loaded.owners.learn(kind, &id, backend, self.now);
            }
        }
    }
}

fn warn_lost(path: &Path, reason: &(dyn std::error::Error + 'static)) {
    tracing::warn!(path = %path.display(), error = reason, "unreadable state file ignored");
}

/// Nanoseconds since the epoch.
fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

//! The memory of all backends behind one lock, with a thread that writes what has changed.
//!
//! Invariant: no call waits for the disk. Whatever the primary reports is learned from but never
//! answered with.
//! Failure: none after [`Memory::open`]; an answer that is no list or no status is logged and
//! changes nothing.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::cache::Slot;
use super::load::{self, Place};
use super::writer::{Shared, State};
use super::{BackendIndex, BackendSpec, Error, Kind, LastKnown, Owner, entries, files, writer};

/// Maximum length of a boot ID that is compared.
const MAX_BOOT_ID: usize = 128;

/// What is remembered of the backends. Dropping it writes what is left to write.
#[derive(Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Memory {
    /// Reads back what `dir` holds and starts to keep it. Blocks for some milliseconds.
    ///
    /// The first backend is the primary. Each has a directory of its name in `dir`; under another
    /// name it is another backend. When `boot_id` is not that of the files, machines have ended:
    /// sandboxes are not ready and containers have exited. An empty `boot_id` means that the boot
    /// is unknown.
    ///
    /// # Errors
    /// Names that cannot name a directory or are there twice, and directories that cannot be made.
    pub fn open(dir: &Path, backends: &[BackendSpec], boot_id: &str) -> Result<Self, Error> {
        let mut names = HashSet::new();
        for BackendSpec { name, .. } in backends {
            check_name(name)?;
            if !names.insert(name) {
                return Err(Error::SameName(name.clone()));
            }
            let path = dir.join(name);
            files::make_dir(&path).map_err(|source| Error::Directory { path, source })?;
        }
        let place = Place {
            dir: dir.to_owned(),
            names: backends
                .iter()
                .map(|backend| backend.name.clone())
                .collect(),
            boot_id: boot_id.trim().chars().take(MAX_BOOT_ID).collect(),
        };
        let loaded = load::load(&place, backends);
        let shared = Arc::new(Shared::new(place, loaded));
        let writer = Some(writer::start(Arc::clone(&shared)).map_err(Error::Writer)?);
        Ok(Self { shared, writer })
    }

    /// A backend has replied that it has created this object, or has reported its status.
    pub fn learn(&self, kind: Kind, id: &str, owner: BackendIndex) {
        self.shared.change(|state| {
            if state.owners.learn(kind, id, owner, Instant::now()) {
                state.dirty.insert(Slot::Ids(owner));
            }
        });
    }

    /// A pod will live on this backend: call it before its sandbox is requested.
    pub fn learn_uid(&self, pod_uid: &str, owner: BackendIndex) {
        self.shared
            .change(|state| state.owners.learn_uid(pod_uid, owner, Instant::now()));
    }

    /// The backend of a pod that has a sandbox, or for which one was asked in the last ten minutes.
    pub fn owner_of_uid(&self, pod_uid: &str) -> Option<BackendIndex> {
        self.shared.read(|state| state.owners.owner_of_uid(pod_uid))
    }

    /// Who owns an object: as learned by full id (for images also tag or digest), else by a prefix
    /// that only one backend has, else by the end of a full id. Image ids may lack their `sha256:`.
    pub fn owner(&self, kind: Kind, id_or_prefix: &str) -> Owner {
        self.shared
            .read(|state| state.owners.owner(kind, id_or_prefix))
    }

    /// The object with this full id has been removed.
    pub fn forget(&self, kind: Kind, id: &str) {
        self.shared.change(|state| {
            for index in 0..state.caches.len() {
                state.forget(BackendIndex(index), kind, id);
            }
            state.owners.forget(kind, id);
        });
    }

    /// Takes over a complete, unfiltered list answer: learns its ids, forgets what it no longer
    /// mentions, and answers with it from now on while the backend is down.
    pub fn store_list(&self, owner: BackendIndex, kind: Kind, response: &Bytes) {
        let known = self
            .shared
            .read(|state| state.cache(owner)?.list(kind).cloned());
        let now = Instant::now();
        if known.as_ref() == Some(response) {
            self.shared.change(|state| {
                if state.owners.repeat(owner, kind, now) {
                    state.dirty.insert(Slot::Ids(owner));
                    state.drop_statuses(owner, kind);
                }
            });
            return;
        }
        match entries::of_list(kind, response) {
            Ok(list) => self.shared.change(|state| {
                if state.owners.replace(owner, kind, list, now) {
                    state.dirty.insert(Slot::Ids(owner));
                }
                state.connected(owner);
                state.set_list(owner, kind, response.clone());
                state.drop_statuses(owner, kind);
            }),
            Err(malformed) => {
                tracing::warn!(backend = owner.0, ?kind, error = %malformed, "list not stored");
            }
        }
    }

    /// A secondary has made an object that no list mentions yet: `entry` is the serialized
    /// `PodSandbox` or `Container` that its next list would have. Without it, a backend that goes
    /// down before its next list would seem not to have the object. Learns the id as
    /// [`Self::learn`] does.
    pub fn store_created(&self, owner: BackendIndex, kind: Kind, entry: &[u8]) {
        let one = entries::list_of(entry);
        let Ok(Some(made)) = entries::of_list(kind, &one).map(|mut list| list.pop()) else {
            return;
        };
        if made.id.is_empty() {
            return;
        }
        self.shared.change(|state| {
            let now = Instant::now();
            if state.owners.learn(kind, &made.id, owner, now) {
                state.dirty.insert(Slot::Ids(owner));
            }
            let list = state.cache(owner).and_then(|cache| cache.list(kind));
            if let Some(list) = list
                && state.owners.listed_state(owner, kind, &made.id).is_none()
                && !entries::mentions(list, &made.id)
            {
                let list = [list, one.as_slice()].concat().into();
                state.set_list(owner, kind, list);
            }
        });
    }

    /// Takes over the status answer of an object of a secondary. `id` may be short: the answer's
    /// counts.
    pub fn store_status(&self, owner: BackendIndex, kind: Kind, id: &str, response: &Bytes) {
        let status = match entries::of_status(kind, response) {
            Ok(Some(status)) if status.id.starts_with(id) => status,
            Ok(_) | Err(_) => {
                tracing::warn!(
                    backend = owner.0,
                    ?kind,
                    "reply without the requested status"
                );
                return;
            }
        };
        self.shared.change(|state| {
            if state.owners.learn(kind, &status.id, owner, Instant::now()) {
                state.dirty.insert(Slot::Ids(owner));
            }
            let wanted = owner != BackendIndex::PRIMARY && kind != Kind::Image;
            let cache = state.caches.get_mut(owner.0).filter(|_| wanted);
            if cache.is_some_and(|cache| cache.set_status(kind, &status.id, response)) {
                state.dirty.insert(Slot::Statuses(owner, kind));
            }
        });
    }

    /// The backend's list to answer with while it is down. The primary's is always
    /// [`LastKnown::Lost`].
    pub fn last_list(&self, owner: BackendIndex, kind: Kind) -> LastKnown {
        if owner == BackendIndex::PRIMARY {
            return LastKnown::Lost;
        }
        let known = self
            .shared
            .read(|state| Some(state.cache(owner)?.last_list(kind)));
        known.unwrap_or(LastKnown::NeverConnected)
    }

    /// The status to answer with while the backend is down: of the object with this id or the only
    /// one whose id begins like that.
    ///
    /// `None` too when the last list gave the object another state than its last status: kubelet
    /// would take the old status for that of the new state and never ask again.
    pub fn last_status(&self, owner: BackendIndex, kind: Kind, id: &str) -> Option<Bytes> {
        self.shared.read(|state| {
            let (id, response) = state.cache(owner)?.status(kind, id)?;
            let status = entries::of_status(kind, response).ok()??;
            let listed = state.owners.listed_state(owner, kind, id);
            listed
                .is_none_or(|listed| listed == status.state)
                .then(|| response.clone())
        })
    }

    /// The backend has answered. The first time this is written down before anything else.
    pub fn connected(&self, owner: BackendIndex) {
        self.shared.change(|state| state.connected(owner));
    }

    /// Waits until everything is written, for at most `limit`; false if it is not. Blocks.
    pub fn flush(&self, limit: Duration) -> bool {
        self.shared.flush(limit)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shared.close();
        let ended = self.writer.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            tracing::error!("the writer of the state directory panicked");
        }
    }
}

impl State {
    fn connected(&mut self, owner: BackendIndex) {
        let cache = self
            .caches
            .get_mut(owner.0)
            .filter(|_| owner != BackendIndex::PRIMARY);
        if let Some(cache) = cache
            && !cache.connected
        {
            cache.connected = true;
            self.dirty.insert(Slot::Connected(owner));
        }
    }

    fn set_list(&mut self, owner: BackendIndex, kind: Kind, list: Bytes) {
        let changed = self
            .caches
            .get_mut(owner.0)
            .is_some_and(|cache| cache.set_list(kind, list));
        if changed && owner != BackendIndex::PRIMARY {
            self.dirty.insert(Slot::List(owner, kind));
        }
    }

    /// Keeps statuses of known objects only.
    fn drop_statuses(&mut self, owner: BackendIndex, kind: Kind) {
        let Self {
            owners,
            caches,
            dirty,
            ..
        } = self;
        let Some(cache) = caches.get_mut(owner.0) else {
            return;
        };
        if cache.keep_statuses(kind, |id| owners.knows(owner, kind, id)) {
            dirty.insert(Slot::Statuses(owner, kind));
        }
    }

    fn forget(&mut self, owner: BackendIndex, kind: Kind, id: &str) {
        if !self.owners.knows(owner, kind, id) {
            return;
        }
        self.dirty.insert(Slot::Ids(owner));
        let list = self.cache(owner).and_then(|cache| cache.list(kind));
        if let Some(Ok(list)) = list.map(|list| entries::without(list, id)) {
            self.set_list(owner, kind, list.into());
        }
        let cache = self.caches.get_mut(owner.0);
        if cache.is_some_and(|cache| cache.keep_statuses(kind, |kept| kept != id)) {
            self.dirty.insert(Slot::Statuses(owner, kind));
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= 63 && name.chars().all(good) && name != Slot::Boot.file() {
        return Ok(());
    }
    Err(Error::Name(name.to_owned()))
}

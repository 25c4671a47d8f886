//! The learned map: which backend has which sandbox, container, image and pod.
//!
//! Invariant: a learned owner takes precedence over the prefix of an id. An object stays known
//! until a complete list of its backend leaves it out, and at least [`GRACE`] from when it was
//! first reported: a list may be older than it.
//! Failure: none; an id that is empty or longer than [`MAX_NAME`] is not learned.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use super::entries::{Entry, MAX_NAME};
use super::{BackendIndex, BackendSpec, Kind, Owner};

/// How long an object is remembered that no list mentions.
pub(super) const GRACE: Duration = Duration::from_secs(60);

/// How long a pod is remembered whose sandbox no list mentions; making one may take that long.
pub(super) const POD_GRACE: Duration = Duration::from_secs(600);

/// Most objects of one kind and backend that are remembered without a list that mentions them.
const MAX_UNLISTED: usize = 10_000;

/// Shortest ID that is complete, so that its end may name the owner.
const FULL_ID: usize = 32;

/// What precedes the hex digits of an image id; people leave it out.
const DIGEST: &str = "sha256:";

/// The map.
#[derive(Debug)]
pub(super) struct Owners {
    backends: Vec<Known>,
}

#[derive(Debug, Default)]
struct Known {
    suffix: Option<String>,
    objects: [BTreeMap<String, Presence>; 3],
    /// Tags and digests of its images, as of the last list.
    names: BTreeSet<String>,
    pods: HashMap<String, Pod>,
}

#[derive(Debug, Clone, Copy)]
struct Pod {
    announced: Instant,
    /// Whether the last complete list of sandboxes mentions it.
    listed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Presence {
    first_seen: Instant,
    /// The state in the last complete list; `None` if that does not mention it.
    listed: Option<u64>,
}

impl Owners {
    /// Knows nothing yet.
    pub(super) fn new(specs: &[BackendSpec]) -> Self {
        let known = |spec: &BackendSpec| Known {
            suffix: spec.id_suffix.clone().filter(|suffix| !suffix.is_empty()),
            ..Known::default()
        };
        Self {
            backends: specs.iter().map(known).collect(),
        }
    }

    /// Remembers an object; true if it was unknown.
    pub(super) fn learn(
        &mut self,
        kind: Kind,
        id: &str,
        owner: BackendIndex,
        now: Instant,
    ) -> bool {
        let Some(known) = self.backends.get_mut(owner.0) else {
            return false;
        };
        let objects = &mut known.objects[kind.index()];
        let id = key(kind, id);
        if id.is_empty() || id.len() > MAX_NAME || objects.contains_key(id) {
            return false;
        }
        let unlisted = |presence: &&Presence| presence.listed.is_none();
        let many = objects.len() >= MAX_UNLISTED;
        if many && objects.values().filter(unlisted).count() >= MAX_UNLISTED {
            objects.retain(|_, presence| presence.listed.is_some());
        }
        objects.insert(
            id.to_owned(),
            Presence {
                first_seen: now,
                listed: None,
            },
        );
        true
    }

    /// Remembers where a pod lives. A pod that moves is forgotten where it was.
    pub(super) fn learn_uid(&mut self, uid: &str, owner: BackendIndex, now: Instant) {
        if uid.is_empty() || uid.len() > MAX_NAME || owner.0 >= self.backends.len() {
            return;
        }
        for (index, known) in self.backends.iter_mut().enumerate() {
            if index != owner.0 {
                known.pods.remove(uid);
            } else {
                known.expire_pods(now);
                let pod = Pod {
                    announced: now,
                    listed: false,
                };
                known.pods.entry(uid.to_owned()).or_insert(pod).announced = now;
            }
        }
    }

    /// Where the pod lives.
    pub(super) fn owner_of_uid(&self, uid: &str) -> Option<BackendIndex> {
        self.backends
            .iter()
            .position(|known| known.pods.contains_key(uid))
            .map(BackendIndex)
    }

    /// Removes an object, whichever backend has it; true if one had it.
    pub(super) fn forget(&mut self, kind: Kind, id: &str) -> bool {
        let id = key(kind, id);
        let mut had = false;
        for known in &mut self.backends {
            had |= known.objects[kind.index()].remove(id).is_some();
        }
        had
    }

    /// Takes over a complete list; true if ids came or went.
    pub(super) fn replace(
        &mut self,
        owner: BackendIndex,
        kind: Kind,
        list: Vec<Entry>,
        now: Instant,
    ) -> bool {
        let Some(known) = self.backends.get_mut(owner.0) else {
            return false;
        };
        let before = std::mem::take(&mut known.objects[kind.index()]);
        if kind == Kind::Sandbox {
            known.pods.values_mut().for_each(|pod| pod.listed = false);
        }
        let mut names = BTreeSet::new();
        let mut after = BTreeMap::new();
        let mut changed = false;
        for entry in list {
            let id = key(kind, &entry.id);
            if !id.is_empty() {
                let first_seen = before.get(id).map(|presence| presence.first_seen);
                changed |= first_seen.is_none();
                let first_seen = first_seen.unwrap_or(now);
                after.insert(
                    id.to_owned(),
                    Presence {
                        first_seen,
                        listed: Some(entry.state),
                    },
                );
            }
            names.extend(entry.names);
            if let Some(uid) = entry.uid {
                let pod = Pod {
                    announced: now,
                    listed: false,
                };
                known.pods.entry(uid).or_insert(pod).listed = true;
            }
        }
        for (id, presence) in before {
            if let btree_map::Entry::Vacant(gone) = after.entry(id) {
                let young = presence.is_young(now);
                if young {
                    gone.insert(Presence {
                        listed: None,
                        ..presence
                    });
                }
                changed |= !young;
            }
        }
        known.objects[kind.index()] = after;
        known.expire_pods(now);
        if kind == Kind::Image {
            known.names = names;
        }
        changed
    }

    /// The same complete list again: forgets what it does not mention; true if anything went.
    pub(super) fn repeat(&mut self, owner: BackendIndex, kind: Kind, now: Instant) -> bool {
        let Some(known) = self.backends.get_mut(owner.0) else {
            return false;
        };
        let objects = &mut known.objects[kind.index()];
        if objects.values().all(|presence| presence.listed.is_some()) {
            return false;
        }
        let before = objects.len();
        objects.retain(|_, presence| presence.listed.is_some() || presence.is_young(now));
        objects.len() != before
    }

    /// Who has the object: by full id or name, by the beginning of an id, by the end of a full id.
    pub(super) fn owner(&self, kind: Kind, id: &str) -> Owner {
        let id = key(kind, id);
        if id.is_empty() {
            return Owner::Unknown;
        }
        for rule in [Known::has, Known::has_prefix, Known::ends_like] {
            let mut owners = (0..)
                .zip(&self.backends)
                .filter(|(_, known)| rule(known, kind, id));
            match (owners.next(), owners.next()) {
                (Some((owner, _)), None) => return Owner::One(BackendIndex(owner)),
                (Some(_), Some(_)) => return Owner::Ambiguous,
                (None, _) => {}
            }
        }
        Owner::Unknown
    }

    /// The state of an object in the last complete list of its backend.
    pub(super) fn listed_state(&self, owner: BackendIndex, kind: Kind, id: &str) -> Option<u64> {
        self.backends.get(owner.0)?.objects[kind.index()]
            .get(key(kind, id))?
            .listed
    }

    /// Whether the backend is known to have the object.
    pub(super) fn knows(&self, owner: BackendIndex, kind: Kind, id: &str) -> bool {
        self.backends
            .get(owner.0)
            .is_some_and(|known| known.has(kind, key(kind, id)))
    }

    /// Every id of one kind that the backend is known to have.
    pub(super) fn ids(&self, owner: BackendIndex, kind: Kind) -> Vec<String> {
        let known = self.backends.get(owner.0);
        known
            .map(|known| known.objects[kind.index()].keys().cloned().collect())
            .unwrap_or_default()
    }
}

impl Presence {
    fn is_young(&self, now: Instant) -> bool {
        now.duration_since(self.first_seen) < GRACE
    }
}

impl Known {
    fn expire_pods(&mut self, now: Instant) {
        let fresh = |pod: &Pod| now.duration_since(pod.announced) < POD_GRACE;
        self.pods.retain(|_, pod| pod.listed || fresh(pod));
    }

    fn has(&self, kind: Kind, id: &str) -> bool {
        let named = kind == Kind::Image && self.names.contains(id);
        named || self.objects[kind.index()].contains_key(id)
    }

    fn has_prefix(&self, kind: Kind, prefix: &str) -> bool {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let mut after = self.objects[kind.index()].range::<str, _>(from);
        after.next().is_some_and(|(id, _)| id.starts_with(prefix))
    }

    fn ends_like(&self, kind: Kind, id: &str) -> bool {
        let full = kind != Kind::Image && id.len() >= FULL_ID;
        full && self
            .suffix
            .as_deref()
            .is_some_and(|suffix| id.ends_with(suffix))
    }
}

fn key(kind: Kind, id: &str) -> &str {
    match kind {
        Kind::Image => id.strip_prefix(DIGEST).unwrap_or(id),
        Kind::Sandbox | Kind::Container => id,
    }
}

//! The images in memory, from which lists and lookups are answered.
//!
//! Invariant: equals the committed rows; changed only after the commit and under the digest's lock.
//! Failure: none; what is not here is absent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use super::access::{Access, Identity, Key};
use super::digest::Digest;
use super::format::Format;
use super::partial::Validators;
use super::reference::{Name, Reference};
use super::share::Arrived;
use crate::metadata::Aside;

/// An image that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The image's id.
    pub digest: Digest,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes of the disk in it.
    pub virtual_size: u64,
    /// How the file is to be read. QEMU must not detect it.
    pub format: Format,
    /// The file; read-only for all users.
    pub path: PathBuf,
    /// Names with tags, `name:tag`, sorted.
    pub tags: Vec<String>,
    /// Names with the digest, `name@sha256:…`, sorted.
    pub digests: Vec<String>,
    /// The user in the configuration of an image from a registry; empty for none.
    pub user: String,
}

/// An image file that a sandbox's disk is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The image's id.
    pub digest: Digest,
    /// Bytes of the disk in it.
    pub virtual_size: u64,
    /// How the file is to be read. QEMU must not detect it.
    pub format: Format,
    /// The file; read-only for all users.
    pub path: PathBuf,
    /// How the owner of the pin names the image, where that is known.
    pub text: Option<String>,
}

/// An image that is kept for an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) digest: Digest,
    /// How the owner names the image, where that is known.
    pub(super) text: Option<String>,
}

/// When an image was used, and what needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUse {
    /// When its file came, in nanoseconds since the epoch.
    pub pulled_at: i64,
    /// When it was last pulled, or a disk based on it came or went.
    pub used_at: i64,
    /// The owners of its pins, sorted.
    pub owners: Vec<String>,
}

/// What is known of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) size: u64,
    pub(super) virtual_size: u64,
    pub(super) format: Format,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) facts: Facts,
    /// Removed by name or id, and here only as long as it is pinned.
    pub(super) removed: bool,
    pub(super) names: BTreeSet<String>,
    /// By which credentials it came.
    pub(super) access: Access,
    /// The user in the image's configuration.
    pub(super) user: String,
    /// When its file came, in nanoseconds since the epoch.
    pub(super) pulled_at: i64,
    /// When it was last pulled, or a pin began or ended.
    pub(super) used_at: i64,
}

impl Entry {
    /// A listed image without names.
    pub(super) fn new(facts: Facts) -> Self {
        Self {
            facts,
            removed: false,
            names: BTreeSet::new(),
            access: Access::new(),
            user: String::new(),
            pulled_at: 0,
            used_at: 0,
        }
    }
}

/// The rows as they are.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) entries: BTreeMap<Digest, Entry>,
    pub(super) names: HashMap<String, Digest>,
    pub(super) pins: HashMap<String, Pin>,
    /// Of the identities in [`Entry::access`].
    pub(super) key: Key,
    /// By the key of a source.
    pub(super) sources: HashMap<String, (Arrived, Validators)>,
    /// Images whose rows cannot be read: their files stay.
    pub(super) kept: HashSet<Digest>,
    /// Pins that cannot be read.
    pub(super) pins_aside: Aside,
    /// It is unknown which files rows that cannot be read are about: every file stays.
    pub(super) keeps_all: bool,
}

impl Rows {
    pub(super) fn is_pinned(&self, digest: Digest) -> bool {
        let is_kept = self.keeps_all || self.kept.contains(&digest);
        is_kept || self.pins.values().any(|pin| pin.digest == digest)
    }

    /// Images whose files stay, whatever the catalog says; `None`: every file does.
    pub(super) fn wanted(&self) -> Option<HashSet<Digest>> {
        let pinned = self.pins.values().map(|pin| pin.digest);
        let wanted = self.entries.keys().copied().chain(pinned);
        let wanted = wanted.chain(self.kept.iter().copied());
        (!self.keeps_all).then(|| wanted.collect())
    }

    /// Makes `names` mean `digest`, which is listed from now on.
    pub(super) fn name(&mut self, digest: Digest, names: &[String]) {
        for name in names {
            if let Some(old) = self.names.insert(name.clone(), digest)
                && let Some(entry) = self.entries.get_mut(&old)
            {
                entry.names.remove(name);
            }
        }
        if let Some(entry) = self.entries.get_mut(&digest) {
            entry.removed = false;
            entry.names.extend(names.iter().cloned());
        }
    }

    /// Records that an image came by these credentials.
    pub(super) fn admit(&mut self, digest: Digest, identity: Option<Identity>) {
        if let (Some(entry), Some(identity)) = (self.entries.get_mut(&digest), identity) {
            entry.access.add(identity);
        }
    }

    /// Whether a pull with these credentials uses an image without a request.
    pub(super) fn admits(&self, digest: Digest, identity: Identity) -> bool {
        let entry = self.entries.get(&digest);
        entry.is_some_and(|entry| entry.access.admits(identity))
    }

    /// Records a use of an image.
    pub(super) fn used(&mut self, digest: Digest, now: i64) {
        if let Some(entry) = self.entries.get_mut(&digest) {
            entry.used_at = now;
        }
    }

    /// Removes a pin; returns whether nothing needs the image any more, which is removed then.
    pub(super) fn unpin(&mut self, owner: &str, digest: Digest) -> bool {
        self.pins.remove(owner);
        let listed = self
            .entries
            .get(&digest)
            .is_some_and(|entry| !entry.removed);
        let unneeded = !listed && !self.is_pinned(digest);
        if unneeded {
            self.forget(digest);
        }
        unneeded
    }

    /// Forgets an image whose file no longer exists. Pins stay.
    pub(super) fn forget(&mut self, digest: Digest) {
        self.entries.remove(&digest);
        self.names.retain(|_, named| *named != digest);
        self.sources
            .retain(|_, (arrived, _)| arrived.digest != digest);
    }

    /// Takes an image from the lists. If it is pinned, what its file is, where that came from and by which SHA-512
    /// it was compared stay: a pull of the same file lists it again, without a download.
    pub(super) fn remove(&mut self, digest: Digest) {
        if !self.is_pinned(digest) {
            self.forget(digest);
        } else if let Some(entry) = self.entries.get_mut(&digest) {
            entry.removed = true;
            entry.names.retain(|name| is_by_sha512(name));
            self.names
                .retain(|name, named| *named != digest || is_by_sha512(name));
        }
    }

    fn resolve(&self, reference: &str) -> Option<Digest> {
        let listed = |digest: &Digest| self.entries.get(digest).is_some_and(|e| !e.removed);
        let found = match Reference::parse(reference) {
            Ok(Reference::Id(digest)) => Some(digest),
            Ok(Reference::Named(name)) => self.names.get(&name.to_string()).copied(),
            Err(_) => None,
        };
        found.filter(listed).or_else(|| {
            let prefix = Reference::id_prefix(reference)?;
            let mut matching = self
                .entries
                .keys()
                .filter(|digest| digest.hex().starts_with(prefix) && listed(digest));
            matching
                .next()
                .filter(|_| matching.next().is_none())
                .copied()
        })
    }
}

/// The rows, shared.
#[derive(Debug)]
pub(super) struct Catalog {
    data: PathBuf,
    rows: RwLock<Rows>,
}

impl Catalog {
    pub(super) const fn new(data: PathBuf, rows: Rows) -> Self {
        Self {
            data,
            rows: RwLock::new(rows),
        }
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&Rows) -> T) -> T {
        look(&self.rows.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Rows) -> T) -> T {
        change(&mut self.rows.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the file of an image is.
    pub(super) fn path(&self, digest: Digest) -> PathBuf {
        self.data.join(digest.hex())
    }

    pub(super) fn resolve(&self, reference: &str) -> Option<Digest> {
        self.read(|rows| rows.resolve(reference))
    }

    /// The image that has this name, a removed but pinned one by a SHA-512 alone.
    pub(super) fn known_as(&self, name: &Name) -> Option<Digest> {
        self.read(|rows| rows.names.get(&name.to_string()).copied())
    }

    /// The image as clients see it, a removed but pinned one without names.
    pub(super) fn image(&self, digest: Digest) -> Option<Image> {
        self.read(|rows| {
            rows.entries
                .get(&digest)
                .map(|entry| self.view(digest, entry))
        })
    }

    pub(super) fn list(&self) -> Vec<Image> {
        self.read(|rows| {
            let listed = rows.entries.iter().filter(|(_, entry)| !entry.removed);
            listed
                .map(|(digest, entry)| self.view(*digest, entry))
                .collect()
        })
    }

    pub(super) fn pinned(&self, owner: &str) -> Option<Pinned> {
        self.read(|rows| {
            let Pin { digest, text } = rows.pins.get(owner)?.clone();
            let facts = rows.entries.get(&digest)?.facts;
            Some(Pinned {
                digest,
                virtual_size: facts.virtual_size,
                format: facts.format,
                path: self.path(digest),
                text,
            })
        })
    }

    pub(super) fn use_of(&self, digest: Digest) -> Option<ImageUse> {
        self.read(|rows| {
            let entry = rows.entries.get(&digest)?;
            let pins = rows.pins.iter().filter(|(_, pin)| pin.digest == digest);
            let mut owners: Vec<_> = pins.map(|(owner, _)| owner.clone()).collect();
            owners.sort_unstable();
            Some(ImageUse {
                pulled_at: entry.pulled_at,
                used_at: entry.used_at,
                owners,
            })
        })
    }

    fn view(&self, digest: Digest, entry: &Entry) -> Image {
        let by_digest = |name: &&String| name.contains('@');
        let names = || entry.names.iter().filter(|_| !entry.removed);
        Image {
            digest,
            size: entry.facts.size,
            virtual_size: entry.facts.virtual_size,
            format: entry.facts.format,
            path: self.path(digest),
            tags: names().filter(|n| !by_digest(n)).cloned().collect(),
            digests: names().filter(by_digest).cloned().collect(),
            user: entry.user.clone(),
        }
    }
}

/// Whether a name says what its file was compared with, which the digest of the file does not say.
fn is_by_sha512(name: &str) -> bool {
    name.contains("@sha512:")
}

/// The names under which a pull of `name` is listed, whose content has `digest`.
pub(super) fn names_of(name: &Name, digest: Digest) -> Vec<String> {
    let mut names = vec![name.to_string(), format!("{}@{digest}", name.repository())];
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_id_means_an_image_only_if_it_fits_no_other() {
        let digest =
            |last| Digest::from_bytes(std::array::from_fn(|i| if i < 31 { 7 } else { last }));
        let facts = Facts {
            size: 512,
            virtual_size: 512,
            format: Format::Raw,
        };
        let mut rows = Rows::default();
        rows.entries.insert(digest(1), Entry::new(facts));
        let short = &digest(1).hex()[..20];
        assert_eq!(rows.resolve(short), Some(digest(1)));
        rows.entries.insert(digest(2), Entry::new(facts));
        assert_eq!(rows.resolve(short), None);
        assert_eq!(rows.resolve(&digest(2).to_string()), Some(digest(2)));
        rows.remove(digest(2));
        assert_eq!(rows.resolve(short), Some(digest(1)));
    }
}

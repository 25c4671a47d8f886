//! Feeds one store from its watch: converts raw watcher events to real changes.
//!
//! ```text
//! before the first InitDone          after it
//! InitApply → Created{initial}       Apply → Created | Updated
//!                                    Delete → Deleted
//!                                    Init … InitApply … InitDone: a relist; known keys → Updated, others
//!                                    → Created, keys that are missing → Deleted{certain: false}
//! ```
//!
//! Invariant: the store holds an object before its change is returned, and no longer when its end
//! is.
//! Failure: a listing that is broken off changes nothing; the next `Init` begins it again. An object
//! that cannot be read leaves the last version that could.

use std::collections::HashSet;
use std::fmt::Debug;
use std::mem;
use std::sync::Arc;

use crds::guard::{Guarded, Unreadable};
use kube::ResourceExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;

use super::index::{Index, Indexed};

/// Where kubectl keeps the object as it was last applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<K> {
    /// It appeared.
    Created {
        /// The object.
        object: Arc<K>,
        /// By the first listing after the start.
        initial: bool,
    },
    /// It is there in another version, or was seen again in the same one.
    Updated {
        /// Before.
        old: Arc<K>,
        /// Now.
        new: Arc<K>,
        /// Both have the same resourceVersion.
        unchanged: bool,
    },
    /// It no longer exists.
    Deleted {
        /// As it was last seen.
        last: Arc<K>,
        /// The deletion itself was observed; otherwise it happened between two watches.
        certain: bool,
    },
}

impl<K> Change<K> {
    /// The object as it is or last was.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Created { object, .. } => object,
            Self::Updated { new, .. } => new,
            Self::Deleted { last, .. } => last,
        }
    }

    /// The object did not change: a first listing or a resync contained it.
    pub fn is_routine(&self) -> bool {
        match self {
            Self::Created { initial, .. } => *initial,
            Self::Updated { unchanged, .. } => *unchanged,
            Self::Deleted { .. } => false,
        }
    }
}

/// The writing side of one store.
#[allow(missing_debug_implementations, reason = "stores have none")]
pub struct Feed<K: Indexed + Clone + 'static> {
    writer: Writer<K>,
    store: Store<K>,
    index: Index,
    /// What the listing in progress has brought.
    listed: Vec<ObjectRef<K>>,
    was_listed: bool,
}

impl<K: Indexed + Clone + Debug + Send + Sync + 'static> Feed<K> {
    pub(super) fn new(index: Index) -> Self {
        let writer = Writer::new(());
        Self {
            store: writer.as_reader(),
            writer,
            index,
            listed: Vec::new(),
            was_listed: false,
        }
    }

    pub(super) fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// The event for [`Self::apply`]; `None`: its object cannot be read, and changes nothing. One that
    /// is known stays as it was last read, until it is deleted: a pod or node that cannot be read has
    /// not gone.
    pub fn readable(&self, event: Event<Guarded<K>>) -> Option<Event<K>> {
        let known = |bad: Unreadable| {
            let mut reference = ObjectRef::new(bad.metadata.name.as_deref().unwrap_or_default());
            reference.namespace = bad.metadata.namespace;
            let known = self.store.get(&reference);
            let same = known.filter(|known| known.uid() == bad.metadata.uid);
            same.map(Arc::unwrap_or_clone).ok_or(())
        };
        match event {
            Event::Init => Some(Event::Init),
            Event::InitDone => Some(Event::InitDone),
            Event::InitApply(object) => object.0.or_else(known).ok().map(Event::InitApply),
            Event::Apply(object) => object.0.ok().map(Event::Apply),
            Event::Delete(object) => object.0.or_else(known).ok().map(Event::Delete),
        }
    }

    /// Takes one event of the watch in; returns what changed, in order.
    pub fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        let event = event.modify(forget);
        match event {
            Event::Init => {
                self.listed.clear();
                self.writer.apply_watcher_event(&event);
                Vec::new()
            }
            Event::InitApply(ref object) => {
                self.listed.push(ObjectRef::from_obj(object));
                self.writer.apply_watcher_event(&event);
                Vec::new()
            }
            Event::InitDone => self.end_of_listing(),
            Event::Apply(ref object) => {
                let reference = ObjectRef::from_obj(object);
                let old = self.store.get(&reference);
                K::file(object, false, &self.index);
                self.writer.apply_watcher_event(&event);
                self.seen(&reference, old, false)
            }
            Event::Delete(ref object) => {
                let known = self.store.get(&ObjectRef::from_obj(object));
                self.writer.apply_watcher_event(&event);
                K::file(object, true, &self.index);
                // Announced already, by a listing that did not contain it.
                let is_news = known.is_some();
                let last = Arc::new(object.clone());
                is_news
                    .then_some(Change::Deleted {
                        last,
                        certain: true,
                    })
                    .into_iter()
                    .collect()
            }
        }
    }

    /// All objects as if they had been seen again: what informers call a resync.
    pub fn resync(&self) -> Vec<Change<K>> {
        let again = |object: Arc<K>| Change::Updated {
            old: Arc::clone(&object),
            new: object,
            unchanged: true,
        };
        self.store.state().into_iter().map(again).collect()
    }

    fn end_of_listing(&mut self) -> Vec<Change<K>> {
        let initial = !mem::replace(&mut self.was_listed, true);
        let listed = mem::take(&mut self.listed);
        // Stores list objects in no certain order.
        let mut before = self.store.state();
        before.sort_by(|a, b| place(&**a).cmp(&place(&**b)));
        let old: Vec<_> = listed.iter().map(|seen| self.store.get(seen)).collect();
        self.writer.apply_watcher_event(&Event::InitDone);
        let present: HashSet<_> = listed.iter().collect();
        let mut changes = Vec::with_capacity(listed.len());
        for last in before {
            if !present.contains(&ObjectRef::from_obj(&*last)) {
                K::file(&last, true, &self.index);
                changes.push(Change::Deleted {
                    last,
                    certain: false,
                });
            }
        }
        for (reference, old) in listed.iter().zip(old) {
            if let Some(object) = self.store.get(reference) {
                K::file(&object, false, &self.index);
            }
            changes.extend(self.seen(reference, old, initial));
        }
        changes
    }

    /// The object is in the store now; `old` was there before.
    fn seen(&self, key: &ObjectRef<K>, old: Option<Arc<K>>, initial: bool) -> Vec<Change<K>> {
        let Some(object) = self.store.get(key) else {
            return Vec::new();
        };
        match old {
            Some(old) if old.uid() == object.uid() => vec![Change::Updated {
                unchanged: old.resource_version() == object.resource_version(),
                old,
                new: object,
            }],
            // Deleted and created again between two watches.
            Some(last) => vec![
                Change::Deleted {
                    last,
                    certain: false,
                },
                Change::Created {
                    object,
                    initial: false,
                },
            ],
            None => vec![Change::Created { object, initial }],
        }
    }
}

/// Takes away what is never read: ownership of fields, which is half of the memory, and the copy of the
/// object that kubectl may leave in it.
fn forget<K: ResourceExt>(object: &mut K) {
    object.managed_fields_mut().clear();
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// The key by which objects are sorted.
fn place<K: ResourceExt>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

//! The pulls that pods wait for, and how far each is: the agent reports them to the pods.
//!
//! Invariant: a pull is listed from its fifth look until it ends or its client disconnects; each pod
//! that waits for a shared download has an entry of its own. What is listed is bounded and
//! printable, and has no query, user name or password.
//! Failure: none; a pull without a pod, or above the bound, is made without an entry.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use super::Images;
use super::catalog::Image;
use super::error::Result;
use super::locator::Locator;
use super::progress::Progress;
use super::registry::Credentials;

/// Looks that a pull passes before it is listed: short pulls are not. With the time between looks
/// these are two seconds.
const UNLISTED_LOOKS: u32 = 4;
/// Most pulls that are listed.
const MOST: usize = 1000;
/// Longest text of a pod's identity.
const LONGEST: usize = 253;
/// Bytes by which a download of unknown size advances between two changes.
const UNSIZED_STEP: u64 = 16 << 20;

/// A pod that requests an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

impl Requester {
    /// `None` unless all three can be parts of a pod's identity.
    pub fn new(namespace: String, name: String, uid: String) -> Option<Self> {
        let is_part = |text: &String| {
            let mut bytes = text.bytes();
            let is_plain = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
            is_plain && (1..=LONGEST).contains(&text.len())
        };
        let all = [&namespace, &name, &uid].into_iter().all(is_part);
        all.then_some(Self {
            namespace,
            name,
            uid,
        })
    }
}

/// A pull that a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPull {
    /// The pod.
    pub pod: Requester,
    /// The image, as people may see it.
    pub image: String,
    /// How far it is.
    pub progress: Progress,
}

/// The pulls that are listed.
#[derive(Debug)]
pub(super) struct PodPulls {
    listed: Mutex<BTreeMap<Uuid, PodPull>>,
    changes: watch::Sender<u64>,
}

/// A pull in progress; its end removes the entry.
struct Entry<'a> {
    all: &'a PodPulls,
    id: Uuid,
    pod: Requester,
    image: String,
    looks: u32,
}

impl Default for PodPulls {
    fn default() -> Self {
        Self {
            listed: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl PodPulls {
    fn listed(&self) -> MutexGuard<'_, BTreeMap<Uuid, PodPull>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn entry(&self, pod: Requester, image: String) -> Entry<'_> {
        Entry {
            all: self,
            // Never one of an earlier process: a client may still have its pulls.
            id: Uuid::new_v4(),
            pod,
            image,
            looks: 0,
        }
    }
}

impl Entry<'_> {
    fn look(&mut self, progress: Progress) {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= UNLISTED_LOOKS {
            return;
        }
        let mut listed = self.all.listed();
        let is_full = listed.len() >= MOST;
        match listed.get_mut(&self.id) {
            Some(pull) if step(pull.progress) == step(progress) => return,
            Some(pull) => pull.progress = progress,
            None if is_full => return,
            None => {
                let pull = PodPull {
                    pod: self.pod.clone(),
                    image: self.image.clone(),
                    progress,
                };
                listed.insert(self.id, pull);
            }
        }
        drop(listed);
        self.all.changed();
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let removed = self.all.listed().remove(&self.id);
        if removed.is_some() {
            self.all.changed();
        }
    }
}

/// What makes two looks differ.
fn step(progress: Progress) -> (Option<u64>, u64) {
    match progress.percent() {
        Some(percent) => (progress.total, percent.into()),
        None => (None, progress.received / UNSIZED_STEP),
    }
}

impl Images {
    /// As [`Images::pull_with`]; meanwhile [`Images::pod_pulls`] lists the pull for this pod.
    pub async fn pull_for(
        &self,
        pod: Option<Requester>,
        image: Locator<'_>,
        credentials: Option<&Credentials>,
    ) -> Result<Image> {
        let Some(pod) = pod else {
            return self.pull_with(image, credentials).await;
        };
        let mut entry = self.inner.pod_pulls.entry(pod, image.presentable());
        self.pull_looking(image, credentials, |progress| entry.look(progress))
            .await
    }

    /// The pulls that pods wait for. The ids are of this process only.
    pub fn pod_pulls(&self) -> BTreeMap<Uuid, PodPull> {
        self.inner.pod_pulls.listed().clone()
    }

    /// Changes whenever [`Images::pod_pulls`] does.
    pub fn pod_pull_changes(&self) -> watch::Receiver<u64> {
        self.inner.pod_pulls.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Requester {
        let of = |text: &str| text.to_owned();
        Requester::new(of("ns"), of("vm"), of(uid)).unwrap()
    }

    fn at(received: u64, total: Option<u64>) -> Progress {
        Progress { received, total }
    }

    #[test]
    fn a_pull_is_listed_from_its_fifth_look_to_its_end() {
        let all = PodPulls::default();
        let changes = all.changes.subscribe();
        let mut entry = all.entry(pod("u"), "h/a:1".to_owned());
        for _ in 0..UNLISTED_LOOKS {
            entry.look(at(50, Some(100)));
            assert!(all.listed().is_empty());
        }
        entry.look(at(50, Some(100)));
        let listed: Vec<_> = all.listed().values().cloned().collect();
        assert_eq!(
            listed,
            [PodPull {
                pod: pod("u"),
                image: "h/a:1".to_owned(),
                progress: at(50, Some(100)),
            }]
        );
        drop(entry);
        assert!(all.listed().is_empty());
        assert_eq!(*changes.borrow(), 2, "one for each change");
    }

    #[test]
    fn only_a_whole_percent_or_a_step_of_bytes_is_a_change() {
        let all = PodPulls::default();
        let changes = all.changes.subscribe();
        let mut entry = all.entry(pod("u"), "h/a:1".to_owned());
        let mut count = |progress| {
            for _ in 0..=UNLISTED_LOOKS {
                entry.look(progress);
            }
            *changes.borrow()
        };
        assert_eq!(count(at(0, None)), 1);
        assert_eq!(count(at(UNSIZED_STEP - 1, None)), 1);
        assert_eq!(count(at(UNSIZED_STEP, None)), 2);
        assert_eq!(count(at(1000, Some(100_000))), 3);
        assert_eq!(count(at(1999, Some(100_000))), 3);
        assert_eq!(count(at(2000, Some(100_000))), 4);
    }

    #[test]
    fn the_list_is_bounded_and_its_end_frees_the_place() {
        let all = PodPulls::default();
        let list = |n: usize| {
            let mut entry = all.entry(pod(&n.to_string()), String::new());
            for _ in 0..=UNLISTED_LOOKS {
                entry.look(at(0, None));
            }
            entry
        };
        let mut entries: Vec<_> = (0..=MOST).map(list).collect();
        assert_eq!(all.listed().len(), MOST);
        entries.remove(0);
        entries[MOST - 1].look(at(0, None));
        assert_eq!(all.listed().len(), MOST);
        drop(entries);
        assert!(all.listed().is_empty());
    }

    #[test]
    fn a_requester_is_named_as_pods_are() {
        let new = |namespace: &str, name: &str, uid: &str| {
            Requester::new(namespace.to_owned(), name.to_owned(), uid.to_owned())
        };
        assert!(new("kube-system", "vm-1.a", "0d1f4ad2-3c0e").is_some());
        for (namespace, name, uid) in [
            ("", "vm", "u"),
            ("ns", "", "u"),
            ("ns", "vm", ""),
            ("ns", "vm\n", "u"),
            ("ns", "../vm", "u"),
            ("ns", &"v".repeat(254), "u"),
        ] {
            assert_eq!(new(namespace, name, uid), None, "{name:?}");
        }
    }
}

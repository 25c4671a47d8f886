//! Writes whose effect the watches have not shown yet.
//!
//! Invariant: between a write and its event a machine is left alone, so that a lagging store makes neither a
//! second pod nor a second deletion.
//! Failure: an event that never comes is forgotten after a while; names and preconditions protect then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lifecycle::Pending;

use super::pods;
use crate::context::Key;

/// Seconds after which an expectation counts no more.
const PATIENCE: i64 = 30;

/// What is expected, by machine. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Expectations(Arc<Mutex<HashMap<Key, Expected>>>);

#[derive(Debug)]
struct Expected {
    pending: Pending,
    uid: String,
    since: i64,
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Expected>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod was created or deleted.
    pub(crate) fn set(&self, key: &Key, pending: Pending, uid: String, since: i64) {
        let expected = Expected {
            pending,
            uid,
            since,
        };
        self.lock().insert(key.clone(), expected);
    }

    /// The machine is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// What is still expected, given the pod that the store has.
    pub(crate) fn pending(&self, key: &Key, pod: Option<&Pod>, now: i64) -> Pending {
        let mut all = self.lock();
        let Some(expected) = all.get(key) else {
            return Pending::Nothing;
        };
        let this = pod.filter(|p| p.uid().as_deref() == Some(&expected.uid));
        let is_seen = match expected.pending {
            Pending::Nothing => true,
            Pending::Create => this.is_some(),
            Pending::Delete => this.is_none_or(pods::is_deleting),
        };
        if is_seen || now - expected.since >= PATIENCE {
            all.remove(key);
            return Pending::Nothing;
        }
        expected.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_ends_when_it_is_seen_or_after_a_while() {
        let (all, key) = (Expectations::default(), Key::new("ns", "vm"));
        let mut pod = Pod::default();
        pod.metadata.uid = Some("new".to_owned());
        all.set(&key, Pending::Create, "new".to_owned(), 0);
        assert_eq!(all.pending(&key, None, 1), Pending::Create);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Nothing);
        all.set(&key, Pending::Delete, "new".to_owned(), 0);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Delete);
        assert_eq!(all.pending(&key, Some(&pod), PATIENCE), Pending::Nothing);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Nothing);
    }
}

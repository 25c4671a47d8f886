//! Writes whose effect the watches have not shown yet.
//!
//! Invariant: between a write and its event a machine is left alone, so that a lagging store makes
//! neither a second pod nor a second deletion, nor a write of the machine that the API server
//! refuses for its age.
//! Failure: an event that never comes is forgotten after a while; names and preconditions protect
//! then.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::VirtualMachine;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lifecycle::Pending;

use crate::stores::Key;

/// Seconds after which an expectation counts no more.
pub(crate) const TIMEOUT: i64 = 30;

/// What is expected, by machine. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Expectations(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    pods: HashMap<Key, Expected>,
    /// The version that the machine's last write made, and when that was.
    machines: HashMap<Key, (u64, i64)>,
    /// The pod that the placeholder has made room for, and when that was.
    placed: HashMap<Key, (String, i64)>,
    /// Tasks that were requested, and when that was.
    tasks: HashMap<Key, BTreeMap<Key, i64>>,
}

#[derive(Debug)]
struct Expected {
    pending: Pending,
    uid: String,
    since: i64,
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod was created or deleted.
    pub(crate) fn set(&self, key: &Key, pending: Pending, uid: String, since: i64) {
        let expected = Expected {
            pending,
            uid,
            since,
        };
        self.lock().pods.insert(key.clone(), expected);
    }

    /// The machine no longer exists.
    pub(crate) fn forget(&self, key: &Key) {
        let mut all = self.lock();
        all.pods.remove(key);
        all.machines.remove(key);
        all.placed.remove(key);
        all.tasks.remove(key);
    }

    /// A task is being created for the machine. Returns when it was requested before, if that is still expected.
    pub(crate) fn requested(&self, key: &Key, task: &Key, since: i64) -> Option<i64> {
        let mut all = self.lock();
        let tasks = all.tasks.entry(key.clone()).or_default();
        tasks.retain(|_, before| is_recent(before, since));
        tasks.insert(task.clone(), since)
    }

    /// The API server has refused the request: only an earlier one may have had its effect.
    pub(crate) fn was_refused(&self, key: &Key, task: &Key, earlier: Option<i64>) {
        let mut all = self.lock();
        let Some(tasks) = all.tasks.get_mut(key) else {
            return;
        };
        tasks.remove(task);
        tasks.extend(earlier.map(|since| (task.clone(), since)));
        if tasks.is_empty() {
            all.tasks.remove(key);
        }
    }

    /// The store shows those of them that `is_known` knows.
    pub(crate) fn saw_tasks(&self, key: &Key, is_known: impl Fn(&Key) -> bool) {
        let mut all = self.lock();
        let Some(tasks) = all.tasks.get_mut(key) else {
            return;
        };
        tasks.retain(|task, _| !is_known(task));
        if tasks.is_empty() {
            all.tasks.remove(key);
        }
    }

    /// Whether one that was requested a moment ago, other than `own`, is not seen yet.
    pub(crate) fn awaits_task(&self, key: &Key, own: Option<&Key>, now: i64) -> bool {
        let mut all = self.lock();
        let mut tasks = all.tasks.get_mut(key).into_iter().flatten();
        tasks.any(|(task, since)| own != Some(task) && is_recent(since, now))
    }

    /// The placeholder is deleted, and the gate of the pod that it made room for is removed.
    pub(crate) fn handed_over(&self, key: &Key, uid: String, since: i64) {
        let mut all = self.lock();
        all.placed.insert(key.clone(), (uid, since));
    }

    /// Whether that happened for this pod a moment ago, whatever the store shows.
    pub(crate) fn is_handed_over(&self, key: &Key, pod: &Pod, now: i64) -> bool {
        let all = self.lock();
        let placed = all.placed.get(key);
        placed
            .is_some_and(|(uid, since)| pod.uid().as_deref() == Some(uid) && now - since < TIMEOUT)
    }

    /// The machine itself was written.
    pub(crate) fn wrote(&self, key: &Key, new: &VirtualMachine, since: i64) {
        if let Some(version) = version(new) {
            let mut all = self.lock();
            all.machines.insert(key.clone(), (version, since));
        }
    }

    /// Whether the store has the machine as it was before our last write.
    pub(crate) fn is_old(&self, key: &Key, found: &VirtualMachine, now: i64) -> bool {
        let mut all = self.lock();
        let Some((written, since)) = all.machines.get(key) else {
            return false;
        };
        let is_old = version(found).is_some_and(|version| version < *written);
        if is_old && now - since < TIMEOUT {
            return true;
        }
        all.machines.remove(key);
        false
    }

    /// What is still expected, given the pod that the store has.
    pub(crate) fn pending(&self, key: &Key, pod: Option<&Pod>, now: i64) -> Pending {
        let mut all = self.lock();
        let Some(expected) = all.pods.get(key) else {
            return Pending::Nothing;
        };
        let this = pod.filter(|p| p.uid().as_deref() == Some(&expected.uid));
        let is_seen = match expected.pending {
            Pending::Nothing => true,
            Pending::Create => this.is_some(),
            Pending::Delete => this.is_none_or(|p| p.metadata.deletion_timestamp.is_some()),
        };
        if is_seen || now - expected.since >= TIMEOUT {
            all.pods.remove(key);
            return Pending::Nothing;
        }
        expected.pending
    }
}

/// Whether what was requested then still counts. After a clock has stepped back it counts from now on.
fn is_recent(since: &mut i64, now: i64) -> bool {
    *since = now.min(*since);
    now - *since < TIMEOUT
}

/// Versions grow; one that is no number is compared with nothing.
fn version(vm: &VirtualMachine) -> Option<u64> {
    vm.metadata.resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_old_until_the_store_has_its_last_write_or_a_later_one() {
        let all = Expectations::default();
        let key = Key::new("ns", "vm");
        let of = |version: &str| {
            let mut vm = VirtualMachine::new("vm", Default::default());
            vm.metadata.resource_version = Some(version.to_owned());
            vm
        };
        assert!(!all.is_old(&key, &of("8"), 0), "nothing was written");
        all.wrote(&key, &of("10"), 0);
        assert!(all.is_old(&key, &of("9"), TIMEOUT - 1));
        assert!(!all.is_old(&key, &of("10"), 1));
        assert!(!all.is_old(&key, &of("9"), 1), "it was seen");
        all.wrote(&key, &of("10"), 0);
        assert!(!all.is_old(&key, &of("9"), TIMEOUT), "it is lost");
        all.wrote(&key, &of("odd"), 0);
        assert!(!all.is_old(&key, &of("9"), 0));
    }

    #[test]
    fn a_task_is_awaited_until_it_is_known_or_for_a_while() {
        let all = Expectations::default();
        let [vm, other] = ["vm", "other"].map(|name| Key::new("ns", name));
        let [first, second] = ["first", "second"].map(|name| Key::new("ns", name));
        all.requested(&vm, &first, 0);
        all.requested(&vm, &second, 10);
        let awaits = |own, now| all.awaits_task(&vm, own, now);
        assert!(awaits(Some(&first), 10) && awaits(Some(&second), 10));
        assert!(!awaits(Some(&second), TIMEOUT), "the first one is lost");
        assert!(!all.awaits_task(&other, None, 10));
        all.saw_tasks(&vm, |task| *task == second);
        assert!(!awaits(Some(&first), 10) && awaits(None, 10));
        all.requested(&vm, &second, TIMEOUT);
        assert_eq!(all.lock().tasks[&vm].len(), 1, "it is forgotten then");
        all.saw_tasks(&vm, |task| *task == second);
        assert!(all.lock().tasks.is_empty());
    }

    #[test]
    fn a_task_that_is_refused_is_awaited_only_if_an_earlier_request_may_have_made_it() {
        let all = Expectations::default();
        let [vm, task] = ["vm", "task"].map(|name| Key::new("ns", name));
        let refuse = |now| {
            let earlier = all.requested(&vm, &task, now);
            all.was_refused(&vm, &task, earlier);
        };
        refuse(0);
        assert!(!all.awaits_task(&vm, None, 0));
        assert!(all.lock().tasks.is_empty());
        all.requested(&vm, &task, 0);
        refuse(20);
        assert!(all.awaits_task(&vm, None, TIMEOUT - 1));
        assert!(!all.awaits_task(&vm, None, TIMEOUT), "as of the first one");
        refuse(TIMEOUT);
        assert!(all.lock().tasks.is_empty());
    }

    #[test]
    fn a_task_is_awaited_no_longer_when_the_clock_steps_back() {
        let all = Expectations::default();
        let [vm, task, other] = ["vm", "task", "other"].map(|name| Key::new("ns", name));
        all.requested(&vm, &task, 1000);
        assert!(all.awaits_task(&vm, None, 0), "it may still come");
        assert!(all.awaits_task(&vm, None, TIMEOUT - 1));
        assert!(!all.awaits_task(&vm, None, TIMEOUT));
        all.requested(&vm, &task, 1000);
        all.requested(&vm, &other, 0);
        assert!(!all.awaits_task(&vm, Some(&other), TIMEOUT));
    }

    #[test]
    fn an_expectation_ends_when_it_is_seen_or_after_a_while() {
        let all = Expectations::default();
        let key = Key::new("ns", "vm");
        let mut pod = Pod::default();
        pod.metadata.uid = Some("new".to_owned());
        all.set(&key, Pending::Create, "new".to_owned(), 0);
        assert_eq!(all.pending(&key, None, 1), Pending::Create);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Nothing);
        all.set(&key, Pending::Delete, "new".to_owned(), 0);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Delete);
        assert_eq!(all.pending(&key, Some(&pod), TIMEOUT), Pending::Nothing);
        assert_eq!(all.pending(&key, Some(&pod), 1), Pending::Nothing);
    }
}

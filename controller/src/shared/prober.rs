//! TCP readiness probes.
//!
//! Invariant: one loop per machine with such a probe, and none for a machine that is off or gone; a
//! bounded number of connections at the same time, in all and for one namespace; a loop ends when
//! its probe changes.
//! Failure: an address that cannot be reached is an answer. A changed answer wakes the machine.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{self, MissedTickBehavior};

use crate::stores::Key;

/// Connections that are tried at the same time.
const AT_ONCE: usize = 256;
/// Probes in progress for the machines of one namespace: one namespace with machines that never
/// answer cannot use all probes.
const PER_NAMESPACE: usize = 16;

/// An answer of a readiness probe; a sentence where it is not "yes".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Ready.
    Yes,
    /// Not ready.
    No(&'static str),
    /// There is no result yet.
    Unknown(&'static str),
}

/// Who is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
struct Probe {
    target: Target,
    answer: Option<Answer>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct All {
    probes: HashMap<Key, Probe>,
    /// By namespace; its probes keep them.
    places: HashMap<String, Weak<Semaphore>>,
}

impl All {
    fn places_of(&mut self, namespace: &str) -> Arc<Semaphore> {
        if let Some(known) = self.places.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        self.places.retain(|_, places| places.strong_count() > 0);
        let new = Arc::new(Semaphore::new(PER_NAMESPACE));
        self.places
            .insert(namespace.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// All TCP probes. Clones share them.
#[derive(Debug, Clone)]
pub struct Prober {
    all: Arc<Mutex<All>>,
    places: Arc<Semaphore>,
    wake: Arc<Mutex<Option<mpsc::Sender<Key>>>>,
}

impl Default for Prober {
    fn default() -> Self {
        Self {
            all: Arc::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
            wake: Arc::default(),
        }
    }
}

impl Prober {
    /// Keys of machines whose answer changed are sent here; each should be looked at.
    pub fn wake_by(&self, sender: mpsc::Sender<Key>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    /// The last answer for a machine.
    #[must_use]
    pub fn answer(&self, key: &Key) -> Option<Answer> {
        self.lock().probes.get(key).and_then(|p| p.answer)
    }

    /// How many machines are probed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().probes.len()
    }

    /// Whether no machine is probed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Probes a machine no longer.
    pub fn unregister(&self, key: &Key) {
        if let Some(old) = self.lock().probes.remove(key) {
            old.task.abort();
        }
    }

    /// Probes a machine from now on; a probe that has changed begins again.
    pub(crate) fn register(&self, key: &Key, target: Target) {
        let mut all = self.lock();
        if all.probes.get(key).is_some_and(|p| p.target == target) {
            return;
        }
        let (prober, own, goal) = (self.clone(), key.clone(), target.clone());
        let places = all.places_of(&key.namespace);
        let task = tokio::spawn(async move { prober.watch(own, goal, places).await });
        let new = Probe {
            target,
            // The old answer stands until there is a new one.
            answer: all.probes.get(key).and_then(|p| p.answer),
            task: task.abort_handle(),
        };
        if let Some(old) = all.probes.insert(key.clone(), new) {
            old.task.abort();
        }
    }

    async fn watch(self, key: Key, target: Target, places: Arc<Semaphore>) {
        let mut ticks = time::interval(target.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = self.try_once(&target, &places).await;
            let is_new = {
                let mut all = self.lock();
                let probe = all.probes.get_mut(&key);
                // Another probe took the place of this one while it was tried.
                let Some(probe) = probe.filter(|p| p.target == target) else {
                    return;
                };
                probe.answer.replace(answer) != Some(answer)
            };
            let wake = self
                .wake
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if let Some(wake) = wake.filter(|_| is_new) {
                // The receiver is dropped when the process ends.
                let _ = wake.send(key.clone()).await;
            }
        }
    }

    async fn try_once(&self, target: &Target, places: &Semaphore) -> Answer {
        let Some(address) = target.address else {
            return Answer::No("the machine has no address");
        };
        let (Ok(_own), Ok(_place)) = (places.acquire().await, self.places.acquire().await) else {
            return Answer::Unknown("the prober ends");
        };
        match time::timeout(target.timeout, TcpStream::connect(address)).await {
            Ok(Ok(_)) => Answer::Yes,
            Ok(Err(_)) => Answer::No("the port does not accept a connection"),
            Err(_) => Answer::No("the port did not answer in time"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: Option<SocketAddr>) -> Target {
        Target {
            address,
            period: Duration::from_millis(20),
            timeout: Duration::from_secs(5),
        }
    }

    #[tokio::test]
    async fn a_port_that_closes_wakes_the_machine_with_another_answer() {
        let prober = Prober::default();
        let (sender, mut woken) = mpsc::channel(8);
        prober.wake_by(sender);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let key = Key::new("ns", "vm");
        prober.register(&key, target(Some(listener.local_addr().unwrap())));
        assert_eq!(woken.recv().await.unwrap(), key);
        assert_eq!(prober.answer(&key), Some(Answer::Yes));
        drop(listener);
        assert_eq!(woken.recv().await.unwrap(), key);
        assert!(matches!(prober.answer(&key), Some(Answer::No(_))));
        prober.unregister(&key);
        prober.unregister(&key);
        assert!(prober.is_empty());
    }

    /// One who probes what never answers, as patiently as he may, must not blind the others.
    #[tokio::test]
    async fn the_probes_of_one_namespace_do_not_hold_up_those_of_another() {
        let prober = Prober::default();
        let (sender, mut woken) = mpsc::channel(8);
        prober.wake_by(sender);
        let greedy = prober.lock().places_of("greedy");
        let all = u32::try_from(PER_NAMESPACE).unwrap();
        let _held = greedy.acquire_many(all).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let goal = target(Some(listener.local_addr().unwrap()));
        let (kept, served) = (Key::new("greedy", "vm"), Key::new("ns", "vm"));
        prober.register(&kept, goal.clone());
        prober.register(&served, goal);
        assert_eq!(woken.recv().await.unwrap(), served);
        assert_eq!(prober.answer(&kept), None);
    }

    #[tokio::test]
    async fn a_namespace_that_probes_nothing_leaves_nothing_behind() {
        let prober = Prober::default();
        for name in 0..3 {
            let key = Key::new(format!("ns{name}"), "vm");
            prober.register(&key, target(None));
            prober.unregister(&key);
        }
        // Loops that were called off end when they are scheduled next.
        while Arc::strong_count(&prober.all) > 1 {
            tokio::task::yield_now().await;
        }
        let key = Key::new("last", "vm");
        prober.register(&key, target(None));
        prober.unregister(&key);
        assert!(prober.lock().places.len() <= 1);
    }

    #[tokio::test]
    async fn a_machine_without_an_address_is_not_ready() {
        let prober = Prober::default();
        let places = prober.lock().places_of("ns");
        let answer = prober.try_once(&target(None), &places).await;
        assert_eq!(answer, Answer::No("the machine has no address"));
    }
}

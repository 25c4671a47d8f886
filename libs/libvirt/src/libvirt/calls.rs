//! Runs blocking calls under permits and deadlines.
//!
//! Invariant: a permit stays with the blocking thread, so that calls which outlive their deadline
//! still count; at most `parallel` threads per lane are ever inside libvirt.
//! Failure: no session, no permit in time, or no answer in time; then the effect in libvirt is
//! unknown.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, Semaphore};
use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error as VirtError;

use super::connection::{Lane, Link};
use crate::error::{Context, sort};
use crate::{Error, Observer, Result};

/// The exclusive access to a guest's agent. It ends when both the caller and the thread that calls
/// the agent have dropped it.
pub(super) type Turn = Arc<OwnedMutexGuard<()>>;

/// A set of domains.
#[derive(Debug, Clone, Default)]
pub(super) struct Domains(Arc<Mutex<HashSet<Uuid>>>);

impl Domains {
    pub(super) fn has(&self, domain: Uuid) -> bool {
        self.set().contains(&domain)
    }

    pub(super) fn add(&self, domain: Uuid) {
        self.set().insert(domain);
    }

    pub(super) fn remove(&self, domain: Uuid) {
        self.set().remove(&domain);
    }

    fn set(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything needed to call libvirt.
#[derive(Debug)]
pub(super) struct Calls {
    link: Arc<Link>,
    observer: Option<Arc<dyn Observer>>,
    control: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    agents: Arc<Semaphore>,
    unresponsive_agents: Arc<Semaphore>,
    /// Those whose agent answered when it was last queried.
    pub(super) known: Domains,
    /// Those whose power button was pressed for a reboot, and not since for anything else: libvirt
    /// boots them again when they power off, for any caller.
    pub(super) rebooting: Domains,
    /// One per domain with agent calls in progress.
    pub(super) channels: Mutex<HashMap<Uuid, Arc<tokio::sync::Mutex<()>>>>,
}

impl Calls {
    pub(super) fn new(
        link: Arc<Link>,
        parallel: usize,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let permits = || Arc::new(Semaphore::new(parallel));
        Self {
            link,
            observer,
            control: permits(),
            urgent: permits(),
            agents: permits(),
            unresponsive_agents: permits(),
            known: Domains::default(),
            rebooting: Domains::default(),
            channels: Mutex::default(),
        }
    }

    /// Runs `f` on the life-cycle connection.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        context: Context,
        deadline: Duration,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.call(Lane::Control, context, deadline, None, f).await
    }

    /// Runs `f` on the connection for calls that do not wait for starts and the like.
    pub(super) async fn run_urgent<T: Send + 'static>(
        &self,
        context: Context,
        deadline: Duration,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.call(Lane::Urgent, context, deadline, None, f).await
    }

    /// Runs `f` on a connection for agents, while the caller's turn with the guest is held.
    pub(super) async fn run_agent<T: Send + 'static>(
        &self,
        lane: Lane,
        context: Context,
        deadline: Duration,
        turn: Turn,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.call(lane, context, deadline, Some(turn), f).await
    }

    pub(super) fn check_connected(&self) -> Result<()> {
        self.link.session().map(drop)
    }

    async fn call<T: Send + 'static>(
        &self,
        lane: Lane,
        context: Context,
        deadline: Duration,
        turn: Option<Turn>,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let begun = Instant::now();
        let result = self.call_unobserved(lane, context, deadline, turn, f).await;
        if let Some(observer) = &self.observer {
            let outcome = result.as_ref().err().map_or("ok", Error::kind);
            observer.called(context.call, begun.elapsed(), outcome);
        }
        result
    }

    async fn call_unobserved<T: Send + 'static>(
        &self,
        lane: Lane,
        context: Context,
        deadline: Duration,
        turn: Option<Turn>,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.check_connected()?;
        let permits = match lane {
            Lane::Control => &self.control,
            Lane::Urgent => &self.urgent,
            Lane::Agents => &self.agents,
            Lane::UnresponsiveAgents => &self.unresponsive_agents,
        };
        let work = async {
            let permit = Arc::clone(permits).acquire_owned().await;
            // The connection may have gone while we waited.
            let borrowed = self.link.session()?.borrow(lane);
            let borrowed = borrowed.ok_or_else(|| Error::Unavailable {
                reason: "all connections are in use".to_owned(),
            })?;
            let work = move || {
                let _held = (permit, turn);
                let result = f(borrowed.connect());
                let sorted = result.map_err(|e| sort(&e, context, borrowed.is_alive()));
                // Before the permit: its holder finds a connection.
                drop(borrowed);
                sorted
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(result) => result,
                Err(lost) => Err(Error::Refused {
                    call: context.call,
                    reason: lost.to_string(),
                }),
            }
        };
        tokio::time::timeout(deadline, work)
            .await
            .unwrap_or(Err(Error::Deadline {
                call: context.call,
                deadline,
            }))
    }
}

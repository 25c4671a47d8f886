//! Runs blocking calls under permits and deadlines.
//!
//! Invariant: a permit stays with the blocking thread, so that calls which outlive their deadline
//! still count; at most as many threads as a lane is wide are ever inside libvirt for it. A call's
//! deadline begins with its permit: what waits for others does not fail because they are slow.
//! Failure: no session or no permit in time, and nothing was done; or no answer in time, and the
//! effect in libvirt is unknown.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error as VirtError;

use super::connection::Link;
use super::lane::Lane;
use super::plan::Plan;
use crate::error::sort;
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
    /// By lane.
    permits: [Arc<Semaphore>; Lane::ALL.len()],
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
        Self {
            link,
            observer,
            permits: Lane::ALL.map(|lane| Arc::new(Semaphore::new(lane.width(parallel)))),
            known: Domains::default(),
            rebooting: Domains::default(),
            channels: Mutex::default(),
        }
    }

    /// Runs `f` on a connection of the plan's lane.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        plan: Plan,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.call(plan, None, f).await
    }

    /// Runs `f` on a connection for agents, while the caller's turn with the guest is held.
    pub(super) async fn run_agent<T: Send + 'static>(
        &self,
        plan: Plan,
        turn: Turn,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.call(plan, Some(turn), f).await
    }

    pub(super) fn check_connected(&self) -> Result<()> {
        self.link.session().map(drop)
    }

    async fn call<T: Send + 'static>(
        &self,
        plan: Plan,
        turn: Option<Turn>,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let begun = Instant::now();
        let result = self.call_unobserved(plan, turn, f).await;
        if let Some(observer) = &self.observer {
            let outcome = result.as_ref().err().map_or("ok", Error::kind);
            observer.called(plan.context.call, begun.elapsed(), outcome);
        }
        result
    }

    async fn call_unobserved<T: Send + 'static>(
        &self,
        plan: Plan,
        turn: Option<Turn>,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.check_connected()?;
        let permit = self.permit(plan).await?;
        let context = plan.context;
        // The connection may have gone while we waited.
        let borrowed = self.link.session()?.borrow(plan.lane);
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
        let deadline = plan.time.call();
        match tokio::time::timeout(deadline, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(result)) => result,
            Ok(Err(lost)) => Err(Error::Refused {
                call: context.call,
                reason: lost.to_string(),
            }),
            Err(_) => Err(Error::Deadline {
                call: context.call,
                deadline,
            }),
        }
    }

    /// A place among the calls of a lane.
    async fn permit(&self, plan: Plan) -> Result<OwnedSemaphorePermit> {
        let wait = plan.time.wait();
        let permit = Arc::clone(&self.permits[plan.lane as usize]).acquire_owned();
        match tokio::time::timeout(wait, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(Error::Busy {
                call: plan.context.call,
                wait,
            }),
        }
    }
}

#[cfg(test)]
mod tests;

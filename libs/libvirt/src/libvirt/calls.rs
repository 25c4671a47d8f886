//! Runs blocking calls under permits and deadlines.
//!
//! Invariant: a permit stays with the blocking thread, so that calls which outlive their deadline still count;
//! at most `parallel` threads per lane are ever inside libvirt.
//! Failure: no session, no permit in time, or no answer in time; then nobody knows what libvirt did.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, Semaphore};
use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error as VirtError;

use super::connection::{Lane, Link};
use crate::error::{Context, sort};
use crate::{Error, Result};

/// Everything needed to call libvirt.
#[derive(Debug)]
pub(super) struct Calls {
    link: Arc<Link>,
    control: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    agents: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Domains whose agent answered when it was last asked.
    pub(super) known: Mutex<HashSet<Uuid>>,
    /// One per domain with agent calls under way.
    pub(super) channels: Mutex<HashMap<Uuid, Arc<tokio::sync::Mutex<()>>>>,
}

impl Calls {
    pub(super) fn new(link: Arc<Link>, parallel: usize) -> Self {
        let permits = || Arc::new(Semaphore::new(parallel.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            link,
            control: permits(),
            urgent: permits(),
            agents: permits(),
            strangers: permits(),
            known: Mutex::default(),
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
        turn: OwnedMutexGuard<()>,
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
        turn: Option<OwnedMutexGuard<()>>,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.check_connected()?;
        let permits = match lane {
            Lane::Control => &self.control,
            Lane::Urgent => &self.urgent,
            Lane::Agents => &self.agents,
            Lane::Strangers => &self.strangers,
        };
        let work = async {
            let permit = Arc::clone(permits).acquire_owned().await;
            // The connection may have gone while we waited.
            let session = self.link.session()?;
            let work = move || {
                let _held = (permit, turn);
                f(session.lane(lane)).map_err(|e| sort(&e, context, session.is_alive(lane)))
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

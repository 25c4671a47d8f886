//! Runs blocking calls under permits and deadlines.
//!
//! Invariant: a permit stays with the blocking thread, so that calls which outlive their deadline
//! still count; at most as many threads as a lane is wide are ever inside libvirt for it. A call's
//! deadline begins with its permit: what waits for others does not fail because they are slow.
//! Permits of lanes that guests can hold up are shared among the namespaces of the domains.
//! Failure: no session, no permit in time or given up before, and nothing was done; or no answer in time, and the
//! effect in libvirt is unknown.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fair::{Owner, Places};
use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error as VirtError;

use super::connection::Link;
use super::lane::Lane;
use super::plan::{Access, Plan};
use super::turns::{Key, Turn, Turns};
use crate::error::{Context, sort};
use crate::{Error, Observer, Result};

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

    /// Whether it was in the set.
    pub(super) fn remove(&self, domain: Uuid) -> bool {
        self.set().remove(&domain)
    }

    fn set(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespaces of domains.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Mutex<HashMap<Uuid, Owner>>);

impl Namespaces {
    pub(super) fn set(&self, domain: Uuid, namespace: &Owner) {
        self.all().insert(domain, Arc::clone(namespace));
    }

    pub(super) fn remove(&self, domain: Uuid) {
        self.all().remove(&domain);
    }

    /// That of a domain; one of which it is not known counts for itself.
    fn owner(&self, domain: Option<Uuid>) -> Owner {
        let domain = domain.unwrap_or_default();
        let known = self.all().get(&domain).cloned();
        known.unwrap_or_else(|| domain.to_string().into())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Uuid, Owner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything needed to call libvirt.
#[derive(Debug)]
pub(super) struct Calls {
    link: Arc<Link>,
    observer: Option<Arc<dyn Observer>>,
    /// By lane.
    permits: [Places; Lane::ALL.len()],
    /// In whose name permits of a lane are taken that is not shared.
    everyone: Owner,
    pub(super) namespaces: Namespaces,
    /// Those whose agent answered promptly when it was last queried.
    pub(super) known: Domains,
    /// Those whose power button was pressed for a reboot, and not since for anything else: libvirt
    /// boots them again when they power off, for any caller.
    pub(super) rebooting: Domains,
    /// Those whose last kill failed, or does not return.
    pub(super) late: Domains,
    /// Those whose memory is to be saved, and has no turn yet.
    pub(super) waiting_saves: Domains,
    pub(super) turns: Turns,
}

/// The right to a connection of a lane, for as long as the thread inside libvirt needs it.
#[derive(Debug)]
struct Place {
    lane: Lane,
    _permit: fair::Place,
    _turn: Option<Turn>,
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
            permits: Lane::ALL.map(|lane| Places::new(lane.bounds(parallel))),
            everyone: Owner::from(""),
            namespaces: Namespaces::default(),
            known: Domains::default(),
            rebooting: Domains::default(),
            late: Domains::default(),
            waiting_saves: Domains::default(),
            turns: Turns::default(),
        }
    }

    /// Runs `f` on a connection of the plan's lane.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        plan: Plan,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let begun = Instant::now();
        let call = plan.context.call;
        let kill = match plan.access {
            Access::Alone(Key::Kill(domain)) => Some(domain),
            _ => None,
        };
        let result = self.run_unobserved(plan, f).await;
        if let Some(domain) = kill {
            self.note_kill(domain, &result);
        }
        if let Some(observer) = &self.observer {
            let outcome = result.as_ref().err().map_or("ok", Error::kind);
            observer.called(call, begun.elapsed(), outcome);
        }
        result
    }

    /// As [`Self::run`]; the wait for the turn ends when `given_up` does, and then nothing was done.
    /// A call that has begun goes on.
    pub(super) async fn run_unless<T: Send + 'static>(
        &self,
        plan: Plan,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<T> {
        let call = plan.context.call;
        let waits = Arc::new(AtomicBool::new(true));
        let begins = Arc::clone(&waits);
        let mut done = pin!(self.run(plan, move |connect| {
            let is_wanted = begins.swap(false, Ordering::AcqRel);
            is_wanted.then(|| f(connect)).transpose()
        }));
        let done = tokio::select! {
            done = &mut done => done?,
            () = given_up => {
                if waits.swap(false, Ordering::AcqRel) {
                    None
                } else {
                    done.await?
                }
            }
        };
        done.ok_or_else(|| Error::Refused {
            call,
            reason: "it was given up before it began".to_owned(),
        })
    }

    pub(super) fn check_connected(&self) -> Result<()> {
        self.link.session().map(drop)
    }

    async fn run_unobserved<T: Send + 'static>(
        &self,
        plan: Plan,
        f: impl FnOnce(&Connect) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.check_connected()?;
        let context = plan.context;
        let time = plan.time;
        let place = self.place(plan).await?;
        // The connection may have gone while we waited.
        let borrowed = self.link.session()?.borrow(place.lane);
        let borrowed = borrowed.ok_or_else(|| Error::Unavailable {
            reason: "all connections are in use".to_owned(),
        })?;
        let work = move || {
            let _held = place;
            let result = f(borrowed.connect());
            let sorted = result.map_err(|e| sort(&e, context, borrowed.is_alive()));
            // Before the permit: its holder finds a connection.
            drop(borrowed);
            sorted
        };
        let deadline = time.call();
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

    /// Waits for turn and permit of a call.
    async fn place(&self, plan: Plan) -> Result<Place> {
        let wait = plan.time.wait();
        let Context { call, domain } = plan.context;
        let waiting = async {
            let (turn, lane) = match plan.access {
                Access::Shared => (None, plan.lane),
                Access::Held(turn) => (Some(turn), plan.lane),
                Access::Alone(key) => {
                    let turn = self.turns.take(key).await;
                    (Some(turn), self.lane(key, plan.lane))
                }
            };
            let owner = if lane.is_shared() {
                self.namespaces.owner(domain)
            } else {
                Arc::clone(&self.everyone)
            };
            Place {
                lane,
                _permit: self.permits[lane as usize].take(&owner).await,
                _turn: turn,
            }
        };
        let place = tokio::time::timeout(wait, waiting).await;
        place.map_err(|_| Error::Busy { call, wait })
    }

    fn note_kill<T>(&self, domain: Uuid, result: &Result<T>) {
        match result {
            Ok(_) | Err(Error::NoDomain(_)) => {
                self.late.remove(domain);
            }
            // It was not tried.
            Err(Error::Unavailable { .. } | Error::Busy { .. }) => {}
            Err(_) => self.late.add(domain),
        }
    }

    /// A machine that could not be killed takes no place of others.
    fn lane(&self, key: Key, usual: Lane) -> Lane {
        match key {
            Key::Kill(domain) | Key::State(domain) if self.late.has(domain) => Lane::Late,
            _ => usual,
        }
    }
}

#[cfg(test)]
mod tests;

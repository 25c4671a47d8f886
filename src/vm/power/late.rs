//! Requests whose answers were lost, which libvirtd may still have: those of a daemon that was killed, most of all.
//!
//! Invariant: until none can be left of a pivot, no merge of the disk begins, and the guest is resumed once more at the end: a
//! pause that was requested may have waited until after the first time. A pause of its owner stays. That the guest is
//! paused is found out, and ended, while no pivot can be recorded: the pause of one comes after its record.
//! Failure: a daemon that is killed meanwhile as well does not know of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor, Pause, Power};
use podspec::{ContainerId, VmUid};
use service::backoff::Backoff;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::merge::pause_name;
use super::snapshots::report;
use crate::disk::{Disks, Step};
use crate::locks::Locks;
use crate::metadata::Table;
use crate::vm::error::{Result, hypervisor};
use crate::vm::model::Container;

/// How long libvirtd lets a request wait for another one, and some more.
const LATE: Duration = Duration::from_secs(40);

/// Time to the next attempt to resume a guest; each further failure doubles it.
const RETRY: Duration = Duration::from_secs(1);

/// The longest time between these attempts.
const SELDOM: Duration = Duration::from_secs(60);

/// Disks whose emulators may get such requests, each with the number of requests that were cut short.
#[derive(Debug, Clone)]
pub(in crate::vm) struct LateRequests {
    disks: Arc<watch::Sender<HashMap<VmUid, usize>>>,
    /// Those that were pulled when this process began.
    pulled: Arc<HashSet<VmUid>>,
    /// When that was.
    since: Instant,
}

/// That a disk has some, until it is dropped.
#[derive(Debug)]
pub(super) struct Late {
    all: LateRequests,
    vm: VmUid,
}

/// A request without an answer yet: libvirtd may have it for some time after its caller has left.
#[derive(Debug)]
pub(super) struct Unanswered {
    late: LateRequests,
    vm: VmUid,
    is_answered: bool,
}

/// The guest of a merge that was interrupted.
#[derive(Debug)]
pub(super) struct PausedGuest<H> {
    pub(super) driver: Arc<H>,
    pub(super) disks: Arc<Disks>,
    pub(super) table: Arc<Table<Container>>,
    pub(super) locks: Locks,
    pub(super) id: ContainerId,
    pub(super) vm: VmUid,
}

impl LateRequests {
    /// Those of this process, and what an earlier one may have left for disks that were pulled.
    pub(in crate::vm) fn new(disks: &Disks) -> Self {
        let all = disks.all().into_iter().map(|disk| disk.vm);
        Self {
            disks: Arc::new(watch::Sender::new(HashMap::new())),
            pulled: Arc::new(all.filter(|vm| disks.is_pulled(*vm)).collect()),
            since: Instant::now(),
        }
    }

    /// Requests may be left from now on.
    pub(super) fn note(&self, vm: VmUid) -> Late {
        self.disks
            .send_modify(|all| *all.entry(vm).or_default() += 1);
        Late {
            all: self.clone(),
            vm,
        }
    }

    /// Waits until none can be left.
    pub(super) async fn outlast(&self, vm: VmUid) {
        let mut all = self.disks.subscribe();
        // It ends only so: the sender is here.
        let _ = all.wait_for(|all| !all.contains_key(&vm)).await;
    }

    /// Waits until none of an earlier process can be left, nor one of this process whose answer was lost.
    pub(super) async fn outlast_all(&self, vm: VmUid) {
        if self.pulled.contains(&vm) {
            tokio::time::sleep_until(self.since + LATE).await;
        }
        self.outlast(vm).await;
    }

    /// For a request that is about to be sent.
    pub(super) fn send(&self, vm: VmUid) -> Unanswered {
        Unanswered {
            late: self.clone(),
            vm,
            is_answered: false,
        }
    }

    /// A request whose answer was lost may be left from now on.
    fn note_lost(&self, vm: VmUid) {
        let late = self.note(vm);
        // Without a runtime the process ends, and the next one expects requests of this one.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        // Not one that shutdown waits for.
        runtime.spawn(async move {
            tokio::time::sleep(LATE).await;
            drop(late);
        });
    }
}

impl Unanswered {
    /// Takes the outcome of the request, which may be that its answer was lost.
    pub(super) fn end<T>(mut self, outcome: &Result<T, libvirt::Error>) {
        let is_lost = outcome.as_ref().is_err_and(libvirt::Error::is_unavailable);
        self.is_answered = !is_lost;
    }
}

impl Drop for Unanswered {
    /// Also when the caller leaves.
    fn drop(&mut self) {
        if !self.is_answered {
            self.late.note_lost(self.vm);
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.all.disks.send_modify(|all| {
            let left = all.get(&self.vm).map_or(0, |count| count.saturating_sub(1));
            if left == 0 {
                all.remove(&self.vm);
            } else {
                all.insert(self.vm, left);
            }
        });
    }
}

impl<H: Hypervisor> PausedGuest<H> {
    /// Lets the guest run, unless its owner has paused it meanwhile, or it has ended.
    pub(super) async fn resume(&self) -> Result<()> {
        let _still = self.locks.lock(&pause_name(self.vm)).await;
        self.resume_alone().await
    }

    /// Waits until no request can be left. `resumes`: then the guest runs again, if it is paused.
    pub(super) async fn outlive(self, late: Late, resumes: bool) {
        tokio::time::sleep(LATE).await;
        if resumes {
            let mut backoff = Backoff::new(RETRY, SELDOM);
            while let Err(error) = self.resume_forgotten().await {
                report(self.vm, Err(error));
                tokio::time::sleep(backoff.failed(Instant::now())).await;
            }
        }
        drop(late);
    }

    /// Lets a guest run that is paused for no reason that is known.
    async fn resume_forgotten(&self) -> Result<()> {
        let _still = self.locks.lock(&pause_name(self.vm)).await;
        let disk = self.disks.get(self.vm);
        let is_kept = disk.is_none_or(|disk| {
            let change = disk.layers.as_ref().and_then(|layers| layers.change());
            let is_pivoting =
                change.is_some_and(|now| matches!(now.step, Step::Pivot { .. } | Step::Resume));
            is_pivoting || disk.is_being_saved()
        });
        if is_kept || !self.disks.is_held_by(self.vm, &self.id) {
            return Ok(());
        }
        let Some(row) = self.table.get(&self.id) else {
            return Ok(());
        };
        let power = self.driver.power(row.domain()).await;
        match power.map_err(hypervisor("look at"))? {
            Some(Power::Paused(Pause::Asked)) => self.resume_alone().await,
            _ => Ok(()),
        }
    }

    async fn resume_alone(&self) -> Result<()> {
        let row = self.table.get(&self.id).filter(|row| !row.held);
        let Some(row) = row.filter(|_| self.disks.is_held_by(self.vm, &self.id)) else {
            return Ok(());
        };
        let resumed = self.driver.resume(row.domain()).await;
        resumed.map_err(hypervisor("resume"))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;
    use crate::testkit::Node;

    fn vm() -> VmUid {
        "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a".parse().unwrap()
    }

    #[tokio::test]
    async fn a_request_without_an_answer_is_outlasted() {
        let node = Node::new().await;
        let late = LateRequests::new(&node.disks);
        let reason = "it ended".to_owned();
        let unavailable: Result<(), libvirt::Error> = Err(libvirt::Error::Unavailable { reason });
        tokio::time::pause();
        for outcome in [None, Some(unavailable)] {
            let request = late.send(vm());
            match outcome {
                None => drop(request),
                Some(outcome) => request.end(&outcome),
            }
            let since = Instant::now();
            late.outlast_all(vm()).await;
            assert!(since.elapsed() >= LATE);
        }
    }

    #[tokio::test]
    async fn a_request_with_an_answer_delays_nothing() {
        let node = Node::new().await;
        let late = LateRequests::new(&node.disks);
        let refused: Result<(), libvirt::Error> = Err(libvirt::Error::Refused {
            call: "pull disk files",
            reason: "it has a block job".to_owned(),
        });
        for outcome in [Ok(()), refused] {
            late.send(vm()).end(&outcome);
            assert!(poll!(Box::pin(late.outlast_all(vm()))).is_ready());
        }
    }
}

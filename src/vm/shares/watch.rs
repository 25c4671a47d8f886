//! Watches the processes that serve the shares of machines.
//!
//! Invariant: the server of a machine that runs has one watcher, also when an earlier daemon started
//! it. A server counts as lost when its machine still runs [`GRACE`] after its end: the emulator of a
//! machine that ends disconnects from its servers before libvirt reports the end.
//! Failure: a lost server is a warning in the log, a count, and an event of the pod: accesses of the
//! guest to the share hang from then on. A server without a record, as of earlier versions, has no
//! watcher after a restart of the daemon.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libvirt::{Hypervisor, State};
use podspec::ContainerId;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;

use super::record::Server;
use super::{Protocol, Share};
use crate::helper;
use crate::metadata::Table;
use crate::metrics::Metrics;
use crate::platform::Platform;
use crate::vm::host::process::Processes as Emulators;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// How long after its servers a machine may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// The servers of machines that run.
#[derive(Debug, Default)]
pub(in crate::vm) struct Servers {
    known: Mutex<BTreeMap<ContainerId, BTreeMap<String, Known>>>,
    changes: watch::Sender<u64>,
    ends: watch::Sender<()>,
}

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    server: Server,
    /// Whether it has ended before its machine.
    is_lost: bool,
    /// How it has ended, as far as this daemon has seen that.
    end: Option<End>,
}

/// How a server has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// It has done its work.
    Success,
    /// What the kernel and the server reported.
    Failure(String),
}

impl Servers {
    /// Forgets the servers of a machine that has ended.
    pub(in crate::vm) fn forget(&self, id: &ContainerId) {
        let forgotten = self.lock().remove(id).unwrap_or_default();
        if forgotten.values().any(|one| one.is_lost) {
            self.changed();
        }
    }

    /// Records that a server is watched; false when it was before.
    fn begin(&self, id: &ContainerId, tag: &str, server: Server) -> bool {
        let mut all = self.lock();
        let of_machine = all.entry(id.clone()).or_default();
        if of_machine
            .get(tag)
            .is_some_and(|known| known.server == server)
        {
            return false;
        }
        let known = Known {
            server,
            is_lost: false,
            end: None,
        };
        of_machine.insert(tag.to_owned(), known);
        true
    }

    /// Records the end of a server, unless its machine was forgotten meanwhile, or has another one.
    pub(super) fn ended(&self, id: &ContainerId, tag: &str, server: Server, end: End) {
        let mut all = self.lock();
        let known = all.get_mut(id).and_then(|all| all.get_mut(tag));
        if let Some(known) = known.filter(|known| known.server == server) {
            known.end = Some(end);
        }
        drop(all);
        self.ends.send_replace(());
    }

    /// Waits for the end of a server.
    pub(super) async fn end(&self, id: &ContainerId, tag: &str) -> End {
        let mut ends = self.ends.subscribe();
        loop {
            if let Some(end) = self.end_so_far(id, tag) {
                return end;
            }
            // Fails when this has no sender, which it is itself.
            let _ = ends.changed().await;
        }
    }

    fn end_so_far(&self, id: &ContainerId, tag: &str) -> Option<End> {
        self.lock().get(id)?.get(tag)?.end.clone()
    }

    /// Records that a server is lost; false when its machine was forgotten meanwhile, or has
    /// another one.
    fn lose(&self, id: &ContainerId, tag: &str, server: Server) -> bool {
        let mut all = self.lock();
        let known = all.get_mut(id).and_then(|all| all.get_mut(tag));
        let known = known.filter(|known| known.server == server && !known.is_lost);
        let Some(known) = known else {
            return false;
        };
        known.is_lost = true;
        drop(all);
        self.changed();
        true
    }

    /// Records that a server has no watcher.
    fn leave(&self, id: &ContainerId, tag: &str) {
        if let Some(all) = self.lock().get_mut(id) {
            all.remove(tag);
        }
    }

    fn is_known(&self, id: &ContainerId, tag: &str) -> bool {
        self.lock().get(id).is_some_and(|all| all.contains_key(tag))
    }

    fn is_lost(&self, id: &ContainerId, tag: &str) -> bool {
        let all = self.lock();
        let known = all.get(id).and_then(|all| all.get(tag));
        known.is_some_and(|known| known.is_lost)
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, BTreeMap<String, Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watcher of one server.
struct Watcher<P: Platform> {
    table: Arc<Table<Container>>,
    hypervisor: Arc<P::Hypervisor>,
    metrics: Arc<Metrics>,
    servers: Arc<Servers>,
    id: ContainerId,
    share: Share,
    server: Server,
}

impl<P: Platform> Watcher<P> {
    async fn run(self, ended: impl Future<Output = io::Result<()>>) {
        let path = &self.share.path;
        if let Err(error) = ended.await {
            tracing::warn!(container = %self.id, path, %error, "process of a share not watched");
            // The next round of reconciliation tries again.
            self.servers.leave(&self.id, &self.share.tag);
            return;
        }
        let is_lost =
            self.is_outlived().await && self.servers.lose(&self.id, &self.share.tag, self.server);
        if is_lost {
            self.metrics.lost_share();
            let pid = self.server.pid;
            tracing::warn!(container = %self.id, path, pid, "share of a running machine lost");
        }
    }

    /// Whether the machine still runs when it has had time to end.
    async fn is_outlived(&self) -> bool {
        loop {
            tokio::time::sleep(GRACE).await;
            let row = self.table.get(&self.id);
            let Some(row) = row.filter(|row| row.phase.may_run()) else {
                return false;
            };
            match self.hypervisor.state(row.domain()).await {
                Ok(state) => return state == Some(State::Active),
                // libvirt may be away for a while: the next look decides.
                Err(error) => {
                    let id = &self.id;
                    tracing::debug!(container = %id, %error, "machine of a share not looked up");
                }
            }
        }
    }
}

impl<P: Platform> Containers<P> {
    /// Changes whenever a guest loses a share.
    pub fn share_changes(&self) -> watch::Receiver<u64> {
        self.servers.changes.subscribe()
    }

    /// What a guest has lost of its shares, in sentences for the pod's events.
    pub fn lost_shares(&self, row: &Container) -> Vec<String> {
        let shares = row.spec.shares_by(Protocol::Virtiofs);
        let lost = shares.filter(|share| self.servers.is_lost(&row.id, &share.tag));
        let in_words = |share: &Share| {
            let end = self.servers.end_so_far(&row.id, &share.tag);
            lost_in_words(share, end.as_ref())
        };
        lost.map(in_words).collect()
    }

    /// Watches a server until `ended` completes, unless it is watched.
    pub(super) fn watch_server(
        &self,
        row: &Container,
        share: &Share,
        server: Server,
        ended: impl Future<Output = io::Result<()>> + Send + 'static,
    ) {
        if !self.servers.begin(&row.id, &share.tag, server) {
            return;
        }
        let parts = &self.parts;
        let watcher = Watcher::<P> {
            table: Arc::clone(&parts.table),
            hypervisor: Arc::clone(&parts.hypervisor),
            metrics: Arc::clone(&parts.metrics),
            servers: Arc::clone(&self.servers),
            id: row.id.clone(),
            share: share.clone(),
            server,
        };
        tokio::spawn(watcher.run(ended));
    }

    /// Watches the servers of a running machine that an earlier daemon started.
    pub(in crate::vm) async fn watch_servers(&self, row: &Container) {
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            if self.servers.is_known(&row.id, &share.tag) {
                continue;
            }
            match self.recorded_server(row, share).await {
                Ok(Some(server)) => self.watch_server(row, share, server, end_of(server)),
                Ok(None) => {}
                Err(error) => {
                    let path = &share.path;
                    let error = crate::one_line(&error);
                    tracing::warn!(container = %row.id, path, error, "process of a share not watched");
                }
            }
        }
    }
}

/// Returns when a process that is no child of ours has ended.
async fn end_of(server: Server) -> io::Result<()> {
    let Some(process) = open(server)? else {
        return Ok(());
    };
    helper::watch(process)?.readable().await.map(drop)
}

/// A descriptor that is readable once the process has ended; `None` when it has.
fn open(server: Server) -> io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(server.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Ok(None);
    };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    // Compared after the opening: from then on the number means the process that was opened.
    let is_same = Emulators::started_at(server.pid) == Some(server.started);
    Ok(is_same.then_some(process))
}

fn lost_in_words(share: &Share, end: Option<&End>) -> String {
    let what = if share.is_of_pod() {
        "the volumes of its processes".to_owned()
    } else {
        format!("its directory {}", share.path)
    };
    let report = match end {
        Some(End::Failure(report)) => format!(" ({report})"),
        Some(End::Success) | None => String::new(),
    };
    format!(
        "the guest has lost {what} until the machine is stopped and started again: the process of \
         the node that served it has ended{report}, and accesses hang"
    )
}

#[cfg(test)]
mod tests;

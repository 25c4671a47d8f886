//! Recovers the networks of the journal when the program starts.
//!
//! Invariant: when [`Sandboxes::load`] returns, every sandbox of the journal is in its slot, and the
//! slot is locked until that sandbox is recovered or undone: a request for it waits for that and for
//! nothing else, and lists are complete from the start.
//! Failure: a sandbox that cannot be recovered is logged, and the rest is recovered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};
use netns::netlink::Kernel;
use netns::{Namespace, bridge_setup};
use service::telemetry::one_line;
use tapmanager::wire::{AddRequest, Network};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::serve::Servers;
use super::{Live, Sandboxes, Slot};
use crate::failure::Failure;
use crate::journal::{Entry, Loaded, Phase};
use crate::network;

/// Networks that are served again at once: each starts a program that loads its packet filter.
const ABREAST: usize = 16;

/// The sandboxes that a start has to recover.
#[derive(Debug)]
pub(crate) struct Recovery(Vec<(String, Slot)>);

/// What became of one of them.
enum Outcome {
    Serving,
    Leftover,
}

impl Sandboxes {
    /// Reads the journal and takes the slots of all its sandboxes.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(crate) async fn load(&self) -> Result<Recovery, Failure> {
        let mut slots = Vec::new();
        for (id, loaded) in self.journal.load()? {
            let mut slot = match self.lock(&id).await {
                Ok(slot) => slot,
                Err(failure) => {
                    tracing::warn!(
                        file = id,
                        error = one_line(&failure),
                        "journal entry ignored"
                    );
                    continue;
                }
            };
            let mut entry = match loaded {
                Loaded::Entry(entry) => *entry,
                Loaded::Broken(why) => {
                    // It may be the network of a running guest, so it is removed only on request.
                    tracing::error!(sandbox = id, error = why, "unreadable journal entry kept");
                    *slot = Some(Live::closed(self.unreadable(&id)));
                    continue;
                }
            };
            if entry.is_of_another_boot(&self.boot) {
                tracing::info!(sandbox = id, "network of an earlier boot dropped");
                entry.phase = Phase::Removing;
            }
            if entry.phase == Phase::Up {
                // The hand-off waits for the slot; unknown tokens are refused at once.
                if let Err(error) = self.remember_start(&entry) {
                    let error = one_line(&error);
                    tracing::warn!(sandbox = id, error, "socket of a start not made");
                }
            }
            *slot = Some(Live::closed(entry));
            slots.push((id, slot));
        }
        self.recovering.store(slots.len(), Ordering::Relaxed);
        tracing::info!(sandboxes = slots.len(), "journal read");
        Ok(Recovery(slots))
    }

    /// Serves what is up again, some at a time, and undoes leftovers on `tasks`. Ends early by
    /// `stop`; the next start continues then.
    pub(crate) async fn recover(
        self: Arc<Self>,
        Recovery(slots): Recovery,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) {
        let each = slots.into_iter().map(|(id, slot)| {
            let this = Arc::clone(&self);
            let tasks = tasks.clone();
            async move { this.recover_one(id, slot, &tasks).await }
        });
        let mut outcomes = stream::iter(each).buffer_unordered(ABREAST);
        let mut serving = 0_usize;
        let mut leftovers = 0_usize;
        while let Some(Some(outcome)) = stop.run_until_cancelled(outcomes.next()).await {
            self.recovering.fetch_sub(1, Ordering::Relaxed);
            match outcome {
                Outcome::Serving => serving += 1,
                Outcome::Leftover => leftovers += 1,
            }
        }
        tracing::info!(serving, leftovers, "recovery from the journal completed");
    }

    async fn recover_one(
        self: &Arc<Self>,
        id: String,
        mut slot: Slot,
        tasks: &TaskTracker,
    ) -> Outcome {
        let is_up = slot
            .as_ref()
            .is_some_and(|live| live.entry.phase == Phase::Up);
        if is_up && self.reopen(&mut slot).await {
            return Outcome::Serving;
        }
        let this = Arc::clone(self);
        tasks.spawn(async move { this.finish(&id, slot).await });
        Outcome::Leftover
    }

    /// An entry for a file that says nothing: enough to take down what carries the sandbox's id.
    fn unreadable(&self, id: &str) -> Entry {
        let request = AddRequest {
            id: id.to_owned(),
            ..AddRequest::default()
        };
        let mut entry = Entry::new(request, self.netns_path(id));
        entry.phase = Phase::Removing;
        entry
    }

    /// Whether the network of `slot` still exists. Its rules are those of this program, and its
    /// servers run again then.
    async fn reopen(&self, slot: &mut Slot) -> bool {
        let Some(Live { entry, ns, servers }) = slot.as_mut() else {
            return false;
        };
        let id = &entry.request.id;
        let (found, network) = match (Namespace::open(&entry.netns), &entry.network) {
            (Ok(Some(found)), Some(network)) => (found, network),
            (Ok(_), _) => return false,
            (Err(error), _) => {
                // It may well exist, and a guest may be using it: better kept than taken down.
                tracing::error!(
                    sandbox = id,
                    error = one_line(&error),
                    "network not recovered, guest cut off"
                );
                return true;
            }
        };
        if let Err(failure) = protect(&found, entry, network).await {
            // What is in force stays in force.
            tracing::error!(
                sandbox = id,
                error = one_line(&failure),
                "packet filter not refreshed"
            );
        }
        match Servers::start(&found, network, &entry.request.hostname, &self.node).await {
            Ok(started) => *servers = Some(started),
            Err(error) => {
                tracing::error!(
                    sandbox = id,
                    error = one_line(&error),
                    "address servers not started"
                );
            }
        }
        *ns = Some(found);
        true
    }

    async fn finish(&self, id: &str, mut slot: Slot) {
        let _turn = self.turns.acquire().await;
        let outcome = self.take_down(&mut slot).await;
        // A reader of this log line finds the sandbox unlocked.
        drop(slot);
        match outcome {
            Ok(_) => tracing::info!(sandbox = id, "leftover network removed"),
            Err(failure) => {
                tracing::warn!(
                    sandbox = id,
                    error = one_line(&failure),
                    "leftover network not removed"
                );
            }
        }
    }
}

/// Puts the rules of this program in the place of an earlier one's.
async fn protect(ns: &Namespace, entry: &Entry, network: &Network) -> Result<(), Failure> {
    let kernel = Kernel::open(ns).await?;
    let guards = network::guards(&entry.request, network);
    Ok(bridge_setup::protect(&kernel, &entry.links, &guards).await?)
}

//! Recovers the networks of the journal when the program starts.
//!
//! Invariant: when [`Sandboxes::recover`] returns, every network that still exists serves again,
//! and whatever is to be undone is locked, so that no request meets it half-way.
//! Failure: a sandbox that cannot be recovered is logged, and the rest is recovered.

use std::sync::Arc;

use netns::netlink::Kernel;
use netns::{Namespace, bridge_setup};
use service::telemetry::one_line;
use tapmanager::wire::{AddRequest, Network};
use tokio_util::task::TaskTracker;

use super::serve::Servers;
use super::{Live, Sandboxes, Slot};
use crate::failure::Failure;
use crate::journal::{Entry, Loaded, Phase};
use crate::network;

impl Sandboxes {
    /// Serves what is up again, and undoes leftovers on `tasks`.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(crate) async fn recover(self: &Arc<Self>, tasks: &TaskTracker) -> Result<(), Failure> {
        let (mut serving, mut leftovers) = (0_usize, 0_usize);
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
            let entry = match loaded {
                Loaded::Entry(entry) => *entry,
                Loaded::Broken(why) => {
                    // It may be the network of a running guest, so it is removed only on request.
                    tracing::error!(sandbox = id, error = why, "unreadable journal entry kept");
                    *slot = Some(Live::closed(self.unreadable(&id)));
                    continue;
                }
            };
            let lost = entry.is_of_another_boot(&self.boot);
            if lost {
                tracing::info!(sandbox = id, "network of an earlier boot dropped");
            }
            let up = entry.phase == Phase::Up && !lost;
            *slot = Some(Live::closed(entry));
            if up && self.reopen(&mut slot).await {
                serving += 1;
                continue;
            }
            leftovers += 1;
            let this = Arc::clone(self);
            tasks.spawn(async move { this.finish(&id, slot).await });
        }
        tracing::info!(serving, leftovers, "journal read");
        Ok(())
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
        match Servers::start(&found, network, &entry.request.hostname).await {
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
        self.remember_start(entry);
        true
    }

    async fn finish(&self, id: &str, mut slot: Slot) {
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

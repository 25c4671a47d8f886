//! Removes the network of a sandbox.
//!
//! Invariant: plugins see the links as they left them, or an empty path when the namespace no
//! longer exists; the entry leaves the journal last. No step needs space on a disk: what is removed
//! is what gives space back.
//! Failure: when a plugin fails the entry stays in phase Removing and DEL may be repeated; links
//! that cannot be put back keep nothing from going on. On a file system that takes no writes the
//! network is removed all the same: its records stay, and the next DEL, collection or start removes
//! them.

use std::time::{Duration, Instant};

use netns::netlink::Kernel;
use netns::{Namespace, bridge_setup};
use service::telemetry::one_line;

use super::{Sandboxes, Slot};
use crate::failure::Failure;
use crate::journal::{Entry, Phase};
use crate::network;

/// How long the steps of a removal took.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Steps {
    /// Writing and removing the entry, with their fsyncs.
    journal: Duration,
    /// Removing bridge and tap, and putting the plugins' links back.
    links: Duration,
    /// CNI DEL, with its cache.
    plugins: Duration,
    /// Removing the network namespace, and the packet filter with it.
    namespace: Duration,
}

impl Sandboxes {
    /// Takes the network of a sandbox down; success when there is none.
    ///
    /// # Errors
    /// When a plugin or the system refuses; to be repeated.
    pub(crate) async fn del(&self, id: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let mut slot = self.lock(id).await?;
        if slot.is_none() {
            return Ok(());
        }
        let _turn = self.turns.acquire().await;
        match self.take_down(&mut slot).await {
            Ok(steps) => {
                let Steps {
                    journal,
                    links,
                    plugins,
                    namespace,
                } = steps;
                tracing::info!(
                    sandbox = id,
                    took = ?started.elapsed(),
                    ?journal,
                    ?links,
                    ?plugins,
                    ?namespace,
                    "network removed"
                );
                Ok(())
            }
            Err(failure) => {
                tracing::warn!(
                    sandbox = id,
                    error = one_line(&failure),
                    "network not removed"
                );
                Err(failure)
            }
        }
    }

    /// Undoes whatever exists of the sandbox in `slot`, which is empty afterwards.
    pub(super) async fn take_down(&self, slot: &mut Slot) -> Result<Steps, Failure> {
        let mut steps = Steps::default();
        let Some(live) = slot.as_mut() else {
            return Ok(steps);
        };
        live.servers = None;
        live.ns = None;
        // Only what was in use may be unknown to the CNI cache and yet be attached, if the cache
        // was lost.
        let was_up = live.entry.network.is_some();
        let entry = &mut live.entry;
        self.forget_start(entry);
        entry.phase = Phase::Removing;
        steps.journal += self.mark(entry).await;
        faultpoint::point("tap.del.journaled");
        let begun = Instant::now();
        match Namespace::open(&entry.netns)? {
            Some(ns) if !entry.links.is_empty() => {
                put_back(&ns, &entry.links, &entry.request.id).await
            }
            Some(_) => {}
            // Plugins must see that it no longer exists, so there must be no file either.
            None => Namespace::delete(&entry.netns).await?,
        }
        steps.links = begun.elapsed();
        faultpoint::point("tap.del.links");
        let attachment = network::attachment(&entry.request, &entry.netns);
        let config = if was_up {
            self.runtime.network().await.ok()
        } else {
            None
        };
        let begun = Instant::now();
        let kept = match self.runtime.del(&attachment, config.as_ref()).await {
            Ok(()) => None,
            Err(error) if error.is_record_only() => Some(Failure::Detach(error)),
            Err(error) => return Err(Failure::Detach(error)),
        };
        steps.plugins = begun.elapsed();
        faultpoint::point("tap.del.cni");
        steps.namespace = timed(Namespace::delete(&entry.netns)).await?;
        faultpoint::point("tap.del.netns");
        let begun = Instant::now();
        let forgotten = match kept {
            None => self.journal.remove(&entry.request.id).await,
            // Without the entry no start would look at the cache again.
            Some(failure) => return Ok(keep_records(entry, &failure, steps)),
        };
        steps.journal += begun.elapsed();
        if let Err(error) = forgotten {
            return Ok(keep_records(entry, &error.into(), steps));
        }
        faultpoint::point("tap.del.forgotten");
        **slot = None;
        Ok(steps)
    }

    /// Records that the removal has begun, where the disk takes it. A start that meets the entry
    /// without the mark serves what is left of the network, until DEL is repeated.
    async fn mark(&self, entry: &Entry) -> Duration {
        let begun = Instant::now();
        if let Err(error) = self.journal.put(entry).await {
            tracing::warn!(
                sandbox = entry.request.id,
                error = one_line(&error),
                "removal of a network not recorded, continued"
            );
        }
        begun.elapsed()
    }
}

/// The network is gone; the entry stays in its slot, so that its records are removed later.
fn keep_records(entry: &Entry, failure: &Failure, steps: Steps) -> Steps {
    tracing::warn!(
        sandbox = entry.request.id,
        error = one_line(failure),
        "records of a removed network kept"
    );
    steps
}

/// How long a step took that succeeded.
async fn timed<E>(step: impl Future<Output = Result<(), E>>) -> Result<Duration, E> {
    let begun = Instant::now();
    step.await?;
    Ok(begun.elapsed())
}

async fn put_back(ns: &Namespace, links: &[bridge_setup::LinkRecord], id: &str) {
    let restored = match Kernel::open(ns).await {
        Ok(kernel) => bridge_setup::restore(&kernel, links).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = restored {
        tracing::warn!(
            sandbox = id,
            error = one_line(&error),
            "links of plugins not restored"
        );
    }
}

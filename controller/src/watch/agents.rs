//! The watch of the leases of agents.
//!
//! Invariant: no object is kept; a renewal causes no pass.
//! Failure: as for every watch. While it is interrupted no agent is reported lost. A lease that cannot
//! be read is none: its agent is lost.

use std::pin::pin;

use crds::guard::Guarded;
use crds::names::NODE_LEASE_LABEL;
use futures_util::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use service::telemetry::one_line;

use super::Shell;
use super::unreadable::Unreadable;
use crate::stores::Agents;

const NAME: &str = "agents";

impl Shell {
    /// Keeps it known, without end.
    pub(super) async fn follow_agents(self, client: Client, namespace: String, agents: Agents) {
        let api = Api::<Guarded<Lease>>::namespaced(client, &namespace);
        let labelled = super::paged().labels(&format!("{NODE_LEASE_LABEL}=true"));
        let mut events = pin!(watcher(api, labelled).default_backoff());
        let mut unreadable = Unreadable::new(NAME, &self.reports);
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    unreadable.note(&event);
                    let event = readable(event);
                    if event.is_some_and(|event| agents.apply(&event)) {
                        self.intake.agents_can_do_more();
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.reports.metrics.watch_error(NAME);
                    tracing::warn!(kind = NAME, error = one_line(&error), "watch interrupted");
                }
            }
        }
    }
}

/// The event without an object that cannot be read.
fn readable(event: Event<Guarded<Lease>>) -> Option<Event<Lease>> {
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(lease) => lease.0.ok().map(Event::InitApply),
        Event::Apply(lease) => lease.0.ok().map(Event::Apply),
        Event::Delete(lease) => lease.0.ok().map(Event::Delete),
    }
}

//! Background tasks: they act on events, and compare rows with the actual state.
//!
//! Invariant: events are listened to before the first look, so that nothing happens unseen in
//! between; the two comparisons do not wait for each other.
//! Failure: a round that failed is repeated, at first soon and then less often.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{Event, Hypervisor};
use service::backoff::Backoff;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{App, Health};
use crate::space::ballast::Ballast;

/// Time between looks at the ballast of the state directory.
const BALLAST: Duration = Duration::from_secs(5);

/// Time between reports about the helpers, as often as the agent reads them.
const REPORT: Duration = Duration::from_secs(10);

/// Time between rounds of reconciliation when nothing happens.
const ROUND: Duration = Duration::from_secs(60);

/// Time to the next round after one that failed; each further failure doubles it.
const RETRY: Duration = Duration::from_secs(1);

impl App {
    pub(super) fn start_background(&self, ballast: Arc<Ballast>) {
        tokio::spawn(keep_ballast(ballast));
        let events = self.hypervisor.events();
        tokio::spawn(Arc::clone(&self.machines).follow(self.hypervisor.events()));
        tokio::spawn(Arc::clone(&self.probes).follow());
        let stalled = Arc::clone(&self.containers);
        tokio::spawn(stalled.resume_stalled(self.hypervisor.events()));
        tokio::spawn(Arc::clone(&self.agenda).work());
        let (connected, _) = watch::channel(());
        let app = self.clone();
        let round = async move || app.reconcile_containers().await;
        tokio::spawn(repeat(connected.subscribe(), round));
        let app = self.clone();
        let round = async move || app.store_late().await;
        tokio::spawn(repeat(connected.subscribe(), round));
        let app = self.clone();
        let round = async move || app.reconcile_sandboxes().await;
        tokio::spawn(repeat(connected.subscribe(), round));
        let images = Arc::clone(&self.images);
        let round = async move || {
            let aged = images.age().await;
            if let Err(e) = &aged {
                let error = crate::one_line(e);
                tracing::warn!(error, "partial downloads not removed");
            }
            let collected = images.collect().await;
            if let Err(e) = &collected {
                let error = crate::one_line(e);
                tracing::warn!(error, "unused images not collected");
            }
            aged.is_ok() && collected.is_ok()
        };
        tokio::spawn(repeat(connected.subscribe(), round));
        let containers = Arc::clone(&self.containers);
        let round = async move || {
            let chosen = containers.choose_accelerator().await;
            if let Err(e) = &chosen {
                let error = crate::one_line(e);
                tracing::error!(error, "node cannot start virtual machines");
            }
            containers.reconsider_accelerator().await;
            chosen.is_ok()
        };
        tokio::spawn(repeat(connected.subscribe(), round));
        let containers = Arc::clone(&self.containers);
        let round = async move || containers.check_emulator().await;
        tokio::spawn(repeat(connected.subscribe(), round));
        let containers = Arc::clone(&self.containers);
        let round = async move || containers.look_at_offer().await;
        tokio::spawn(repeat(connected.subscribe(), round));
        let containers = Arc::clone(&self.containers);
        let round = async move || {
            containers.probe_agents().await;
            true
        };
        tokio::spawn(repeat(connected.subscribe(), round));
        let containers = Arc::clone(&self.containers);
        let round = async move || {
            containers.make_room_for_consoles().await;
            true
        };
        tokio::spawn(repeat(connected.subscribe(), round));
        tokio::spawn(keep_report(Arc::clone(&self.health)));
        let app = self.clone();
        tokio::spawn(async move { app.watch_events(events, connected).await });
    }

    async fn watch_events(
        self,
        mut events: broadcast::Receiver<Event>,
        connected: watch::Sender<()>,
    ) {
        loop {
            match events.recv().await {
                // Events may have been missed.
                Ok(Event::Connected) | Err(RecvError::Lagged(_)) => {
                    self.containers.expire_offer();
                    connected.send_replace(());
                }
                Ok(event) => {
                    let containers = Arc::clone(&self.containers);
                    self.tasks
                        .spawn(async move { containers.on_event(event).await });
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// One round; true when rows and domains agree. Without libvirt there is none until it is back.
    async fn reconcile_containers(&self) -> bool {
        if !self.hypervisor.is_connected() {
            return true;
        }
        match self.containers.reconcile().await {
            Ok(complete) => complete,
            Err(e) => {
                tracing::warn!(error = crate::one_line(&e), "containers not reconciled");
                false
            }
        }
    }

    /// Writes what the database could not take before; true when nothing is left.
    async fn store_late(&self) -> bool {
        let containers = self.containers.store_late().await;
        if let Err(e) = &containers {
            tracing::warn!(
                error = crate::one_line(e),
                "ends of containers not recorded yet"
            );
        }
        let sandboxes = self.sandboxes.store_late().await;
        if let Err(e) = &sandboxes {
            tracing::warn!(
                error = crate::one_line(e),
                "ends of pod sandboxes not recorded yet"
            );
        }
        containers.is_ok() && sandboxes.is_ok()
    }

    /// One round; true when rows and networks agree.
    async fn reconcile_sandboxes(&self) -> bool {
        let outcome = self.sandboxes.reconcile().await;
        if let Err(e) = &outcome {
            tracing::warn!(error = crate::one_line(e), "pod sandboxes not reconciled");
        }
        outcome.is_ok()
    }
}

/// Keeps the report that others read without a question young, without end.
async fn keep_report(health: Arc<Health>) {
    let mut looks = tokio::time::interval(REPORT);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        health.check().await;
    }
}

/// Looks at the ballast of the state directory, without end. A file system that does not answer
/// holds this task up alone.
async fn keep_ballast(ballast: Arc<Ballast>) {
    let mut looks = tokio::time::interval(BALLAST);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let ballast = Arc::clone(&ballast);
        if let Err(error) = tokio::task::spawn_blocking(move || ballast.look()).await {
            tracing::warn!(%error, "look at the ballast file failed");
        }
    }
}

/// Does a round now, again when there is a reason to, and when it is time to look anyway.
async fn repeat(mut reasons: watch::Receiver<()>, round: impl AsyncFn() -> bool) {
    let mut retry = Backoff::new(RETRY, ROUND);
    loop {
        let pause = if round().await {
            retry.reset();
            ROUND
        } else {
            retry.failed(Instant::now())
        };
        if let Ok(Err(_)) = tokio::time::timeout(pause, reasons.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rounds_that_fail_are_repeated_less_and_less_often_and_at_once_for_a_reason() {
        let begun = Instant::now();
        let rounds = RefCell::new(Vec::new());
        let (reason, reasons) = watch::channel(());
        let round = async || {
            rounds.borrow_mut().push(begun.elapsed().as_secs());
            if rounds.borrow().len() == 8 {
                reason.send_replace(());
            }
            rounds.borrow().len() > 8
        };
        let repeated = tokio::time::timeout(Duration::from_secs(300), repeat(reasons, round));
        assert!(repeated.await.is_err(), "it has no end");
        let expected = [0, 1, 3, 7, 15, 31, 63, 123, 123, 183, 243];
        assert_eq!(rounds.into_inner(), expected);
    }
}

//! What libvirt offers to machines of this node: machine types and CPU models.
//!
//! Invariant: no look waits for libvirt but [`Containers::look_at_offer`], which asks once in
//! [`HOLDS`]: on a node whose KVM is broken, each question makes libvirt probe for many seconds. A
//! list that could not be had stays as it was.
//! Failure: logged at the level of details, since the state of libvirt is reported elsewhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use libvirt::{DomainType, Hypervisor};
use tokio::time::Instant;

use super::accelerator::Accelerator;
use crate::platform::Platform;
use crate::vm::service::Containers;

/// How long an offer holds that is complete. QEMU may be replaced while the daemon runs.
const HOLDS: Duration = Duration::from_secs(300);

/// Names as libvirt has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// The versions of the board q35, oldest first.
    pub machine_types: Vec<String>,
    /// CPU models that guests can have with the node's accelerator; empty until that is chosen.
    pub cpu_models: Vec<String>,
}

/// The offer, as last seen.
#[derive(Debug, Default)]
pub(in crate::vm) struct LastOffer(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    offer: Offer,
    /// When all of it was seen, and for which accelerator.
    complete: Option<(Instant, Accelerator)>,
}

impl<P: Platform> Containers<P> {
    /// The offer as last seen; empty until libvirt has answered.
    pub fn offer(&self) -> Offer {
        self.offer.lock().offer.clone()
    }

    /// Requests the offer from libvirt; returns whether all of it is known.
    pub async fn look_at_offer(&self) -> bool {
        let accelerator = self.accelerator().map(|choice| choice.accelerator);
        if self.offer.lock().holds_for(accelerator) {
            return true;
        }
        let hypervisor = &self.parts.hypervisor;
        let types = hypervisor.machine_types().await;
        let types = types.inspect_err(|e| note("machine types", e)).ok();
        let models = match accelerator {
            Some(accelerator) => {
                let emulator = self.settings.wrapper.clone();
                let models = hypervisor.cpu_models(emulator, domain_type(accelerator));
                let models = models.await;
                models.inspect_err(|e| note("CPU models", e)).ok()
            }
            None => None,
        };
        let mut seen = self.offer.lock();
        let is_complete = types.is_some() && models.is_some();
        seen.complete = accelerator
            .filter(|_| is_complete)
            .map(|accelerator| (Instant::now(), accelerator));
        if let Some(types) = types {
            seen.offer.machine_types = types;
        }
        if let Some(models) = models {
            seen.offer.cpu_models = models;
        }
        is_complete
    }
}

impl LastOffer {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn holds_for(&self, accelerator: Option<Accelerator>) -> bool {
        self.complete
            .is_some_and(|(at, of)| at.elapsed() < HOLDS && Some(of) == accelerator)
    }
}

const fn domain_type(accelerator: Accelerator) -> DomainType {
    match accelerator {
        Accelerator::Kvm => DomainType::Kvm,
        Accelerator::Tcg => DomainType::Qemu,
    }
}

fn note(what: &str, error: &libvirt::Error) {
    tracing::debug!(
        what,
        error = crate::one_line(error),
        "libvirt's offer not read"
    );
}

#[cfg(test)]
mod tests {
    use crate::testkit::Node;

    #[tokio::test]
    async fn what_libvirt_offers_stays_known_while_it_is_away() {
        let node = Node::new().await;
        let containers = &node.containers;
        assert_eq!(containers.offer(), super::Offer::default());
        assert!(
            !containers.look_at_offer().await,
            "no accelerator is chosen"
        );
        assert_eq!(
            containers.offer().machine_types,
            ["pc-q35-7.1", "pc-q35-7.2"]
        );
        assert!(containers.offer().cpu_models.is_empty());
        containers.choose_accelerator().await.unwrap();
        assert!(containers.look_at_offer().await);
        let offer = containers.offer();
        assert_eq!(offer.cpu_models, ["qemu64"]);
        node.hypervisor.disconnect();
        assert!(containers.look_at_offer().await, "the last look holds");
        tokio::time::pause();
        tokio::time::advance(super::HOLDS).await;
        assert!(!containers.look_at_offer().await);
        assert_eq!(containers.offer(), offer);
    }
}

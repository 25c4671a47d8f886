//! What libvirt offers to machines of this node: machine types and CPU models.
//!
//! Invariant: no look waits for libvirt but [`Containers::look_at_offer`], which asks for each list
//! once in [`HOLDS`], and again after a connection: on a node whose KVM is broken, each question
//! makes libvirt probe for many seconds. A list that could not be had stays as it was.
//! Failure: logged at the level of details, since the state of libvirt is reported elsewhere.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libvirt::{DomainType, Hypervisor};
use tokio::time::Instant;

use super::accelerator::Accelerator;
use crate::platform::Platform;
use crate::vm::service::Containers;

/// How long a list holds. QEMU may be replaced while the daemon runs.
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
    /// When the machine types were seen.
    types: Option<Instant>,
    /// When the CPU models were seen, and with which accelerator.
    models: Option<(Instant, Accelerator)>,
}

impl<P: Platform> Containers<P> {
    /// The offer as last seen; empty until libvirt has answered.
    pub fn offer(&self) -> Offer {
        self.offer.lock().offer.clone()
    }

    /// Requests the offer from libvirt; returns whether all of it is known.
    pub async fn look_at_offer(&self) -> bool {
        let accelerator = self.accelerator().map(|choice| choice.accelerator);
        let hypervisor = &self.parts.hypervisor;
        if !self.offer.lock().has_types() {
            let types = hypervisor.machine_types().await;
            if let Ok(types) = types.inspect_err(|e| note("machine types", e)) {
                let mut seen = self.offer.lock();
                seen.offer.machine_types = types;
                seen.types = Some(Instant::now());
            }
        }
        let Some(accelerator) = accelerator else {
            return false;
        };
        if !self.offer.lock().has_models_of(accelerator) {
            let emulator = self.settings.wrapper.clone();
            let models = hypervisor.cpu_models(emulator, domain_type(accelerator));
            let models = models.await;
            if let Ok(models) = models.inspect_err(|e| note("CPU models", e)) {
                let mut seen = self.offer.lock();
                seen.offer.cpu_models = models;
                seen.models = Some((Instant::now(), accelerator));
            }
        }
        let seen = self.offer.lock();
        seen.has_types() && seen.has_models_of(accelerator)
    }

    /// Has the next look ask again: another libvirt or QEMU may answer.
    pub fn expire_offer(&self) {
        let mut seen = self.offer.lock();
        seen.types = None;
        seen.models = None;
    }
}

impl LastOffer {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn has_types(&self) -> bool {
        self.types.is_some_and(|at| at.elapsed() < HOLDS)
    }

    fn has_models_of(&self, accelerator: Accelerator) -> bool {
        self.models
            .is_some_and(|(at, of)| at.elapsed() < HOLDS && of == accelerator)
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
        containers.expire_offer();
        assert!(!containers.look_at_offer().await, "it is asked again");
        assert_eq!(containers.offer(), offer);
        node.hypervisor.reconnect();
        assert!(containers.look_at_offer().await);
        node.hypervisor.disconnect();
        tokio::time::pause();
        tokio::time::advance(super::HOLDS).await;
        assert!(!containers.look_at_offer().await);
        assert_eq!(containers.offer(), offer);
    }
}

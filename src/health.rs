//! The health of the daemon's helpers: libvirt and the tapmanager.
//!
//! Invariant: a check asks the helpers themselves, and always ends within [`FIRST`]. A helper that
//! is late still counts as it last answered, for [`FRESH`]: a busy node is no broken node. What it
//! answers counts at once.
//! Failure: none; what does not answer is reported as a sentence.

mod recent;
mod verdict;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libvirt::{Hypervisor, Versions};
use tapmanager::wire::Status;

use self::recent::Recent;
pub use self::verdict::{Lack, Readiness, Verdict};
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::vm::accelerator::Choice;
use crate::vm::{Containers, Equipment, Offer};

/// Longest wait for a helper that answered not long ago: clients poll every few seconds.
const DEADLINE: Duration = Duration::from_secs(1);

/// Longest wait for a helper of which nothing is known: libvirt's first answer may take it a look
/// at QEMU.
const FIRST: Duration = Duration::from_secs(5);

/// How long the last answer is used while a helper is late. kubelet gives a runtime up after 30 s.
const FRESH: Duration = Duration::from_secs(20);

/// Queries libvirt and the tapmanager.
#[derive(Debug)]
pub struct Health<P: Platform> {
    hypervisor: Arc<P::Hypervisor>,
    network: Arc<P::Network>,
    containers: Arc<Containers<P>>,
    versions: Recent<Versions>,
    status: Recent<Status>,
    last: Mutex<Option<Arc<Report>>>,
}

/// What a check found; an `Err` is a sentence for people.
#[derive(Debug, Clone)]
pub struct Report {
    /// The versions of libvirt and QEMU.
    pub hypervisor: Result<Versions, String>,
    /// What the tapmanager reports.
    pub network: Result<Status, String>,
    /// The accelerator, once it is chosen.
    pub accelerator: Option<Choice>,
    /// Why machines are emulated although KVM would be used, if they are.
    pub emulated: Option<String>,
    /// Why no machine can be started although libvirt answers, if none can.
    pub obstacle: Option<String>,
    /// What the node has, once that is known.
    pub equipment: Option<Equipment>,
    /// What libvirt offers, as last seen.
    pub offer: Offer,
}

impl<P: Platform> Health<P> {
    /// The health of these helpers.
    pub fn new(
        hypervisor: Arc<P::Hypervisor>,
        network: Arc<P::Network>,
        containers: Arc<Containers<P>>,
    ) -> Self {
        Self {
            hypervisor,
            network,
            containers,
            versions: Recent::new("libvirt"),
            status: Recent::new("vmlet-tapmanager"),
            last: Mutex::default(),
        }
    }

    /// Queries all helpers at once.
    pub async fn check(&self) -> Arc<Report> {
        let (hypervisor, network, obstacle, equipment) = tokio::join!(
            self.versions.query(self.hypervisor.versions()),
            self.status.query(self.network.status()),
            self.containers.obstacle(),
            self.containers.equipment(),
        );
        let report = Arc::new(Report {
            hypervisor,
            network,
            accelerator: self.containers.accelerator(),
            emulated: self.containers.emulated_because(),
            obstacle,
            equipment,
            offer: self.containers.offer(),
        });
        *self.last() = Some(Arc::clone(&report));
        report
    }

    /// What the last check found, without a new check; `None` before the first.
    pub fn last_report(&self) -> Option<Arc<Report>> {
        self.last().clone()
    }

    fn last(&self) -> MutexGuard<'_, Option<Arc<Report>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

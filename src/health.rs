//! Whether the daemon's helpers do their part.
//!
//! Invariant: a check asks the helpers themselves, and always ends within [`DEADLINE`].
//! Failure: none; what does not answer is reported as a sentence.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor, Versions};
use tapmanager::wire::Status;

use crate::sandbox::PodNetwork;
use crate::vm::Containers;
use crate::vm::accel::Choice;

/// Longest time of one check: clients poll it every few seconds.
const DEADLINE: Duration = Duration::from_secs(1);

/// Asks libvirt and the owner of networks.
#[derive(Debug)]
pub struct Health<H, N> {
    hypervisor: Arc<H>,
    network: Arc<N>,
    containers: Arc<Containers<H, N>>,
}

/// What a check found; an `Err` is a sentence for people.
#[derive(Debug, Clone)]
pub struct Report {
    /// The versions of libvirt and QEMU.
    pub hypervisor: Result<Versions, String>,
    /// What the owner of networks says.
    pub network: Result<Status, String>,
    /// The accelerator, once it is chosen.
    pub accelerator: Option<Choice>,
}

impl<H: Hypervisor, N: PodNetwork> Health<H, N> {
    /// Checks these helpers.
    pub const fn new(
        hypervisor: Arc<H>,
        network: Arc<N>,
        containers: Arc<Containers<H, N>>,
    ) -> Self {
        Self {
            hypervisor,
            network,
            containers,
        }
    }

    /// Asks all helpers at once.
    pub async fn check(&self) -> Report {
        let (hypervisor, network) = tokio::join!(
            tokio::time::timeout(DEADLINE, self.hypervisor.versions()),
            tokio::time::timeout(DEADLINE, self.network.status()),
        );
        let late = |who: &str| format!("{who} did not answer within {} s", DEADLINE.as_secs());
        Report {
            hypervisor: match hypervisor {
                Ok(answer) => answer.map_err(|e| crate::one_line(&e)),
                Err(_) => Err(late("libvirt")),
            },
            network: match network {
                Ok(answer) => answer.map_err(|e| crate::one_line(&e)),
                Err(_) => Err(late("vmlet-tapmanager")),
            },
            accelerator: self.containers.accelerator().cloned(),
        }
    }
}

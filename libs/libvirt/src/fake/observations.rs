//! What tests see of the fake hypervisor: what was requested, and what its domains have.
//!
//! Invariant: a look changes nothing.
//! Failure: none here; of a domain that does not exist there is nothing to see.

use serde_json::Value;
use uuid::Uuid;

use super::FakeHypervisor;
use crate::{Cable, Shutdown, Size};

impl FakeHypervisor {
    /// What a running machine has of virtual CPUs and memory.
    pub fn size_of(&self, domain: Uuid) -> Option<Size> {
        self.lock().domains.get(&domain)?.size
    }

    /// How often a guest was resumed, also in vain.
    pub fn resumes(&self, domain: Uuid) -> usize {
        self.lock().resumes.get(&domain).copied().unwrap_or(0)
    }

    /// How often statistics were requested.
    pub fn stats_calls(&self) -> usize {
        self.lock().stats_calls
    }

    /// The CPU set of a domain, as last requested.
    pub fn pinned(&self, domain: Uuid) -> Vec<u32> {
        let inner = self.lock();
        inner
            .domains
            .get(&domain)
            .map(|d| d.cpus.clone())
            .unwrap_or_default()
    }

    /// The XML by which a domain was last defined.
    pub fn xml(&self, domain: Uuid) -> Option<String> {
        self.lock().domains.get(&domain).map(|d| d.xml.clone())
    }

    /// Agent commands so far, in order.
    pub fn agent_commands(&self) -> Vec<Value> {
        self.lock().commands.clone()
    }

    /// Requests to power off so far, in order.
    pub fn shutdowns(&self) -> Vec<(Uuid, Shutdown)> {
        self.lock().shutdowns.clone()
    }

    /// Requests to reboot so far, in order; without a way for the reset button.
    pub fn reboots(&self) -> Vec<(Uuid, Option<Shutdown>)> {
        self.lock().reboots.clone()
    }

    /// Cables that were pulled or plugged in so far, in order, and whether the guest ran then.
    pub fn cables(&self) -> Vec<(String, Cable, bool)> {
        self.lock().cables.clone()
    }
}

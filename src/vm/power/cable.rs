//! Notifies a guest restored from saved memory of new addresses: its link is set down and up again.
//!
//! Invariant: a cable is pulled before the guest runs one instruction, so that it says nothing from
//! an address that is in use by another guest, and stays so until the guest can have noticed; then
//! its DHCP client requests a lease and gets the new address.
//! Failure: what cannot be pulled stays, and the guest learns its address when its lease renews;
//! what cannot be plugged in again is tried for [`TIMEOUT`] and logged.

use std::time::Duration;

use libvirt::{Cable, Hypervisor};

use crate::disk::{Memory, SavedNic};
use crate::platform::Platform;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// Time for a guest to see that its cable is pulled.
const PULLED: Duration = Duration::from_secs(2);

/// Time between two attempts to plug a cable in.
const AGAIN: Duration = Duration::from_secs(1);

/// How long that is tried.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Cables that are pulled, by the emulator's names of their NICs.
#[derive(Debug)]
pub(super) struct Pulled(Vec<String>);

impl<P: Platform> Containers<P> {
    /// Pulls the cables of the NICs whose addresses in memory are no longer theirs.
    pub(super) async fn pull_moved(&self, row: &Container, memory: &Memory) -> Pulled {
        let mut pulled = Vec::new();
        for nic in moved(&memory.nics, &self.nics(row)) {
            match self.set_cable(row, &nic, Cable::Pulled).await {
                Ok(()) => pulled.push(nic),
                Err(e) => {
                    tracing::warn!(container = %row.id, nic, error = crate::one_line(&e), "link not set down");
                }
            }
        }
        Pulled(pulled)
    }

    /// Plugs them in again, once the guest has run for a while.
    pub(super) async fn plug_in(&self, row: &Container, pulled: Pulled) {
        if pulled.0.is_empty() {
            return;
        }
        tokio::time::sleep(PULLED).await;
        for nic in pulled.0 {
            let plugging = async {
                while let Err(e) = self.set_cable(row, &nic, Cable::PluggedIn).await {
                    tracing::warn!(container = %row.id, nic, error = crate::one_line(&e), again_in = ?AGAIN, "link not set up");
                    if !e.is_unavailable() {
                        return;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                tracing::info!(container = %row.id, nic, "guest notified of its new address");
            };
            if tokio::time::timeout(TIMEOUT, plugging).await.is_err() {
                tracing::error!(container = %row.id, nic, "link of the guest left down");
            }
        }
    }

    async fn set_cable(&self, row: &Container, nic: &str, cable: Cable) -> libvirt::Result<()> {
        let driver = &self.parts.hypervisor;
        driver.cable(row.domain(), nic.to_owned(), cable).await
    }
}

/// The names that vmwrapper gives to NICs, of those that have lost an address.
fn moved(before: &[SavedNic], now: &[SavedNic]) -> Vec<String> {
    let lost = |(before, now): (&SavedNic, &SavedNic)| {
        let mut all = before.addresses.iter();
        all.any(|address| !now.addresses.contains(address))
    };
    let nics = before.iter().zip(now).enumerate();
    let nics = nics.filter(|(_, pair)| lost(*pair));
    nics.map(|(index, _)| format!("vmlet-net{index}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_has_moved_when_an_address_of_it_is_gone() {
        let nic = |addresses: &[&str]| SavedNic {
            mac: String::new(),
            addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
        };
        let before = [nic(&["10.1.0.5"]), nic(&["fd00::5", "10.2.0.5"]), nic(&[])];
        let now = [
            nic(&["10.1.0.5", "fd00::6"]),
            nic(&["10.2.0.5"]),
            nic(&["x"]),
        ];
        assert_eq!(moved(&before, &now), ["vmlet-net1"]);
        assert!(moved(&before, &before).is_empty());
    }
}

//! Guests that do not run: paused by a request, or by QEMU because a disk failed.
//!
//! Invariant: a guest is resumed only for a request, a stop, or room on its disks; one whose memory
//! is being saved, or layers merged, is left alone, and one that its owner has paused waits for a request or a stop.
//! Failure: [`Error::DiskFails`] for a guest that pauses again at once, [`Unresponsive`] for one
//! that cannot power off.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use libvirt::{Event, Hypervisor, Pause, Power};
use podspec::ContainerId;
use tokio::sync::broadcast::error::RecvError;
use uuid::Uuid;

use super::merge::pause_name;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// How long after a resume QEMU may take to pause the guest again: it repeats the failed request
/// at once.
const SETTLES: Duration = Duration::from_secs(1);

/// Longest list of failed disks, in characters.
const LONGEST: usize = 200;

/// Why a guest cannot power off.
#[derive(Debug)]
pub(in crate::vm) struct Unresponsive(pub(in crate::vm) String);

/// What a stop has tried.
#[derive(Debug, Default)]
pub(in crate::vm) struct Attempts {
    resumed: bool,
}

impl<P: Platform> Containers<P> {
    /// Resumes a guest whose disk failed; [`Error::DiskFails`] when it fails again at once.
    pub(in crate::vm) async fn resume_after_failure(&self, domain: Uuid) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let mut events = driver.events();
        driver.resume(domain).await.map_err(hypervisor("unpause"))?;
        let fails_again = async {
            loop {
                match events.recv().await {
                    Ok(Event::Power(of)) if of != domain => continue,
                    Ok(Event::Power(_)) | Err(RecvError::Lagged(_)) => {}
                    Ok(_) => continue,
                    Err(RecvError::Closed) => std::future::pending().await,
                }
                if self.has_disk_failed(domain).await {
                    return;
                }
            }
        };
        match tokio::time::timeout(SETTLES, fails_again).await {
            Ok(()) => Err(Error::DiskFails(self.failed_disks(domain).await)),
            Err(_) => Ok(()),
        }
    }

    /// Whether the memory of a guest is being saved, which ends its pause by itself. libvirt shows
    /// that for a guest that ran before; of another one it keeps the reason of the earlier pause.
    pub(in crate::vm) fn is_being_saved(&self, row: &Container) -> bool {
        let disk = row.vm().and_then(|vm| self.parts.disks.get(vm));
        disk.is_some_and(|disk| disk.is_being_saved())
    }

    /// Whether QEMU has paused the guest because a disk failed; false when libvirt does not say.
    pub(in crate::vm) async fn has_disk_failed(&self, domain: Uuid) -> bool {
        let power = self.parts.hypervisor.power(domain).await;
        matches!(power, Ok(Some(Power::Paused(Pause::IoError))))
    }

    /// The disks for which QEMU has paused a guest, for people.
    pub async fn failed_disks(&self, domain: Uuid) -> String {
        let failed = self.parts.hypervisor.failed_disks(domain).await;
        let failed = failed.unwrap_or_default();
        if failed.is_empty() {
            return "a disk fails".to_owned();
        }
        let texts: Vec<_> = failed.iter().map(ToString::to_string).collect();
        texts.join(", ").chars().take(LONGEST).collect()
    }

    /// Lets a paused guest run, so that it can power off. One whose disk fails again cannot.
    pub(in crate::vm) async fn wake(
        &self,
        row: &Container,
        attempts: &mut Attempts,
    ) -> Result<(), Unresponsive> {
        let _still = match row.vm() {
            Some(vm) => Some(self.parts.locks.lock(&pause_name(vm)).await),
            None => None,
        };
        if self.is_being_saved(row) || self.is_pivoting(row) {
            return Ok(());
        }
        let driver = &self.parts.hypervisor;
        let domain = row.domain();
        let resumed = match driver.power(domain).await {
            Ok(Some(Power::Paused(Pause::Asked))) => {
                driver.resume(domain).await.map_err(hypervisor("resume"))
            }
            Ok(Some(Power::Paused(Pause::IoError))) if attempts.resumed => {
                Err(Error::DiskFails(self.failed_disks(domain).await))
            }
            Ok(Some(Power::Paused(Pause::IoError))) => {
                attempts.resumed = true;
                self.resume_after_failure(domain).await
            }
            // Without an answer the request may take effect all the same. A save ends by itself.
            Ok(_) | Err(_) => return Ok(()),
        };
        match resumed {
            Ok(()) => {
                tracing::info!(container = %row.id, "paused guest resumed, so that it can power off");
                Ok(())
            }
            Err(Error::DiskFails(disks)) => Err(Unresponsive(disks)),
            Err(Error::Hypervisor { source, .. }) if source.is_unavailable() => Ok(()),
            Err(error) => {
                // It may have ended meanwhile.
                if !self.is_paused(domain).await {
                    return Ok(());
                }
                Err(Unresponsive(crate::one_line(&error)))
            }
        }
    }

    async fn is_paused(&self, domain: Uuid) -> bool {
        let power = self.parts.hypervisor.power(domain).await;
        matches!(power, Ok(Some(Power::Paused(_))))
    }

    /// Why guests that are being killed could not power off.
    pub(in crate::vm) fn unresponsive<T>(
        &self,
        look: impl FnOnce(&mut HashMap<ContainerId, String>) -> T,
    ) -> T {
        let all = self.unresponsive.lock();
        look(&mut all.unwrap_or_else(PoisonError::into_inner))
    }
}

//! Reboots and resets a guest without a new emulator.
//!
//! Invariant: success means that the hypervisor reported a reset, by any cause. The container
//! stays.
//! Failure: [`Error::NotRunning`] when the machine ends instead, [`Error::Paused`] for a guest that
//! cannot respond. A reboot that was not observed, since the connection was lost just then, is
//! followed by another.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use libvirt::{Event, Hypervisor, Pause, Power, Shutdown};
use podspec::VmUid;
use tokio::time::Instant;
use uuid::Uuid;

use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// Interval of the requests to the guest: a booting guest ignores the first ones.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Time for a guest whose agent took the order to come down before it is asked once more.
const OBEYS: Duration = Duration::from_secs(10);

/// How long libvirt may take to report a reset. A reset right after another one is not reported.
const ECHO: Duration = Duration::from_secs(2);

impl<P: Platform> Containers<P> {
    /// Requests the guest to reboot until it boots again, or until `deadline`; true when it does.
    pub async fn reboot(&self, vm: VmUid, deadline: Instant) -> Result<bool> {
        let driver = &self.parts.hypervisor;
        let mut events = driver.events();
        let mut changes = self.parts.table.changes();
        let row = self.running_vm(vm)?;
        // A concurrent stop has precedence.
        let runs = || {
            let now = self.parts.table.get(&row.id);
            now.is_some_and(|row| row.phase == Phase::Running)
        };
        self.check_connected("reboot").await?;
        let domain = row.domain();
        let power = driver.power(domain).await.map_err(hypervisor("look at"))?;
        if power == Some(Power::Paused(Pause::Asked)) {
            return Err(Error::Paused(vm));
        }
        if power == Some(Power::Paused(Pause::IoError)) {
            return Err(Error::DiskFails(self.failed_disks(domain).await));
        }
        let mut requests = pin!(self.keep_requesting_reboot(domain));
        while runs() {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Ok(false),
                event = events.recv() => if event.is_ok_and(|e| e == Event::Reset(domain)) {
                    return Ok(true);
                },
                _ = changes.changed() => {}
                never = &mut requests => match never {},
            }
        }
        Err(Error::NotRunning(vm))
    }

    /// Presses the reset button.
    pub async fn reset(&self, vm: VmUid) -> Result<()> {
        let domain = self.running_vm(vm)?.domain();
        let driver = &self.parts.hypervisor;
        let mut events = driver.events();
        let pressed = driver.reset(domain).await;
        pressed.map_err(hypervisor("reset"))?;
        // A reboot that is requested next must not take this event for its own.
        let seen = async { while events.recv().await != Ok(Event::Reset(domain)) {} };
        if tokio::time::timeout(ECHO, seen).await.is_err() {
            tracing::info!(%domain, "no reset event received from libvirt");
        }
        Ok(())
    }

    /// By the agent, or else by the power button, after which the hypervisor boots the guest again.
    async fn keep_requesting_reboot(&self, domain: Uuid) -> Infallible {
        let driver = &self.parts.hypervisor;
        loop {
            let by_agent = driver.reboot(domain, Shutdown::Agent).await;
            tracing::debug!(%domain, agent = by_agent.is_ok(), "reboot requested from the guest");
            let timeout = match by_agent {
                Ok(()) => OBEYS,
                Err(_) => ASK_AGAIN,
            };
            if by_agent.is_err()
                && let Err(e) = driver.reboot(domain, Shutdown::Acpi).await
            {
                tracing::debug!(%domain, error = %e, "ACPI power button event failed");
            }
            tokio::time::sleep(timeout).await;
        }
    }
}

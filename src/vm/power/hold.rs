//! A guest that is frozen while others take snapshots of its disks.
//!
//! Invariant: `vmlet-guest` alone freezes for them, since it thaws by itself: when this process ends, and after the time. So
//! no record requests a thaw.
//! Failure: [`LayerError::NotQuiesced`]; the guest is not frozen, or not for longer than the time.

use std::time::Duration;

use libvirt::{Hypervisor, Power};
use podspec::VmUid;
use tokio::time::{Instant, sleep_until};

use super::freezes::Freeze;
use super::quiesce::{FreezeError, LONGEST, PING};
use crate::disk;
use crate::guest;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::power::LayerError;
use crate::vm::service::Containers;
use crate::vm::stops::Stop;

/// A guest that has frozen its file systems, until it is dropped.
#[derive(Debug)]
pub struct HeldGuest {
    vm: VmUid,
    freeze: Freeze,
    own: guest::Freeze,
    stop: Stop,
}

impl<P: Platform> Containers<P> {
    /// Has the guest of a virtual machine freeze its file systems for so many seconds, a minute at most.
    pub async fn freeze_guest(&self, vm: VmUid, seconds: u32) -> Result<HeldGuest> {
        let row = self.running_vm(vm)?;
        self.check_connected("look at").await?;
        let power = self.parts.hypervisor.power(row.domain()).await;
        let power = power.map_err(hypervisor("look at"))?;
        if matches!(power, Some(Power::Paused(_))) {
            return Err(Error::Paused(vm));
        }
        if self.freezes.has(vm) {
            let doing = "changed, with its guest frozen for that";
            return Err(disk::Error::Busy { vm, doing }.into());
        }
        let time = Duration::from_secs(seconds.max(1).into()).min(LONGEST);
        let socket = self.guest_port(&row);
        let agent = self.guests.agent(&row.id, &socket, PING.min(time)).await;
        let agent = agent.filter(|agent| agent.watches_freezes);
        let not_frozen = |source| Error::from(LayerError::NotQuiesced { vm, source });
        let agent = agent.ok_or_else(|| not_frozen(FreezeError::NoOwnAgent))?;
        let freeze = self.freezes.begin(vm, Instant::now() + time);
        let own = agent.freeze(time).await;
        let own = own.map_err(|error| not_frozen(FreezeError::Own(error)))?;
        if own.file_systems() == 0 {
            return Err(not_frozen(FreezeError::Nothing));
        }
        freeze.answered();
        let stop = self.stops.watch(&row.sandbox);
        Ok(HeldGuest {
            vm,
            freeze,
            own,
            stop,
        })
    }
}

impl HeldGuest {
    /// Ends when it is to thaw: its time is over, or its machine is stopped.
    pub async fn await_due(&self) {
        tokio::select! {
            () = sleep_until(self.freeze.deadline) => {}
            () = self.stop.requested() => {}
        }
    }

    /// Has it thaw; true when its file systems were frozen until then.
    pub async fn thaw(self) -> bool {
        let Self {
            vm, freeze, own, ..
        } = self;
        let was_frozen = own.thaw().await.unwrap_or_else(|error| {
            let error = crate::one_line(&error);
            tracing::warn!(%vm, error, "guest did not confirm the thaw");
            false
        });
        was_frozen && !freeze.is_reset()
    }
}

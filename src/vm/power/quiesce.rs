//! The freeze of a guest's file systems for a snapshot.
//!
//! ```text
//! agent                 before                        after a crash of the daemon
//! vmlet-guest           -                             the guest thaws: its connection ends, or its time is over
//! QEMU guest agent      a ping; the record of it      whichever process finds the record thaws the guest
//! ```
//!
//! Invariant: a guest is requested to freeze only when its agent has just answered. One that the QEMU guest agent
//! was requested to freeze is thawed, or was reset, before the record says that it is not. With `vmlet-guest` a
//! snapshot counts as quiesced only when the guest answers to the thaw that all were frozen until then.
//! Failure: [`LayerError::NotQuiesced`] leaves no snapshot, [`LayerError::NotThawed`] leaves the change to the repetition.

use std::time::Duration;

use libvirt::Hypervisor;
use libvirt::guest::SHORT_REPLY;
use podspec::VmUid;
use serde_json::json;
use tokio::time::Instant;

use super::freezes::Freeze;
use crate::disk::Change;
use crate::guest;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::service::Containers;

/// Time for the agent of a guest to show that it is there.
pub(super) const PING: Duration = Duration::from_secs(10);

/// Time for `vmlet-guest` to answer a new connection before the QEMU guest agent is tried.
const FIRST: Duration = Duration::from_secs(1);

/// The longest time for which `vmlet-guest` freezes.
pub(super) const LONGEST: Duration = Duration::from_secs(guestapi::LONGEST_FREEZE as u64);

/// Time for the answer of a guest that is requested to thaw.
const THAW: Duration = Duration::from_secs(10);

/// How often the thaw is requested.
const THAWS: usize = 3;

/// Time between these requests: an agent whose port is not open is reported at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a guest has not frozen its file systems.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The answer of the QEMU guest agent, or why there is none.
    #[error(transparent)]
    Qemu(libvirt::Error),
    /// That of `vmlet-guest`.
    #[error(transparent)]
    Own(guest::Error),
    /// What takes the snapshots may be away when it is to thaw.
    #[error(
        "no vmlet-guest answers in the guest that thaws by itself, and the QEMU guest agent thaws on request alone: \
         install vmlet-guest of this version"
    )]
    NoOwnAgent,
    /// It has none that its kernel can freeze.
    #[error("the guest has no file system that it can freeze")]
    Nothing,
}

impl FreezeError {
    /// Whether the same request may succeed later without a change in the guest.
    pub(in crate::vm) fn is_transient(&self) -> bool {
        match self {
            Self::Qemu(error) => error.is_unavailable(),
            Self::Own(error) => *error == guest::Error::Lost,
            Self::NoOwnAgent | Self::Nothing => false,
        }
    }
}

/// The agent that freezes a guest.
#[derive(Debug)]
pub(super) enum FreezingAgent {
    /// `vmlet-guest`.
    Own(guest::Agent),
    /// The QEMU guest agent.
    Qemu,
}

/// A guest that has frozen its file systems.
#[derive(Debug)]
pub(super) struct FrozenGuest {
    /// Until when it may stay frozen, and whether it was reset.
    pub(super) freeze: Freeze,
    /// That of `vmlet-guest`.
    own: Option<guest::Freeze>,
}

impl<P: Platform> Containers<P> {
    /// The agent that answers, before anything is recorded.
    pub(super) async fn freezing_agent(
        &self,
        row: &Container,
        vm: VmUid,
        limit: Duration,
    ) -> Result<FreezingAgent> {
        let socket = self.guest_port(row);
        let limit = limit.min(PING);
        let own = |limit| self.guests.agent(&row.id, &socket, limit);
        let agent = own(FIRST.min(limit)).await;
        if let Some(agent) = agent.filter(|agent| agent.watches_freezes) {
            return Ok(FreezingAgent::Own(agent));
        }
        let driver = &self.parts.hypervisor;
        let command = json!({"execute": "guest-ping"});
        match driver.agent(row.domain(), command, limit).await {
            Ok(_) => Ok(FreezingAgent::Qemu),
            Err(error) => {
                // One of an earlier version thaws by itself, too, unless it is killed.
                let agent = own(limit).await.map(FreezingAgent::Own);
                let source = FreezeError::Qemu(error);
                Ok(agent.ok_or(LayerError::NotQuiesced { vm, source })?)
            }
        }
    }

    /// Freezes the file systems of the guest; without that the change is dropped.
    pub(super) async fn freeze(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        agent: FreezingAgent,
        limit: Duration,
    ) -> Result<FrozenGuest> {
        match agent {
            FreezingAgent::Own(agent) => {
                let time = limit.min(LONGEST);
                let freeze = self.freezes.begin(vm, Instant::now() + time);
                self.freeze_by_own(vm, change, &agent, freeze, time).await
            }
            FreezingAgent::Qemu => {
                let freeze = self.freezes.begin(vm, Instant::now() + limit);
                self.freeze_by_qemu(row, vm, change, freeze).await
            }
        }
    }

    async fn freeze_by_own(
        &self,
        vm: VmUid,
        change: Change,
        agent: &guest::Agent,
        freeze: Freeze,
        time: Duration,
    ) -> Result<FrozenGuest> {
        faultpoint::point("node.snapshot.freezes");
        let source = match agent.freeze(time).await {
            Ok(own) if own.file_systems() > 0 => {
                freeze.answered();
                faultpoint::point("quiesce.frozen");
                let own = Some(own);
                return Ok(FrozenGuest { freeze, own });
            }
            Ok(_) => FreezeError::Nothing,
            Err(error) => FreezeError::Own(error),
        };
        self.parts.disks.abandon_change(vm, change.layer).await?;
        Err(LayerError::NotQuiesced { vm, source }.into())
    }

    async fn freeze_by_qemu(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        freeze: Freeze,
    ) -> Result<FrozenGuest> {
        let disks = &self.parts.disks;
        disks.set_freezes(vm, change.layer, true).await?;
        faultpoint::point("node.snapshot.freezes");
        let command = json!({"execute": "guest-fsfreeze-freeze"});
        let limit = freeze.deadline.saturating_duration_since(Instant::now());
        let driver = &self.parts.hypervisor;
        let answer = driver.agent(row.domain(), command, limit).await;
        let source = match answer.and_then(|reply| reply.read::<u64>(SHORT_REPLY)) {
            Ok(1..) => {
                freeze.answered();
                let own = None;
                return Ok(FrozenGuest { freeze, own });
            }
            Ok(0) => FreezeError::Nothing,
            Err(error) => FreezeError::Qemu(error),
        };
        let is_certain = matches!(
            source,
            FreezeError::Qemu(libvirt::Error::NoAgent { .. } | libvirt::Error::AgentForbids { .. })
        );
        if !is_certain {
            // It may freeze later.
            self.end_freeze_by_qemu(row, vm, change, &freeze).await?;
        }
        disks.abandon_change(vm, change.layer).await?;
        Err(LayerError::NotQuiesced { vm, source }.into())
    }

    /// Ends a freeze; true when the file systems were frozen until then.
    pub(super) async fn end_freeze(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        guest: FrozenGuest,
    ) -> Result<bool> {
        let FrozenGuest { freeze, own } = guest;
        let was_frozen = match own {
            None => {
                self.end_freeze_by_qemu(row, vm, change, &freeze).await?;
                true
            }
            Some(own) => own.thaw().await.unwrap_or_else(|error| {
                let error = crate::one_line(&error);
                tracing::warn!(%vm, error, "guest did not confirm the thaw");
                false
            }),
        };
        Ok(was_frozen && !freeze.is_reset())
    }

    /// A guest that was reset since is not frozen, and what boots now may have no agent.
    async fn end_freeze_by_qemu(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        freeze: &Freeze,
    ) -> Result<()> {
        let thawed = self.thaw(row, vm).await;
        if thawed.is_ok() || !freeze.is_reset() {
            return thawed;
        }
        let disks = &self.parts.disks;
        Ok(disks.set_freezes(vm, change.layer, false).await?)
    }

    /// Has the QEMU guest agent let the guest write to its file systems again.
    pub(super) async fn thaw(&self, row: &Container, vm: VmUid) -> Result<()> {
        let mut attempts = 0;
        loop {
            let command = json!({"execute": "guest-fsfreeze-thaw"});
            let driver = &self.parts.hypervisor;
            let thawed = driver.agent(row.domain(), command, THAW).await;
            attempts += 1;
            match thawed {
                Ok(_) => return Ok(()),
                Err(source) if attempts == THAWS => {
                    return Err(LayerError::NotThawed { vm, source }.into());
                }
                Err(error) => {
                    let error = crate::one_line(&error);
                    tracing::warn!(%vm, error, "guest not thawed yet");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

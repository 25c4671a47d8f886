//! Gives a running machine the virtual CPUs and the memory that its resources make.
//!
//! Invariant: success means that the guest has what was requested, no more and no less. Under
//! software emulation no virtual CPU is plugged in or unplugged, either of which can end QEMU: the
//! guest takes it off line, and on line again.
//! Failure: a guest that does not follow in time is requested to be as before, and the reason
//! names what it did.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor, guest};
use podspec::ContainerId;
use tokio::time::Instant;

use super::room::STEP;
use super::size::{Size, has_room, size};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::{Container, LinuxResources};
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// How long a guest has to follow: kubelet waits two minutes for an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at a guest.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// Time for the agent to answer a command about CPUs.
const AGENT: Duration = Duration::from_secs(5);

/// A change in progress.
pub(super) struct Change {
    row: Arc<Container>,
    to: Size,
    /// Whether the guest gets more virtual CPUs than before.
    grows: bool,
    /// How many there were when the guest was last requested to let some go.
    released_at: Option<u16>,
    /// What keeps the guest's CPUs from changing.
    obstacle: Option<String>,
}

/// What a machine does not have yet.
pub(super) struct Missing {
    what: &'static str,
    /// Why, and what the guest needs.
    pub(super) reason: String,
    /// Whether the machine cannot get it as long as it runs.
    pub(super) is_final: bool,
}

impl Missing {
    const fn now(what: &'static str, reason: String) -> Self {
        Self {
            what,
            reason,
            is_final: false,
        }
    }

    const fn never(what: &'static str, reason: String) -> Self {
        Self {
            what,
            reason,
            is_final: true,
        }
    }

    /// The refusal of the change of this container.
    pub(super) fn refuse(self, id: &ContainerId) -> Error {
        Error::Resize {
            id: id.clone(),
            what: self.what,
            reason: self.reason,
        }
    }
}

impl<P: Platform> Containers<P> {
    /// Changes a running machine from the size of one set of resources to that of another.
    pub(super) async fn fit(
        &self,
        row: &Arc<Container>,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        if !has_room(&row.spec.machine) {
            return Ok(());
        }
        let from = size(&row.spec, before);
        let to = size(&row.spec, after);
        let mut change = Change::new(row, from, to);
        let done = self.while_running(&row.id, self.reach(&mut change)).await;
        let is_refused = done.as_ref().is_err_and(|e| {
            let is_ending = matches!(e, Error::Phase { .. } | Error::NoContainer(_));
            !e.is_transient() && !is_ending
        });
        if is_refused && from != to {
            let mut back = Change::new(row, to, from);
            let back = self.while_running(&row.id, self.request(&mut back)).await;
            if let Err(e) = back {
                let error = crate::one_line(&e);
                tracing::warn!(container = %row.id, error, "former size not requested");
            }
        }
        done
    }

    async fn reach(&self, change: &mut Change) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        while let Some(missing) = self.request(change).await? {
            if Instant::now() >= until {
                return Err(missing.refuse(&change.row.id));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Works on a machine that runs; an error as soon as it is to end.
    pub(super) async fn while_running<T>(
        &self,
        id: &ContainerId,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let ending = async {
            let mut changes = self.parts.table.changes();
            loop {
                let phase = match self.row(id) {
                    Ok(row) => row.phase,
                    Err(e) => return e,
                };
                if phase != Phase::Running {
                    return Error::Phase {
                        id: id.clone(),
                        phase,
                        verb: "changed",
                    };
                }
                // Without a table to change, the daemon ends.
                if changes.changed().await.is_err() {
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            ending = ending => Err(ending),
        }
    }

    /// Requests what the machine does not have yet; returns what is missing.
    pub(super) async fn request(&self, change: &mut Change) -> Result<Option<Missing>> {
        let domain = change.row.domain();
        let has = self.parts.hypervisor.size(domain).await;
        let has = has.map_err(hypervisor("look at"))?;
        let memory = self.request_memory(change, &has).await?;
        let cpus = self.request_cpus(change, &has).await?;
        Ok(match (memory, cpus) {
            (Some(memory), Some(cpus)) if cpus.is_final && !memory.is_final => Some(cpus),
            (Some(memory), _) => Some(memory),
            (None, cpus) => cpus,
        })
    }

    async fn request_memory(
        &self,
        change: &Change,
        has: &libvirt::Size,
    ) -> Result<Option<Missing>> {
        let more = change.to.memory.bytes().saturating_sub(has.base);
        let step = STEP << 20;
        let more = more / step * step;
        let Some(spare) = has.spare else {
            let reason = "the machine was started without room for more";
            return Ok((more > 0).then(|| Missing::never("memory", reason.to_owned())));
        };
        let more = more.min(spare.most);
        if spare.requested != more {
            let set = self.parts.hypervisor.set_memory(change.row.domain(), more);
            set.await.map_err(hypervisor("resize"))?;
        }
        let uses = (has.base + spare.plugged) >> 20;
        let wanted = change.to.memory.get();
        let reason = match spare.plugged.cmp(&more) {
            std::cmp::Ordering::Equal => return Ok(None),
            std::cmp::Ordering::Less => format!(
                "the guest uses {uses} MiB and takes no more, {wanted} MiB were requested: it \
                 needs the driver of virtio-mem"
            ),
            std::cmp::Ordering::Greater => format!(
                "the guest uses {uses} MiB and gives no more back, {wanted} MiB were requested: \
                 its programs or its kernel need the memory"
            ),
        };
        Ok(Some(Missing::now("memory", reason)))
    }

    async fn request_cpus(
        &self,
        change: &mut Change,
        has: &libvirt::Size,
    ) -> Result<Option<Missing>> {
        if change.row.spec.machine.max_vcpus.is_none() {
            return Ok(None);
        }
        let domain = change.row.domain();
        let wanted = change.to.vcpus;
        let is_emulated = self.is_emulated(domain).await?;
        if has.vcpus < wanted && is_emulated {
            let has = has.vcpus;
            let reason = format!(
                "the machine has {has} virtual CPUs, and QEMU plugs none in under software emulation"
            );
            return Ok(Some(Missing::never("CPU", reason)));
        }
        if has.vcpus < wanted {
            let plugged = self.parts.hypervisor.set_vcpus(domain, wanted).await;
            plugged.map_err(hypervisor("resize"))?;
        }
        if has.vcpus > wanted && !is_emulated {
            let reason = self.release_cpus(change, has.vcpus).await?;
            return Ok(Some(Missing::now("CPU", reason)));
        }
        if has.vcpus <= wanted && !change.grows {
            return Ok(None);
        }
        // Those that are plugged in, or that the guest took off line before, are not used yet.
        let reason = match self.use_cpus(change).await? {
            Ok(used) if used < wanted => format!(
                "the guest uses {used} virtual CPUs, {wanted} were requested: it does not bring \
                 the others on line"
            ),
            Ok(used) if used > wanted => change.too_many(used),
            Err(reason) if has.vcpus > wanted => format!(
                "under software emulation the guest's agent takes virtual CPUs off line: {reason}"
            ),
            // Whether the guest uses them is its own affair without an agent.
            _ => return Ok(None),
        };
        Ok(Some(Missing::now("CPU", reason)))
    }

    /// Requests the guest to let virtual CPUs go, again whenever one of them went.
    async fn release_cpus(&self, change: &mut Change, has: u16) -> Result<String> {
        if change.released_at != Some(has) {
            change.released_at = Some(has);
            let domain = change.row.domain();
            let wanted = change.to.vcpus;
            match self.parts.hypervisor.set_vcpus(domain, wanted).await {
                Err(libvirt::Error::Refused { reason, .. }) => change.obstacle = Some(reason),
                other => other.map_err(hypervisor("resize"))?,
            }
        }
        Ok(change.too_many(has))
    }

    /// Requests the guest, by its agent, to work with so many virtual CPUs; returns with how many
    /// it does, or why there is no answer.
    async fn use_cpus(&self, change: &Change) -> Result<Result<u16, String>> {
        let domain = change.row.domain();
        let wanted = change.to.vcpus;
        match guest::use_vcpus(&*self.parts.hypervisor, domain, wanted, AGENT).await {
            Ok(used) => Ok(Ok(used)),
            Err(
                e @ (libvirt::Error::Agent { .. }
                | libvirt::Error::NoAgent { .. }
                | libvirt::Error::AgentForbids { .. }),
            ) => Ok(Err(crate::one_line(&e))),
            Err(e) => Err(hypervisor("resize")(e)),
        }
    }
}

impl Change {
    pub(super) fn new(row: &Arc<Container>, from: Size, to: Size) -> Self {
        Self {
            row: Arc::clone(row),
            to,
            grows: to.vcpus > from.vcpus,
            released_at: None,
            obstacle: None,
        }
    }

    fn too_many(&self, uses: u16) -> String {
        let wanted = self.to.vcpus;
        let obstacle = self.obstacle.as_deref();
        let obstacle = obstacle.unwrap_or("it has not let the others go");
        format!("the guest uses {uses} virtual CPUs, {wanted} were requested: {obstacle}")
    }
}

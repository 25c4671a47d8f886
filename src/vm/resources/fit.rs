//! Gives a running machine the virtual CPUs and the memory that its resources make.
//!
//! Invariant: success means that the guest has what was requested, no more and no less. Under
//! software emulation no virtual CPU is plugged in or unplugged, either of which can end QEMU: the
//! guest takes it off line, and on line again.
//! Failure: a guest that does not follow in time is requested to be as before, and the reason
//! names what it did.

use std::time::Duration;

use libvirt::{Hypervisor, guest};
use tokio::time::Instant;

use super::room::STEP;
use super::size::{Refusal, Size, has_room, size};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::model::{Container, LinuxResources};
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// How long a guest has to follow: kubelet waits two minutes for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at a guest.
const LOOK: Duration = Duration::from_millis(250);
/// Time for the agent to answer a command about CPUs.
const AGENT: Duration = Duration::from_secs(5);

/// A change in progress.
struct Change<'a> {
    row: &'a Container,
    to: Size,
    /// Whether the guest gets more virtual CPUs than before.
    grows: bool,
    /// How many there were when the guest was last requested to let some go.
    released_at: Option<u16>,
    /// What keeps the guest's CPUs from changing.
    obstacle: Option<String>,
}

impl<P: Platform> Containers<P> {
    /// Changes a running machine from the size of one set of resources to that of another.
    pub(super) async fn fit(
        &self,
        row: &Container,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        if !has_room(&row.spec.machine) {
            return Ok(());
        }
        let (from, to) = (size(&row.spec, before), size(&row.spec, after));
        let mut change = Change::new(row, from, to);
        let done = self.reach(&mut change).await;
        if done.as_ref().is_err_and(|e| !e.is_transient()) && from != to {
            let mut back = Change::new(row, to, from);
            if let Err(e) = self.request(&mut back).await {
                let error = crate::one_line(&e);
                tracing::warn!(container = %row.id, error, "former size not requested");
            }
        }
        done
    }

    async fn reach(&self, change: &mut Change<'_>) -> Result<()> {
        let row = change.row;
        let until = Instant::now() + TIMEOUT;
        loop {
            let Some((what, reason)) = self.request(change).await? else {
                return Ok(());
            };
            let now = self.row(&row.id)?;
            if now.phase != Phase::Running {
                return Err(Error::Phase {
                    id: row.id.clone(),
                    phase: now.phase,
                    verb: "changed",
                });
            }
            if Instant::now() >= until {
                let id = row.id.clone();
                return Err(Error::Resize { id, what, reason });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Requests what the machine does not have yet; returns what is missing.
    async fn request(&self, change: &mut Change<'_>) -> Result<Option<Refusal>> {
        let domain = change.row.domain();
        let has = self.parts.hypervisor.size(domain).await;
        let has = has.map_err(hypervisor("look at"))?;
        let memory = self.request_memory(change, &has).await?;
        let cpus = self.request_cpus(change, &has).await?;
        Ok(memory
            .map(|reason| ("memory", reason))
            .or(cpus.map(|reason| ("CPU", reason))))
    }

    async fn request_memory(
        &self,
        change: &Change<'_>,
        has: &libvirt::Size,
    ) -> Result<Option<String>> {
        let more = change.to.memory.bytes().saturating_sub(has.base);
        let step = STEP << 20;
        let more = more / step * step;
        let Some(spare) = has.spare else {
            let reason = "the machine was started without room for more";
            return Ok((more > 0).then(|| reason.to_owned()));
        };
        let more = more.min(spare.most);
        if spare.requested != more {
            let set = self.parts.hypervisor.set_memory(change.row.domain(), more);
            set.await.map_err(hypervisor("resize"))?;
        }
        let uses = (has.base + spare.plugged) >> 20;
        let wanted = change.to.memory.get();
        Ok(match spare.plugged.cmp(&more) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Less => Some(format!(
                "the guest uses {uses} MiB and takes no more, {wanted} MiB were requested: it \
                 needs the driver of virtio-mem"
            )),
            std::cmp::Ordering::Greater => Some(format!(
                "the guest uses {uses} MiB and gives no more back, {wanted} MiB were requested: \
                 its programs or its kernel need the memory"
            )),
        })
    }

    async fn request_cpus(
        &self,
        change: &mut Change<'_>,
        has: &libvirt::Size,
    ) -> Result<Option<String>> {
        if change.row.spec.machine.max_vcpus.is_none() {
            return Ok(None);
        }
        let (domain, wanted) = (change.row.domain(), change.to.vcpus);
        let is_emulated = self.choose_accelerator().await? == Accelerator::Tcg;
        if has.vcpus < wanted && is_emulated {
            let has = has.vcpus;
            return Ok(Some(format!(
                "the machine has {has} virtual CPUs, and QEMU plugs none in under software emulation"
            )));
        }
        if has.vcpus < wanted {
            let plugged = self.parts.hypervisor.set_vcpus(domain, wanted).await;
            plugged.map_err(hypervisor("resize"))?;
        }
        if has.vcpus > wanted && !is_emulated {
            return self.release_cpus(change, has.vcpus).await;
        }
        if has.vcpus <= wanted && !change.grows {
            return Ok(None);
        }
        // Those that are plugged in, or that the guest took off line before, are not used yet.
        Ok(match self.use_cpus(change).await? {
            Ok(used) if used < wanted => Some(format!(
                "the guest uses {used} virtual CPUs, {wanted} were requested: it does not bring \
                 the others on line"
            )),
            Ok(used) if used > wanted => Some(change.too_many(used)),
            Err(reason) if has.vcpus > wanted => Some(format!(
                "under software emulation the guest's agent takes virtual CPUs off line: {reason}"
            )),
            // Whether the guest uses them is its own affair without an agent.
            _ => None,
        })
    }

    /// Requests the guest to let virtual CPUs go, again whenever one of them went.
    async fn release_cpus(&self, change: &mut Change<'_>, has: u16) -> Result<Option<String>> {
        if change.released_at != Some(has) {
            change.released_at = Some(has);
            let (domain, wanted) = (change.row.domain(), change.to.vcpus);
            match self.parts.hypervisor.set_vcpus(domain, wanted).await {
                Err(libvirt::Error::Refused { reason, .. }) => change.obstacle = Some(reason),
                other => other.map_err(hypervisor("resize"))?,
            }
        }
        Ok(Some(change.too_many(has)))
    }

    /// Requests the guest, by its agent, to work with so many virtual CPUs; returns with how many
    /// it does, or why there is no answer.
    async fn use_cpus(&self, change: &Change<'_>) -> Result<Result<u16, String>> {
        let (domain, wanted) = (change.row.domain(), change.to.vcpus);
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

impl<'a> Change<'a> {
    const fn new(row: &'a Container, from: Size, to: Size) -> Self {
        Self {
            row,
            to,
            grows: to.vcpus > from.vcpus,
            released_at: None,
            obstacle: None,
        }
    }

    fn too_many(&self, uses: u16) -> String {
        let (wanted, obstacle) = (self.to.vcpus, self.obstacle.as_deref());
        let obstacle = obstacle.unwrap_or("it has not let the others go");
        format!("the guest uses {uses} virtual CPUs, {wanted} were requested: {obstacle}")
    }
}

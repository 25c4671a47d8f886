//! Changes of resources of an existing container.
//!
//! Invariant: what is stored as resources is in force, or will be when the machine is started. What
//! is being put into force is stored beside it before the first effect, and repeated after a
//! restart. One change of a machine at a time, and none keeps the sandbox's lock while its guest
//! follows. A pod's limits are enforced by its cgroup, which kubelet writes itself.
//! Failure: what a machine cannot do is refused with a sentence, and nothing changes.

use std::sync::Arc;

use libvirt::Hypervisor;
use podspec::{ContainerId, PodResources, SandboxId};

use super::size::{self, size};
use crate::locks::Guard;
use crate::metadata::TableError;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::host::cpus;
use crate::vm::lifecycle::least_memory;
use crate::vm::model::{Container, LinuxResources};
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// A change that was stored and is to be made.
struct Recorded {
    row: Arc<Container>,
    after: LinuxResources,
    /// What the machine was to get before: the size that its status shows already, and that its
    /// guest does not have yet.
    left: Option<LinuxResources>,
    /// Whether that is the size of this change, too: the guest follows in its own time.
    is_sized: bool,
}

impl<P: Platform> Containers<P> {
    /// Changes the resources of a container; what is zero or empty stays.
    pub async fn update(self: &Arc<Self>, id: &ContainerId, update: LinuxResources) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.parts
            .tasks
            .finish(async move { this.update_to_end(&id, &update).await })
            .await
    }

    async fn update_to_end(
        self: &Arc<Self>,
        id: &ContainerId,
        update: &LinuxResources,
    ) -> Result<()> {
        // A change of a machine that runs does not hold the sandbox's lock: its guest takes its
        // time, and a stop does not wait for it.
        let _turn = self.change_lock(id).await;
        let Some(Recorded {
            row,
            after,
            left,
            is_sized,
        }) = self.record_desired(id, update).await?
        else {
            return Ok(());
        };
        let before = row.resources();
        let mut done = Ok(());
        if !is_sized {
            done = self.fit(&row, before, &after).await;
        }
        if done.is_ok() {
            done = self.apply(&row, before, &after).await;
        }
        faultpoint::point("resize.applied");
        let left = match &done {
            Ok(()) if is_sized => Some(after.clone()),
            Ok(()) => None,
            Err(_) => left,
        };
        self.conclude(&row, after, done, left).await
    }

    /// Stores what a machine that does not run starts with; returns what one that runs is to get.
    async fn record_desired(
        &self,
        id: &ContainerId,
        update: &LinuxResources,
    ) -> Result<Option<Recorded>> {
        let sandbox = self.row(id)?.sandbox.clone();
        let _lock = self.parts.locks.lock(sandbox.as_str()).await;
        let row = self.row(id)?;
        if row.phase == Phase::Removing {
            return Err(Error::Phase {
                id: id.clone(),
                phase: row.phase,
                verb: "changed",
            });
        }
        if row.is_process() {
            self.update_process(&row, update).await?;
            return Ok(None);
        }
        let before = row.resources().clone();
        let after = merged(&before, update);
        self.check(&row, &before, &after)?;
        if after == before && row.wanted.is_none() {
            return Ok(None);
        }
        if !row.phase.runs() || !row.boots() {
            let change = |row: &mut Container| {
                row.updated = Some(after);
                row.wanted = None;
            };
            self.parts.table.change(id, row.phase, change).await?;
            return Ok(None);
        }
        let left = row.wanted.clone().filter(|wanted| *wanted == before);
        let is_sized = left.is_some() && size(&row.spec, &before) == size(&row.spec, &after);
        let wanted = Some(after.clone());
        let change = |row: &mut Container| row.wanted = wanted;
        let row = self.parts.table.change(id, row.phase, change).await?;
        faultpoint::point("resize.recorded");
        Ok(Some(Recorded {
            row,
            after,
            left,
            is_sized,
        }))
    }

    /// Stores how a change of a running machine went, and what it is still to get then. What may
    /// succeed later stays wanted.
    pub(super) async fn conclude(
        &self,
        row: &Container,
        after: LinuxResources,
        done: Result<()>,
        left: Option<LinuxResources>,
    ) -> Result<()> {
        match done {
            Ok(()) => {
                self.record(row, |row| {
                    row.updated = Some(after.clone());
                    row.wanted.clone_from(&left);
                })
                .await?;
                tracing::info!(container = %row.id, "resources changed");
                Ok(())
            }
            Err(e) if e.is_transient() => Err(e),
            Err(e) => {
                self.record(row, |row| row.wanted.clone_from(&left)).await?;
                Err(e)
            }
        }
    }

    /// Stores a change, whatever phase the container has got into.
    pub(in crate::vm) async fn record(
        &self,
        row: &Container,
        change: impl Fn(&mut Container) + Send + Sync,
    ) -> Result<()> {
        loop {
            let now = self.row(&row.id)?;
            match self.parts.table.change(&row.id, now.phase, &change).await {
                Err(TableError::Raced { .. }) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Held while a running machine is changed.
    pub(super) async fn change_lock(&self, id: &ContainerId) -> Guard {
        self.parts.locks.lock(&format!("change of {id}")).await
    }

    /// Sets what a machine of the right size gets beside it.
    pub(super) async fn apply(
        &self,
        row: &Container,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        let has_more = size(&row.spec, after).vcpus > size(&row.spec, before).vcpus;
        let is_pinned = has_more && !after.cpuset_cpus.is_empty();
        if before.cpuset_cpus != after.cpuset_cpus || is_pinned {
            let cpus = cpus::parse(&after.cpuset_cpus).unwrap_or_default();
            let pinned = self.parts.hypervisor.pin(row.domain(), cpus.clone()).await;
            pinned.map_err(hypervisor("pin"))?;
            self.move_threads(row, cpus).await;
        }
        if before.oom_score_adj != after.oom_score_adj {
            self.prefer_for_kill(row, after.oom_score_adj).await;
        }
        Ok(())
    }

    /// Moves the emulator's own threads, which libvirt leaves where they are.
    async fn move_threads(&self, row: &Container, cpus: Vec<u32>) {
        let confine = move |pid| cpus::confine(pid, &cpus);
        let emulator = self.emulator(row);
        match self
            .meter
            .at_machine(row.id.clone(), emulator, confine)
            .await
        {
            Some(Err(e)) => {
                tracing::warn!(
                    container = %row.id,
                    error = %e,
                    "CPU set not applied to all threads"
                );
            }
            None => tracing::debug!(container = %row.id, "no process found for the CPU set"),
            Some(Ok(())) => {}
        }
    }

    /// Sets how soon the kernel kills a machine when the node runs out of memory, as far as the
    /// kernel lets us: less than before needs a capability.
    pub(in crate::vm) async fn prefer_for_kill(&self, row: &Container, score: i64) {
        let write = move |pid: i32| {
            let path = format!("/proc/{pid}/oom_score_adj");
            std::fs::write(path, score.to_string())
        };
        let emulator = self.emulator(row);
        match self.meter.at_machine(row.id.clone(), emulator, write).await {
            Some(Err(e)) => {
                tracing::debug!(container = %row.id, score, error = %e, "oom_score_adj not set");
            }
            None => {
                tracing::debug!(container = %row.id, score, "no process found for oom_score_adj");
            }
            Some(Ok(())) => {}
        }
    }

    /// Whether the machine of a sandbox can live with other resources of the whole pod. kubelet
    /// asks before it changes the pod's cgroup.
    pub fn check_resize(&self, sandbox: &SandboxId, wanted: PodResources) -> Result<()> {
        for row in self.of_sandbox(sandbox) {
            if row.phase.is_live() && !row.is_process() {
                let before = row.resources();
                let mut after = before.clone();
                if wanted.memory_limit > 0 {
                    after.memory_limit_in_bytes = wanted.memory_limit;
                }
                if wanted.cpu_quota > 0 && wanted.cpu_period > 0 {
                    (after.cpu_quota, after.cpu_period) = (wanted.cpu_quota, wanted.cpu_period);
                }
                self.check(&row, before, &after)?;
            }
        }
        Ok(())
    }

    /// Refuses what a machine cannot do.
    fn check(
        &self,
        row: &Container,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        let refuse = |(what, reason)| {
            Err(Error::Resize {
                id: row.id.clone(),
                what,
                reason,
            })
        };
        if let Err(refusal) = size::check(&row.spec, before, after) {
            return refuse(refusal);
        }
        let pod = self.sandbox_of(row);
        let is_raised =
            pod.is_some_and(|pod| least_memory(&pod.config, self.settings.memory_overhead) > 0);
        if before.memory_limit_in_bytes != after.memory_limit_in_bytes && is_raised {
            let reason =
                "the pod has no RuntimeClass, and kubelet's limit would leave no memory for QEMU";
            return refuse(("memory", reason.to_owned()));
        }
        if before.cpuset_mems != after.cpuset_mems {
            let reason = "its memory stays on the nodes where it is";
            return refuse(("memory nodes", reason.to_owned()));
        }
        if before.hugepage_limits != after.hugepage_limits {
            let reason = "its memory keeps the pages that it has";
            return refuse(("huge pages", reason.to_owned()));
        }
        if cpus::parse(&after.cpuset_cpus).is_none() {
            let reason = format!("{:?} is no list of CPUs", after.cpuset_cpus);
            return refuse(("CPU set", reason));
        }
        Ok(())
    }
}

/// What is in force when everything that the update gives replaces what was.
pub(in crate::vm) fn merged(before: &LinuxResources, update: &LinuxResources) -> LinuxResources {
    let number = |old: i64, new: i64| if new == 0 { old } else { new };
    let text = |old: &String, new: &String| if new.is_empty() { old } else { new }.clone();
    LinuxResources {
        cpu_period: number(before.cpu_period, update.cpu_period),
        cpu_quota: number(before.cpu_quota, update.cpu_quota),
        cpu_shares: number(before.cpu_shares, update.cpu_shares),
        memory_limit_in_bytes: number(before.memory_limit_in_bytes, update.memory_limit_in_bytes),
        oom_score_adj: number(before.oom_score_adj, update.oom_score_adj),
        cpuset_cpus: text(&before.cpuset_cpus, &update.cpuset_cpus),
        cpuset_mems: text(&before.cpuset_mems, &update.cpuset_mems),
        hugepage_limits: if update.hugepage_limits.is_empty() {
            before.hugepage_limits.clone()
        } else {
            update.hugepage_limits.clone()
        },
        unified: if update.unified.is_empty() {
            before.unified.clone()
        } else {
            update.unified.clone()
        },
        memory_swap_limit_in_bytes: number(
            before.memory_swap_limit_in_bytes,
            update.memory_swap_limit_in_bytes,
        ),
    }
}

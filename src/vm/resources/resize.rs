//! Changes of resources of an existing container.
//!
//! Invariant: what is stored is in force, or will be when the machine is started. A pod's limits
//! are enforced by its cgroup, which kubelet writes itself; a machine's memory and number of
//! virtual CPUs are fixed for its life.
//! Failure: what a machine cannot do is refused with a sentence, and nothing changes.

use std::sync::Arc;

use libvirt::Hypervisor;
use podspec::{ContainerId, PodResources, SandboxId};

use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::host::cpus;
use crate::vm::model::{Container, LinuxResources};
use crate::vm::service::Containers;
use crate::vm::state::Phase;

impl<P: Platform> Containers<P> {
    /// Changes the resources of a container; what is zero or empty stays.
    pub async fn update(self: &Arc<Self>, id: &ContainerId, update: LinuxResources) -> Result<()> {
        let (this, id) = (Arc::clone(self), id.clone());
        self.parts
            .tasks
            .finish(async move { this.update_to_end(&id, &update).await })
            .await
    }

    async fn update_to_end(&self, id: &ContainerId, update: &LinuxResources) -> Result<()> {
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
        let before = row.resources().clone();
        let after = merged(&before, update);
        check(&row, &before, &after)?;
        if after == before {
            return Ok(());
        }
        let updated = Some(after.clone());
        let row = self
            .parts
            .table
            .change(id, row.phase, |row| row.updated = updated)
            .await?;
        if !row.phase.runs() || !row.boots() {
            return Ok(());
        }
        if let Err(e) = self.apply(&row, &before, &after).await {
            let change = |row: &mut Container| row.updated = Some(before);
            self.parts.table.change(id, row.phase, change).await?;
            return Err(e);
        }
        tracing::info!(container = %id, "resources changed");
        Ok(())
    }

    async fn apply(
        &self,
        row: &Container,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        if before.cpuset_cpus != after.cpuset_cpus {
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
        let (processes, user) = (Arc::clone(&self.meter.processes), self.settings.uid);
        let domain = row.domain();
        let work = move || {
            let pid = processes.locate(domain, user)?;
            Some(cpus::confine(pid, &cpus))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Some(Err(e))) => {
                tracing::warn!(
                    container = %row.id,
                    error = %e,
                    "CPU set not applied to all threads"
                );
            }
            Ok(None) => tracing::debug!(container = %row.id, "no process found for the CPU set"),
            _ => {}
        }
    }

    /// Sets how soon the kernel kills a machine when the node runs out of memory, as far as the
    /// kernel lets us: less than before needs a capability.
    pub(in crate::vm) async fn prefer_for_kill(&self, row: &Container, score: i64) {
        let (processes, user) = (Arc::clone(&self.meter.processes), self.settings.uid);
        let domain = row.domain();
        let write = move || {
            let pid = processes.locate(domain, user)?;
            Some(std::fs::write(
                format!("/proc/{pid}/oom_score_adj"),
                score.to_string(),
            ))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Some(Err(e))) => {
                tracing::debug!(container = %row.id, score, error = %e, "oom_score_adj not set");
            }
            Ok(None) => {
                tracing::debug!(container = %row.id, score, "no process found for oom_score_adj")
            }
            _ => {}
        }
    }

    /// Whether the machine of a sandbox can live with other resources of the whole pod. kubelet
    /// asks before it changes the pod's cgroup.
    pub fn check_resize(&self, sandbox: &SandboxId, wanted: PodResources) -> Result<()> {
        for row in self.of_sandbox(sandbox) {
            if row.phase.is_live() {
                let before = row.resources();
                let mut after = before.clone();
                if wanted.memory_limit > 0 {
                    after.memory_limit_in_bytes = wanted.memory_limit;
                }
                if wanted.cpu_quota > 0 && wanted.cpu_period > 0 {
                    (after.cpu_quota, after.cpu_period) = (wanted.cpu_quota, wanted.cpu_period);
                }
                check(&row, before, &after)?;
            }
        }
        Ok(())
    }
}

/// What is in force when everything that the update gives replaces what was.
fn merged(before: &LinuxResources, update: &LinuxResources) -> LinuxResources {
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
        hugepage_limits: match update.hugepage_limits.is_empty() {
            true => before.hugepage_limits.clone(),
            false => update.hugepage_limits.clone(),
        },
        unified: match update.unified.is_empty() {
            true => before.unified.clone(),
            false => update.unified.clone(),
        },
        memory_swap_limit_in_bytes: number(
            before.memory_swap_limit_in_bytes,
            update.memory_swap_limit_in_bytes,
        ),
    }
}

/// Refuses what a machine cannot do.
fn check(row: &Container, before: &LinuxResources, after: &LinuxResources) -> Result<()> {
    let refuse = |what, reason: String| {
        Err(Error::Resize {
            id: row.id.clone(),
            what,
            reason,
        })
    };
    let machine = &row.spec.machine;
    if before.memory_limit_in_bytes != after.memory_limit_in_bytes {
        let memory = machine.memory.get();
        let reason = format!("the machine has {memory} MiB for its life: make a new container");
        return refuse("memory", reason);
    }
    let most = cpus_of(before).max(u64::from(machine.vcpus.get()));
    if cpus_of(after) > most {
        let vcpus = machine.vcpus.get();
        let reason =
            format!("the machine has {vcpus} virtual CPUs for its life: make a new container");
        return refuse("CPU", reason);
    }
    if before.cpuset_mems != after.cpuset_mems {
        let reason = "its memory stays on the nodes where it is".to_owned();
        return refuse("memory nodes", reason);
    }
    if before.hugepage_limits != after.hugepage_limits {
        let reason = "its memory keeps the pages that it has".to_owned();
        return refuse("huge pages", reason);
    }
    if cpus::parse(&after.cpuset_cpus).is_none() {
        return refuse(
            "CPU set",
            format!("{:?} is no list of CPUs", after.cpuset_cpus),
        );
    }
    Ok(())
}

/// Whole CPUs that a quota is worth; none without a quota, whose limit is the machine's own.
fn cpus_of(resources: &LinuxResources) -> u64 {
    match (resources.cpu_quota, resources.cpu_period) {
        (quota, period) if quota > 0 && period > 0 => {
            quota.unsigned_abs().div_ceil(period.unsigned_abs())
        }
        _ => 0,
    }
}

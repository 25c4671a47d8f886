//! How many virtual CPUs and how much memory a machine is to have by its resources.
//!
//! Invariant: resources whose CPU limit has as many whole CPUs as at the creation, and whose memory
//! limit is that of the creation, make the machine of the creation; a machine without room has
//! that size always.
//! Failure: a sentence for what the machine cannot have.

use podspec::{Machine, Mib};

use crate::vm::model::{Container, LinuxResources, Spec};

const MIB: i64 = 1 << 20;

/// Virtual CPUs and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Virtual CPUs.
    pub vcpus: u16,
    /// Memory.
    pub memory: Mib,
}

/// What a machine cannot have, and why.
pub(super) type Refusal = (&'static str, String);

impl Container {
    /// The size that the resources in force make.
    pub fn size(&self) -> Size {
        size(&self.spec, self.resources())
    }
}

/// Whether a machine can get another size while it runs.
pub(in crate::vm) const fn has_room(machine: &Machine) -> bool {
    machine.max_vcpus.is_some() || machine.max_memory.is_some()
}

/// The size that resources make, which [`check`] has let pass.
pub(super) fn size(spec: &Spec, resources: &LinuxResources) -> Size {
    let machine = &spec.machine;
    let vcpus = vcpus(spec, resources).unwrap_or_else(|| machine.vcpus.get().into());
    let most = machine.max_vcpus.unwrap_or(machine.vcpus);
    let memory = Mib::new(memory(spec, resources).try_into().unwrap_or(0));
    Size {
        vcpus: u16::try_from(vcpus.min(most.get().into())).unwrap_or(u16::MAX),
        memory: memory.clamp(machine.memory, machine.max_memory.unwrap_or(machine.memory)),
    }
}

/// Refuses what the machine has no room for.
pub(super) fn check(
    spec: &Spec,
    before: &LinuxResources,
    after: &LinuxResources,
) -> Result<(), Refusal> {
    check_memory(spec, before, after).map_err(|reason| ("memory", reason))?;
    check_cpus(spec, before, after).map_err(|reason| ("CPU", reason))
}

fn check_memory(
    spec: &Spec,
    before: &LinuxResources,
    after: &LinuxResources,
) -> Result<(), String> {
    if before.memory_limit_in_bytes == after.memory_limit_in_bytes {
        return Ok(());
    }
    let least = spec.machine.memory.get();
    let Some(most) = spec.machine.max_memory else {
        return Err(format!(
            "the machine has {least} MiB for its life: make a new container, with the annotation \
             {} for a machine that can grow",
            podspec::names::MAX_MEMORY
        ));
    };
    let wanted = memory(spec, after);
    if wanted < i64::try_from(least).unwrap_or(i64::MAX) {
        return Err(format!(
            "the machine has {least} MiB since its start, and keeps them: make a new container for \
             a smaller one"
        ));
    }
    if wanted > i64::try_from(most.get()).unwrap_or(i64::MAX) {
        return Err(format!(
            "the machine can have at most {} MiB by its annotation {}: make a new container for a \
             larger one",
            most.get(),
            podspec::names::MAX_MEMORY
        ));
    }
    Ok(())
}

fn check_cpus(spec: &Spec, before: &LinuxResources, after: &LinuxResources) -> Result<(), String> {
    let has = u64::from(spec.machine.vcpus.get());
    let wanted = vcpus(spec, after);
    let Some(most) = spec.machine.max_vcpus else {
        if cpus_of(after) <= cpus_of(before).max(has) {
            return Ok(());
        }
        return Err(format!(
            "the machine has {has} virtual CPUs for its life: make a new container, with the \
             annotation {} for a machine that can grow",
            podspec::names::MAX_VCPUS
        ));
    };
    if wanted.is_none_or(|wanted| wanted <= most.get().into()) {
        return Ok(());
    }
    Err(format!(
        "the machine can have at most {} virtual CPUs by its annotation {}: make a new container \
         for a larger one",
        most.get(),
        podspec::names::MAX_VCPUS
    ))
}

/// The number of virtual CPUs when the limit is no longer that of the creation.
fn vcpus(spec: &Spec, resources: &LinuxResources) -> Option<u64> {
    let wanted = cpus_of(resources);
    (wanted > 0 && wanted != cpus_of(&spec.config.resources)).then_some(wanted)
}

/// MiB of the guest: they change by as much as the limit does, since the two can differ. Without a
/// limit at the creation they are the limit.
fn memory(spec: &Spec, resources: &LinuxResources) -> i64 {
    let first = spec.config.resources.memory_limit_in_bytes.max(0);
    let now = resources.memory_limit_in_bytes.max(0);
    let has = i64::try_from(spec.machine.memory.get()).unwrap_or(i64::MAX);
    match (first, now) {
        _ if now == first => has,
        (0, now) => now / MIB,
        (first, now) => has.saturating_add((now - first).div_euclid(MIB)),
    }
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

//! Whether the node can start machines, and what it lacks: from facts to the terms of a condition.
//!
//! Invariant: pure; what keeps machines from starting goes before what makes them worse. Of the
//! reasons the first is the condition's, the message has all.
//! Failure: none.

use service::apparmor;

use super::Report;
use crate::vm::Equipment;

/// Words of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether machines can start.
    pub readiness: Readiness,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// Whether machines can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Nothing is missing.
    Ready,
    /// Machines can start; something is missing.
    Limited,
    /// No machine can start.
    NotReady,
    /// It is being found out.
    Unknown,
}

/// Something that a part of the node lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Report {
    /// Whether machines can be started.
    pub fn runtime(&self) -> Result<(), Lack> {
        match (&self.hypervisor, &self.obstacle) {
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(message)) => Err(Lack::new("NoMachineCanStart", message)),
            (Err(message), _) => Err(Lack::new("HypervisorUnavailable", message)),
        }
    }

    /// Whether pods can be given a network.
    pub fn pod_network(&self) -> Result<(), Lack> {
        match &self.network {
            Ok(status) if status.ready => Ok(()),
            Ok(status) => Err(Lack::new("NetworkPluginNotReady", &status.message)),
            Err(message) => Err(Lack::new("TapmanagerUnavailable", message)),
        }
    }

    /// Whether machines run by the processor, unless the configuration requests otherwise.
    pub fn hardware(&self) -> Result<(), Lack> {
        match &self.emulated {
            Some(message) => Err(Lack::new("SoftwareEmulation", message)),
            None => Ok(()),
        }
    }

    /// All of it in the words of one condition.
    pub fn verdict(&self) -> Verdict {
        let obstacles = [self.runtime(), self.pod_network()];
        let obstacles: Vec<_> = obstacles.into_iter().filter_map(Result::err).collect();
        let lacks = self.emulation().into_iter().chain(self.equipment_lacks());
        let has_obstacle = !obstacles.is_empty();
        let all: Vec<_> = obstacles.into_iter().chain(lacks).collect();
        if has_obstacle {
            return joined(Readiness::NotReady, &all);
        }
        if self.accelerator.is_none() || self.equipment.is_none() {
            return Verdict {
                readiness: Readiness::Unknown,
                reason: "Starting",
                message: "the daemon is still looking at what the node has".to_owned(),
            };
        }
        if !all.is_empty() {
            return joined(Readiness::Limited, &all);
        }
        Verdict {
            readiness: Readiness::Ready,
            reason: "MachinesCanStart",
            message: "machines can start, and the node has all that they use".to_owned(),
        }
    }

    fn emulation(&self) -> Option<Lack> {
        let Lack { reason, message } = self.hardware().err()?;
        let slow = "machines run by software emulation, many times slower than with KVM";
        Some(Lack::new(reason, &format!("{slow}: {message}")))
    }

    /// What the node itself lacks; nothing while it is not known.
    fn equipment_lacks(&self) -> Vec<Lack> {
        let Some(Equipment {
            kernel,
            helpers_together,
            vmlet_guest_missing,
            // Machines run as well where copies take space, and most images boot by a BIOS.
            copies_share_blocks: _,
            uefi_missing: _,
        }) = &self.equipment
        else {
            return Vec::new();
        };
        let mut lacks = Vec::new();
        let mut add = |reason, message: &str| lacks.push(Lack::new(reason, message));
        if kernel.cgroup.is_none() {
            add(
                "CgroupsMissing",
                "no cgroup file system is mounted: limits of pods do not hold",
            );
        }
        if kernel.landlock == 0 {
            add(
                "LandlockMissing",
                "the kernel has no Landlock: QEMU is not confined to the files of its machine",
            );
        }
        if kernel.idmapped_mounts == Some(false) {
            add(
                "IdmappedMountsMissing",
                "the kernel has no idmapped mounts: shared directories of root are accessed as shares.uid",
            );
        }
        match kernel.apparmor {
            apparmor::State::Absent => add(
                "AppArmorProfileMissing",
                "AppArmor is on and does not confine QEMU: the profile libvirt-vmlet is not loaded",
            ),
            apparmor::State::Complaining => add(
                "AppArmorProfileComplains",
                "AppArmor does not confine QEMU: the profile libvirt-vmlet only logs",
            ),
            apparmor::State::Unknown | apparmor::State::Disabled | apparmor::State::Enforced => {}
        }
        if let Some(why) = helpers_together {
            let effect = "programs that read images share the namespaces of the daemon";
            add("HelperNamespacesMissing", &format!("{effect}: {why}"));
        }
        if let Some(why) = vmlet_guest_missing {
            let effect = "guests do not get vmlet-guest, and commands in them need another agent";
            add("VmletGuestMissing", &format!("{effect}: {why}"));
        }
        lacks
    }
}

impl Lack {
    fn new(reason: &'static str, message: &str) -> Self {
        Self {
            reason,
            message: message.to_owned(),
        }
    }
}

/// The first reason, and all messages.
fn joined(readiness: Readiness, lacks: &[Lack]) -> Verdict {
    let messages: Vec<_> = lacks.iter().map(|lack| lack.message.as_str()).collect();
    Verdict {
        readiness,
        reason: lacks.first().map_or("", |lack| lack.reason),
        message: messages.join("; "),
    }
}

#[cfg(test)]
mod tests;

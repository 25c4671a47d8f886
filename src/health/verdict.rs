//! Whether the node can start machines, and what it lacks: from facts to the terms of a condition.
//!
//! Invariant: pure; what keeps machines from starting goes before what makes them worse. Of the
//! reasons the first is the condition's, the message has all.
//! Failure: none.

use service::apparmor;

use super::Report;

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

/// Something that a part of the node lacks: a reason in CamelCase, and a sentence.
type Lack<'a> = (&'static str, &'a str);

impl Report {
    /// Whether machines can be started.
    pub fn runtime(&self) -> Result<(), Lack<'_>> {
        match (&self.hypervisor, &self.obstacle) {
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(message)) => Err(("NoMachineCanStart", message.as_str())),
            (Err(message), _) => Err(("HypervisorUnavailable", message.as_str())),
        }
    }

    /// Whether pods can be given a network.
    pub fn pod_network(&self) -> Result<(), Lack<'_>> {
        match &self.network {
            Ok(status) if status.ready => Ok(()),
            Ok(status) => Err(("NetworkPluginNotReady", status.message.as_str())),
            Err(message) => Err(("TapmanagerUnavailable", message.as_str())),
        }
    }

    /// Whether machines run by the processor, unless the configuration requests otherwise.
    pub fn hardware(&self) -> Result<(), Lack<'_>> {
        match &self.emulated {
            Some(message) => Err(("SoftwareEmulation", message.as_str())),
            None => Ok(()),
        }
    }

    /// All of it in the words of one condition.
    pub fn verdict(&self) -> Verdict {
        let obstacles = [self.runtime(), self.pod_network()];
        let obstacles: Vec<_> = obstacles.into_iter().filter_map(Result::err).collect();
        if let Some(verdict) = joined(Readiness::NotReady, &obstacles) {
            return verdict;
        }
        if self.accelerator.is_none() {
            return Verdict {
                readiness: Readiness::Unknown,
                reason: "Starting",
                message: "the daemon has not chosen the accelerator yet".to_owned(),
            };
        }
        let emulation = self.hardware().err().map(|(reason, why)| {
            let slow = "machines run by software emulation, many times slower than with KVM";
            (reason, format!("{slow}: {why}"))
        });
        let emulation = emulation
            .as_ref()
            .map(|(reason, why)| (*reason, why.as_str()));
        let agent = self.guest_agent.as_ref().map(|why| {
            let none = "kubectl exec works only in guests that have an agent of their own";
            ("GuestAgentMissing", format!("{none}: {why}"))
        });
        let agent = agent.as_ref().map(|(reason, why)| (*reason, why.as_str()));
        let lacks = emulation.into_iter().chain(self.kernel_lacks());
        let lacks: Vec<_> = lacks.chain(agent).collect();
        joined(Readiness::Limited, &lacks).unwrap_or_else(|| Verdict {
            readiness: Readiness::Ready,
            reason: "MachinesCanStart",
            message: "machines can start, and the node has all that they use".to_owned(),
        })
    }

    /// What the kernel lacks; nothing while it is not known.
    fn kernel_lacks(&self) -> Vec<Lack<'static>> {
        let Some(kernel) = self.kernel else {
            return Vec::new();
        };
        let apparmor = match kernel.apparmor {
            apparmor::State::Absent => Some((
                "AppArmorProfileMissing",
                "AppArmor is on and does not confine QEMU: the profile libvirt-vmlet is not loaded",
            )),
            apparmor::State::Complaining => Some((
                "AppArmorProfileComplains",
                "AppArmor does not confine QEMU: the profile libvirt-vmlet only logs",
            )),
            apparmor::State::Unknown | apparmor::State::Disabled | apparmor::State::Enforced => {
                None
            }
        };
        let all = [
            kernel.cgroup.is_none().then_some((
                "CgroupsMissing",
                "no cgroup file system is mounted: limits of pods do not hold",
            )),
            (kernel.landlock == 0).then_some((
                "LandlockMissing",
                "the kernel has no Landlock: QEMU is not confined to the files of its machine",
            )),
            (kernel.idmapped_mounts == Some(false)).then_some((
                "IdmappedMountsMissing",
                "the kernel has no idmapped mounts: guests see files of root in shared directories as files of user 65534",
            )),
            apparmor,
        ];
        all.into_iter().flatten().collect()
    }
}

fn joined(readiness: Readiness, lacks: &[Lack<'_>]) -> Option<Verdict> {
    let reason = lacks.first()?.0;
    let words: Vec<_> = lacks.iter().map(|(_, message)| *message).collect();
    Some(Verdict {
        readiness,
        reason,
        message: words.join("; "),
    })
}

#[cfg(test)]
mod tests;

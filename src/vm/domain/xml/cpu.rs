//! The CPU that a guest sees, and its clocks.
//!
//! Invariant: a guest gets the best CPU that its accelerator can run; pods do not migrate, so that
//! nothing is gained by less.
//! Failure: none.

use serde::Serialize;

use super::room::Numa;
use crate::vm::domain::{CpuMode, DomainSpec};
use crate::vm::host::accelerator::Accelerator;

/// The node's CPU, as libvirt knows it by name and features.
const HOST_MODEL: &str = "host-model";

#[derive(Debug, Serialize)]
pub(super) struct Cpu {
    #[serde(rename = "@mode")]
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa: Option<Numa>,
}

#[derive(Debug, Serialize)]
pub(super) struct Clock {
    #[serde(rename = "@offset")]
    offset: &'static str,
    #[serde(rename = "timer")]
    timers: Vec<Timer>,
}

#[derive(Debug, Serialize)]
struct Timer {
    #[serde(rename = "@name")]
    name: &'static str,
    #[serde(rename = "@tickpolicy", skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
    #[serde(rename = "@present", skip_serializing_if = "Option::is_none")]
    present: Option<&'static str>,
}

impl Cpu {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        let mode = match (spec.accelerator, spec.cpu) {
            (Accelerator::Kvm, CpuMode::Default) => "host-passthrough",
            (Accelerator::Kvm, CpuMode::HostModel) => HOST_MODEL,
            // Distributions that want x86-64-v2 do not boot on libvirt's own choice for emulation.
            (Accelerator::Tcg, _) => "maximum",
        };
        Self {
            mode,
            numa: Numa::new(&spec.room),
        }
    }

    /// Whether libvirt compares the guest's CPU with what it requested. It does not where that is
    /// simply everything.
    pub(super) fn is_verified(&self) -> bool {
        self.mode == HOST_MODEL
    }
}

impl Clock {
    /// UTC. Under KVM the guest has the paravirtual clock, and the others are kept from drifting;
    /// without it the HPET is the best clock there is, so it stays.
    pub(super) fn new(accelerator: Accelerator) -> Self {
        let timer = |name, policy| Timer {
            name,
            policy: Some(policy),
            present: None,
        };
        let no_hpet = Timer {
            name: "hpet",
            policy: None,
            present: Some("no"),
        };
        Self {
            offset: "utc",
            timers: match accelerator {
                Accelerator::Kvm => vec![timer("rtc", "catchup"), timer("pit", "delay"), no_hpet],
                Accelerator::Tcg => vec![timer("rtc", "catchup")],
            },
        }
    }
}

//! Options for the emulator that libvirt does not know.
//!
//! Invariant: variables for `vmwrapper`, the arguments that libvirt cannot express, or not so, and the one
//! capability that libvirt is better off without.
//! Failure: none.

use serde::Serialize;

use crate::vm::domain::{DomainSpec, VM_GENERATION_ID, Variable};

/// Namespace of the elements, which the root element declares.
pub(super) const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

#[derive(Debug, Serialize)]
pub(super) struct CommandLine {
    #[serde(rename = "qemu:arg")]
    arguments: Vec<Argument>,
    #[serde(rename = "qemu:env")]
    environment: Vec<Env>,
}

#[derive(Debug, Serialize)]
struct Argument {
    #[serde(rename = "@value")]
    value: String,
}

#[derive(Debug, Serialize)]
struct Env {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@value")]
    value: String,
}

/// What libvirt is to believe that the emulator lacks.
#[derive(Debug, Serialize)]
pub(super) struct Capabilities {
    #[serde(rename = "qemu:del")]
    lacking: [Capability; 1],
}

#[derive(Debug, Serialize)]
struct Capability {
    #[serde(rename = "@capability")]
    name: &'static str,
}

impl Capabilities {
    /// With this capability libvirt reads 400 properties of the CPU one by one before the guest may
    /// run, which takes longer than the rest of a start; without it, it reads a few words of bits
    /// instead.
    pub(super) const fn without_cpu_questions() -> Self {
        let name = "cpu-unavailable-features";
        Self {
            lacking: [Capability { name }],
        }
    }
}

impl CommandLine {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        // libvirt insists that a system UUID be the domain's own.
        let system = spec.system_uuid.map(|uuid| {
            let value = format!("type=1,uuid={uuid}");
            ["-smbios".to_owned(), value]
        });
        // libvirt gives a guest that returns from saved memory another ID than the one described to it, and refuses
        // the next return then.
        let generation = spec.generation.map(|id| {
            let value = format!("{VM_GENERATION_ID},id=generation,guid={id}");
            ["-device".to_owned(), value]
        });
        let arguments = system.into_iter().chain(generation).flatten();
        Self {
            arguments: arguments.map(|value| Argument { value }).collect(),
            environment: spec.environment.iter().map(Env::new).collect(),
        }
    }
}

impl Env {
    fn new(variable: &Variable) -> Self {
        Self {
            name: variable.name.clone(),
            value: variable.value.clone(),
        }
    }
}

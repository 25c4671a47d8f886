//! What goes to the emulator past libvirt.
//!
//! Invariant: variables for `vmwrapper`, and the one argument that libvirt cannot express.
//! Failure: none.

use serde::Serialize;

use crate::vm::domain::{DomainSpec, Variable};

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

impl CommandLine {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        // libvirt insists that a system UUID be the domain's own.
        let arguments = spec.system_uuid.iter().flat_map(|uuid| {
            let value = format!("type=1,uuid={uuid}");
            ["-smbios".to_owned(), value].map(|value| Argument { value })
        });
        Self {
            arguments: arguments.collect(),
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

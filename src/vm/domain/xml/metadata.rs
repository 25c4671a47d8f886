//! The element that marks a domain as ours.
//!
//! Invariant: every domain of ours has it.
//! Failure: none.

use libvirt::MachineElement;
use serde::Serialize;

use crate::vm::domain::DomainSpec;

#[derive(Debug, Serialize)]
pub(super) struct Metadata {
    #[serde(rename = "vmlet:vm")]
    vm: MachineElement,
}

impl Metadata {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        let vm = spec.vm.map(|vm| vm.to_string());
        Self {
            vm: MachineElement::new(
                spec.container.clone(),
                spec.sandbox.clone(),
                spec.installation.clone(),
                vm,
            ),
        }
    }
}

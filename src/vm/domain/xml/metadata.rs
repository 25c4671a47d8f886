//! The element that marks a domain as ours.
//!
//! Invariant: every domain of ours carries it; nothing without it is ever touched.
//! Failure: none.

use serde::Serialize;

use crate::vm::domain::DomainSpec;

#[derive(Debug, Serialize)]
pub(super) struct Metadata {
    #[serde(rename = "vmlet:vm")]
    vm: Vm,
}

#[derive(Debug, Serialize)]
struct Vm {
    #[serde(rename = "@xmlns:vmlet")]
    namespace: &'static str,
    #[serde(rename = "@container")]
    container: String,
    #[serde(rename = "@sandbox")]
    sandbox: String,
    #[serde(rename = "@installation")]
    installation: String,
    #[serde(rename = "@vm", skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
}

impl Metadata {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        Self {
            vm: Vm {
                namespace: libvirt::METADATA_NAMESPACE,
                container: spec.container.clone(),
                sandbox: spec.sandbox.clone(),
                installation: spec.installation.clone(),
                vm: spec.vm.map(|vm| vm.to_string()),
            },
        }
    }
}

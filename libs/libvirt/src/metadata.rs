//! The metadata element that marks a domain as ours: the type that writes it and reads it.
//!
//! Invariant: every domain of ours has the element; a domain without it is never touched.
//! Failure: none; an attribute that is missing is empty, so that elements of other versions can be
//! read.

use serde::{Deserialize, Serialize};

/// Namespace of the element.
pub const METADATA_NAMESPACE: &str = "https://vmlet.dev/domain/1";

/// The element. libvirt returns it with or without a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineElement {
    #[serde(rename = "@xmlns:vmlet", skip_deserializing)]
    namespace: &'static str,
    /// Id of the container.
    #[serde(rename = "@container")]
    pub container: String,
    /// Id of the sandbox.
    #[serde(rename = "@sandbox")]
    pub sandbox: String,
    /// Id of the installation of the daemon.
    #[serde(rename = "@installation", skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// UID of the VirtualMachine object, if it is one's machine.
    #[serde(rename = "@vm", skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

impl MachineElement {
    /// The element of a container's domain.
    #[must_use]
    pub const fn new(
        container: String,
        sandbox: String,
        installation: String,
        vm: Option<String>,
    ) -> Self {
        Self {
            namespace: METADATA_NAMESPACE,
            container,
            sandbox,
            installation: Some(installation),
            vm,
        }
    }
}

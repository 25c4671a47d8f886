//! The machine's network wishes.
//!
//! Invariant: an absent network means enabled with one default interface.
//! Failure: an interface that cannot be made shows in `VirtualMachineNetworkReady`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How the machine is connected.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// No network at all.
    #[serde(default)]
    pub disabled: bool,
    /// Host name of the guest; empty: the machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// Network interfaces; empty: one on the pod network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceSpec>,
}

/// One network interface.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSpec {
    /// Name, unique in the machine; the first one is on the pod network.
    pub name: String,
    /// NetworkAttachmentDefinition, `namespace/name` or `name`; empty: the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ref: Option<String>,
    /// Fixed addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Ask for an IPv4 address by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Ask for an IPv6 address by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// Fixed MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_addr: Option<String>,
}

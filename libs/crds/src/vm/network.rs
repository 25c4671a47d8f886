//! The network part of a machine's specification.
//!
//! Invariant: an absent network means enabled with one default interface.
//! Failure: an interface that cannot be made shows in `VirtualMachineNetworkReady`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Network configuration of the machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule(
    "!self.disabled || !has(self.interfaces) || self.interfaces.size() == 0",
    "a disabled network has no interfaces",
))]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Disables the network.
    #[serde(default)]
    pub disabled: bool,
    /// Host name of the guest. Defaults to the name of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub host_name: Option<String>,
    /// Network interfaces. Defaults to one interface on the pod network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub interfaces: Vec<InterfaceSpec>,
}

/// One network interface.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSpec {
    /// Name of the interface, unique in the machine. The first interface is on the pod network.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub name: String,
    /// NetworkAttachmentDefinition, as `namespace/name` or `name`. Defaults to the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub network_ref: Option<String>,
    /// Static addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::rule("self.all(a, isCIDR(a))", "addresses have a prefix length, \
        such as 10.0.0.5/24 or fd00::5/64"))]
    pub addresses: Vec<String>,
    /// Enables DHCP for IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Enables DHCP for IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// Static MAC address. The node sets it on the pod network; on other networks it depends on the
    /// support of their CNI plugins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 17))]
    #[x_kube(validation = rules::mac(), validation = rules::rule("self != '00:00:00:00:00:00'", "a MAC address is that of one \
        station, not all zeros"))]
    pub mac_addr: Option<String>,
}

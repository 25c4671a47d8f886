//! The machine's network wishes.
//!
//! Invariant: an absent network means enabled with one default interface.
//! Failure: an interface that cannot be made shows in `VirtualMachineNetworkReady`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How the machine is connected.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule(
    "!self.disabled || !has(self.interfaces) || self.interfaces.size() == 0",
    "a disabled network has no interfaces",
))]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// No network at all.
    #[serde(default)]
    pub disabled: bool,
    /// Host name of the guest; empty: the machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub host_name: Option<String>,
    /// Network interfaces; empty: one on the pod network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub interfaces: Vec<InterfaceSpec>,
}

/// One network interface.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSpec {
    /// Name, unique in the machine; the first one is on the pod network.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub name: String,
    /// NetworkAttachmentDefinition, `namespace/name` or `name`; empty: the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub network_ref: Option<String>,
    /// Fixed addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::rule("self.all(a, isCIDR(a))", "addresses have a prefix length, such as 10.0.0.5/24 or fd00::5/64"))]
    pub addresses: Vec<String>,
    /// Ask for an IPv4 address by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Ask for an IPv6 address by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// Fixed MAC address: on the pod network by the node, on others as far as their plugins take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 17), regex(pattern = rules::MAC))]
    #[x_kube(validation = rules::rule("self != '00:00:00:00:00:00'", "a MAC address is that of one station, not all zeros"))]
    pub mac_addr: Option<String>,
}

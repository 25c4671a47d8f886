//! First-boot data for the guest.
//!
//! Invariant: Secrets are named, never copied into the object.
//! Failure: a missing source shows in `VirtualMachineBootstrapReady`.

use kube::KubeSchema;
use kube::core::Rule;
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

/// How user data begin that cloud-init knows: a header or script, or a MIME message.
const USER_DATA_BEGINNINGS: [&str; 3] = ["#", "Content-Type:", "MIME-Version:"];

fn inline_user_data() -> Rule {
    let begins = USER_DATA_BEGINNINGS.map(|text| format!("self.startsWith('{text}')"));
    rule(
        begins.join(" || "),
        "the first line must be #cloud-config, #! and an interpreter, another header of cloud-init, \
         or that of a MIME message",
    )
}

/// The types of keys that sshd takes: `ssh-ed25519`, `ecdsa-sha2-nistp256`, `sk-ssh-ed25519@…`.
fn ssh_keys() -> Rule {
    rule(
        "self.all(k, k.contains('ssh-') || k.contains('ecdsa-sha2-'))",
        "must be public keys as in authorized_keys, such as `ssh-ed25519 AAAA… me@example`",
    )
}

/// Configuration of the guest at its first boot.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule("!(has(self.cloudInit) && has(self.sysprep))", "set cloudInit or sysprep, not \
    both"))]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// cloud-init configuration, provided on a seed disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// Answer files of Windows Setup, provided on a CD-ROM. Mutually exclusive with `cloudInit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<Sysprep>,
}

/// Answer files of Windows Setup.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sysprep {
    /// Secret that contains the key `unattend.xml`, `autounattend.xml`, or both.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub secret_name: String,
}

/// cloud-init configuration.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(
    validation = rule("!(has(self.userData) && has(self.inlineUserData))", "set userData or \
        inlineUserData, not both"),
    validation = rule("!(has(self.networkData) && has(self.inlineNetworkData))", "set networkData or \
        inlineNetworkData, not both")
)]
#[serde(rename_all = "camelCase")]
pub struct CloudInit {
    /// Instance ID. Defaults to the BIOS UUID.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "instanceID"
    )]
    #[schemars(length(min = 1, max = 128), regex(pattern = rules::WORD))]
    pub instance_id: Option<String>,
    /// Secret that contains the user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<SecretKeyRef>,
    /// User data, for data that are not secret. Every user who may read the machine can read them.
    /// Mutually exclusive with `userData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    #[x_kube(validation = inline_user_data())]
    pub inline_user_data: Option<String>,
    /// Secret that contains the network configuration for cloud-init, in the place of the one that
    /// is made of the pod's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<SecretKeyRef>,
    /// Network configuration, as a YAML map. Mutually exclusive with `networkData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub inline_network_data: Option<String>,
    /// SSH public keys for the default user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 8192)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = ssh_keys())]
    pub ssh_keys: Vec<String>,
}

/// A key of a Secret in the machine's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
    /// Key in the Secret. Defaults to `user-data`, and to `network-config` for network data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: Option<String>,
}

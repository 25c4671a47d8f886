//! `VirtualMachineImage` and `ClusterVirtualMachineImage`: a disk that machines start from.
//!
//! Invariant: both kinds have the same fields; one source is named, and it does not change once a
//! disk was made from it.
//! Failure: an image that cannot be fetched shows in its `Ready`, and in `VirtualMachineImageReady`
//! of machines.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::image_update::ImageUpdate;
use crate::rules::{self, edit, edit_of, rule};

mod status;

pub use status::{ImageDisk, PrePullStatus, VirtualMachineImageStatus};

/// A disk that was made from an image keeps its name for pods, and so does the image.
const USED_SOURCE: &str = "!has(oldSelf.status) || !has(oldSelf.status.usedSince) || \
    self.spec.source == oldSelf.spec.source";
const USED_SOURCE_MESSAGE: &str =
    "source is immutable since a disk was made from this image: create another image";

/// Otherwise who may write the status could change the source of an image with disks.
const USED_SINCE: &str = "!has(oldSelf.status) || !has(oldSelf.status.usedSince) || \
    has(self.status) && has(self.status.usedSince) && self.status.usedSince == oldSelf.status.usedSince";
const USED_SINCE_MESSAGE: &str = "status.usedSince is immutable once it is set";

/// Nodes pull without the credentials that only kubelet has, and claims are not pulled at all.
const PRE_PULLED: &str = "!has(self.prePull) || !has(self.source.pvc) && \
    (!has(self.source.oci) || !has(self.source.oci.pullSecret))";
const PRE_PULLED_MESSAGE: &str =
    "prePull needs a source that nodes pull without credentials: http, or oci without pullSecret";

/// Nodes check a tag without credentials; of a web server they need to know which version it has.
const FOLLOWS: &str = "!has(self.update) || has(self.source.oci) && \
    !has(self.source.oci.pullSecret) && !self.source.oci.reference.contains('@') || \
    has(self.source.http) && !has(self.source.http.digest)";
const FOLLOWS_MESSAGE: &str = "update needs source.oci with a tag, without digest and pullSecret, or source.http without \
    digest: nodes check registries without credentials";
/// A registry says itself which version a tag means.
const CHECKSUMS: &str =
    "!has(self.update) || has(self.source.http) == has(self.update.checksumURL)";
const CHECKSUMS_MESSAGE: &str = "update needs checksumURL with source.http, and does not have it with source.oci: a file \
    of checksums says which version a web server has";
/// The certificate of a client is shown to no server in the clear.
const SECURED: &str = "!has(self.update) || !has(self.update.checksumURL) || !has(self.source.http) || \
    !has(self.source.http.tlsSecret) || self.update.checksumURL.startsWith('https://')";
const TAG_DIGEST: &str = "!has(self.update) || !has(self.update.digest) || !has(self.source.oci) || \
    self.update.digest.startsWith('sha256:')";
const TAG_DIGEST_MESSAGE: &str = "a digest of an image in a registry begins with sha256:";
const SECURED_MESSAGE: &str = "tlsSecret needs a checksumURL with the scheme https";

/// A disk image for the machines of one namespace.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineImage",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineImageStatus",
    shortname = "vmimage",
    category = "vmlet-all",
    doc = "A disk image for the machines of one namespace.",
    validation = edit_of("source", USED_SOURCE, USED_SOURCE_MESSAGE),
    validation = edit(USED_SINCE, USED_SINCE_MESSAGE).field_path(".status.usedSince"),
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.disks[0].limit"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodeCount"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = rule(PRE_PULLED, PRE_PULLED_MESSAGE),
    validation = rule(FOLLOWS, FOLLOWS_MESSAGE),
    validation = rule(CHECKSUMS, CHECKSUMS_MESSAGE),
    validation = rule(SECURED, SECURED_MESSAGE),
    validation = rule(TAG_DIGEST, TAG_DIGEST_MESSAGE),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageSpec {
    /// Source of the image. Immutable once `status.usedSince` is set.
    pub source: ImageSource,
    /// How the controller verifies that a machine with this image uses its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_assurance: Option<IpAssurance>,
    /// Pulls the image to nodes before a machine needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_pull: Option<PrePull>,
    /// Follows the tag of `source.oci`, or the file of `source.http`: new machines use the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<ImageUpdate>,
}

/// A disk image for the machines of all namespaces.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "ClusterVirtualMachineImage",
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineImageStatus",
    shortname = "cvmi",
    shortname = "cvmimage",
    category = "vmlet-all",
    doc = "A disk image for the machines of all namespaces.",
    validation = edit_of("source", USED_SOURCE, USED_SOURCE_MESSAGE),
    validation = edit(USED_SINCE, USED_SINCE_MESSAGE).field_path(".status.usedSince"),
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.disks[0].limit"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodeCount"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = rule("!has(self.source.pvc)", "a claim belongs to one namespace: use \
        VirtualMachineImage"),
    validation = rule("!has(self.source.http) || !has(self.source.http.tlsSecret)", "a Secret \
        belongs to one namespace: use VirtualMachineImage"),
    validation = rule(PRE_PULLED, PRE_PULLED_MESSAGE),
    validation = rule(FOLLOWS, FOLLOWS_MESSAGE),
    validation = rule(CHECKSUMS, CHECKSUMS_MESSAGE),
    validation = rule(SECURED, SECURED_MESSAGE),
    validation = rule(TAG_DIGEST, TAG_DIGEST_MESSAGE),
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterVirtualMachineImageSpec {
    /// Source of the image. Immutable once `status.usedSince` is set.
    pub source: ImageSource,
    /// How the controller verifies that a machine with this image uses its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_assurance: Option<IpAssurance>,
    /// Pulls the image to nodes before a machine needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_pull: Option<PrePull>,
    /// Follows the tag of `source.oci`, or the file of `source.http`: new machines use the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<ImageUpdate>,
}

impl From<ClusterVirtualMachineImageSpec> for VirtualMachineImageSpec {
    fn from(cluster: ClusterVirtualMachineImageSpec) -> Self {
        Self {
            source: cluster.source,
            ip_assurance: cluster.ip_assurance,
            pre_pull: cluster.pre_pull,
            update: cluster.update,
        }
    }
}

/// Source of an image. Exactly one of the three must be set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule(
    "(has(self.http) ? 1 : 0) + (has(self.oci) ? 1 : 0) + (has(self.pvc) ? 1 : 0) == 1",
    "set exactly one of http, oci and pvc",
))]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// A file on a web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A container disk or artifact in a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciSource>,
    /// A PersistentVolumeClaim that contains the disk. The storage clones it for each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
}

/// A file on a web server.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule(
    "!has(self.tlsSecret) || self.url.startsWith('https://')",
    "tlsSecret needs a URL with the scheme https",
))]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// URL with the scheme `http` or `https`.
    #[schemars(length(min = 8, max = 2048))]
    #[x_kube(validation = rules::web_url())]
    pub url: String,
    /// Digest of the file: `sha256:` and 64 hexadecimal digits. If empty, any content is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71), regex(pattern = rules::DIGEST))]
    pub digest: Option<String>,
    /// Secret in the namespace of the image with `ca.crt`, and with `tls.crt` and `tls.key` if the
    /// server requires a client certificate. Nodes read it at each pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub tls_secret: Option<String>,
}

/// A container disk or artifact in a registry.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OciSource {
    /// Image reference, such as `registry.example/disks/debian:12`, optionally with a digest.
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z0-9][-A-Za-z0-9._:/@]*$")
    )]
    pub reference: String,
    /// Secret of type `kubernetes.io/dockerconfigjson` with the pull credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub pull_secret: Option<String>,
}

/// A PersistentVolumeClaim that contains the disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// Name of the PersistentVolumeClaim, in the namespace of the image.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// How the controller verifies that a machine uses its address.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum IpAssurance {
    /// The guest agent reports the address, or the guest accepted a DHCP lease for it.
    #[default]
    Guest,
    /// The address of the pod is sufficient; for guests without guest agent and DHCP.
    PodIP,
}

/// Nodes that pull the image before a machine needs it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrePull {
    /// Labels of the nodes. If empty, all nodes with Vmlet pull the image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

//! `ImageMapping`: image names that refer to URLs.
//!
//! Invariant: cluster-scoped, since nodes pull for every namespace; exact names win over
//! expressions.
//! Failure: an object with a rule that cannot be used is reported in `Ready`; the last usable rules of
//! the object count.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

/// Translation of image names to URLs.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "ImageMapping",
    derive = "PartialEq",
    derive = "Default",
    status = "ImageMappingStatus",
    shortname = "vmim",
    category = "vmlet-all",
    doc = "Translation of image names to URLs.",
    printcolumn(name = "Prefix", type_ = "string", json_path = ".spec.prefix"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ImageMappingSpec {
    /// Image name prefix to which the rules apply. The rules match the part after the prefix. If
    /// empty, they apply to all names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9._/]*[a-z0-9])?$")
    )]
    pub prefix: Option<String>,
    /// Translation rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub translations: Vec<ImageTranslation>,
    /// Connection settings by name. Rules that name no transport use the one named `default`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub transports: BTreeMap<String, ImageTransport>,
}

/// A rule: either a name or a regular expression, and the URL.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule("has(self.name) != has(self.regexp)", "set exactly one of name and \
    regexp"))]
#[serde(rename_all = "camelCase")]
pub struct ImageTranslation {
    /// Full image name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Regular expression. Matches anywhere in the name unless anchored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regexp: Option<String>,
    /// URL of the image. `$1` and so on are replaced by the groups of the expression.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of the transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub transport: Option<String>,
}

/// Connection settings for a server.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTransport {
    /// Maximum time of a download, in seconds. If empty, there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86400))]
    pub timeout_seconds: Option<u32>,
    /// Maximum number of redirects. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub max_redirects: Option<u32>,
    /// URL of a proxy. Defaults to the proxy in the environment of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = rules::WEB_URL))]
    pub proxy: Option<String>,
    /// TLS settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TransportTls>,
}

/// TLS settings of a transport.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransportTls {
    /// Secret with `ca.crt`, and with `tls.crt` and `tls.key` if the server requires a client
    /// certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretReference>,
    /// Name that the certificate of the server must contain. Defaults to the host in the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// Skips the verification of the server's certificate.
    #[serde(default)]
    pub insecure: bool,
}

/// A reference to a Secret in any namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Namespace of the Secret.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// Observed state of a mapping.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageMappingStatus {
    /// Generation that the controller last observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

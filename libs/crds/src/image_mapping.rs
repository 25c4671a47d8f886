//! `ImageMapping`: image names that stand for URLs.
//!
//! Invariant: cluster-scoped, since nodes pull for every namespace; exact names win over expressions.
//! Failure: a rule that cannot be used is reported in `Ready` and skipped, others count.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

/// Image names that stand for URLs.
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
    doc = "Image names that stand for URLs. No controller acts on it yet.",
    printcolumn(name = "Prefix", type_ = "string", json_path = ".spec.prefix"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ImageMappingSpec {
    /// The rules are for names below this one, and see what follows it; empty: for all names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9._/]*[a-z0-9])?$")
    )]
    pub prefix: Option<String>,
    /// The rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub translations: Vec<ImageTranslation>,
    /// How to talk to servers, by name; the one named `default` is for rules that name none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub transports: BTreeMap<String, ImageTransport>,
}

/// A rule: either a name or an expression, and the URL.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule("has(self.name) != has(self.regexp)", "set exactly one of name and regexp"))]
#[serde(rename_all = "camelCase")]
pub struct ImageTranslation {
    /// The whole name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Regular expression, found anywhere in the name unless anchored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regexp: Option<String>,
    /// Where the image is; `$1` and so on stand for the expression's groups.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of a transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub transport: Option<String>,
}

/// How to talk to a server.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTransport {
    /// Longest time of a download in seconds; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86400))]
    pub timeout_seconds: Option<u32>,
    /// Redirects to follow; empty: 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub max_redirects: Option<u32>,
    /// URL of a proxy; empty: as the node's environment says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = rules::WEB_URL))]
    pub proxy: Option<String>,
    /// TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TransportTls>,
}

/// TLS of a transport.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransportTls {
    /// Secret with `ca.crt`, and `tls.crt` and `tls.key` where the server wants to know who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretReference>,
    /// Name that the server's certificate must have; empty: that of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// Believe any certificate.
    #[serde(default)]
    pub insecure: bool,
}

/// A Secret in some namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// How a mapping stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageMappingStatus {
    /// Generation that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Details, by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

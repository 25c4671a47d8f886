//! The document as it is written: fields that are acted on, fields that are refused, and the rest.
//!
//! Invariant: every field that is neither here nor refused ends up in an `unknown` map, so that it
//! can be named in a warning.
//! Failure: a field of the wrong type is an error of the parser, with its place.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer};

/// Fields that are not acted on, by name.
pub(super) type Unknown = BTreeMap<String, IgnoredAny>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    #[serde(default)]
    pub(super) api_version: String,
    #[serde(default)]
    pub(super) kind: String,
}

#[derive(Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Deserialize)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) containers: Vec<Container>,
    pub(super) runtime_class_name: Option<String>,
    pub(super) hostname: Option<String>,
    pub(super) dns_policy: Option<String>,
    pub(super) dns_config: Option<DnsConfig>,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) restart_policy: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) init_containers: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) ephemeral_containers: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) volumes: Vec<IgnoredAny>,
    #[serde(default)]
    pub(super) host_network: bool,
    #[serde(default, rename = "hostPID")]
    pub(super) host_pid: bool,
    #[serde(default, rename = "hostIPC")]
    pub(super) host_ipc: bool,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Deserialize)]
pub(super) struct DnsConfig {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) nameservers: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) searches: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) options: Vec<DnsOption>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Deserialize)]
pub(super) struct DnsOption {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) image_pull_policy: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) command: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) env: Vec<EnvVar>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) env_from: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) ports: Vec<Port>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) resources: Resources,
    #[serde(default)]
    pub(super) stdin: bool,
    #[serde(default)]
    pub(super) tty: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) volume_mounts: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) volume_devices: Vec<IgnoredAny>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EnvVar {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) value: String,
    pub(super) value_from: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Port {
    pub(super) container_port: i64,
    pub(super) host_port: Option<i64>,
    pub(super) protocol: Option<String>,
    #[serde(rename = "hostIP")]
    pub(super) host_ip: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct Resources {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) limits: BTreeMap<String, Quantity>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) requests: BTreeMap<String, Quantity>,
    #[serde(flatten)]
    pub(super) unknown: Unknown,
}

/// A quantity, which people write as a text or as a number.
#[derive(Debug, Default, Clone)]
pub(super) struct Quantity(pub(super) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 2, 500m or 128Mi")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
        Ok(Quantity(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }
}

/// Tools write `null` for an empty list or map.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

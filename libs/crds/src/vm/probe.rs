//! The machine's readiness probe.
//!
//! Invariant: one kind of probe at most.
//! Failure: a machine that is not on is not ready.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How readiness is determined. Exactly one of `tcpSocket`, `guestHeartbeat` and `guestInfo` must
/// be set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule(
    "(has(self.tcpSocket) ? 1 : 0) + (has(self.guestHeartbeat) ? 1 : 0) + \
     (has(self.guestInfo) && self.guestInfo.size() > 0 ? 1 : 0) == 1",
    "a probe has exactly one of tcpSocket, guestHeartbeat and guestInfo",
))]
#[serde(rename_all = "camelCase")]
pub struct ReadinessProbe {
    /// Ready if a TCP connection to the port can be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketProbe>,
    /// Ready if the heartbeat of the guest agent has at least the threshold status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_heartbeat: Option<HeartbeatProbe>,
    /// Ready if all of these values match those that the guest publishes in its file
    /// `/run/vmlet/guestinfo`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub guest_info: Vec<GuestInfoMatch>,
    /// Seconds between two probes. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: Option<u32>,
    /// Seconds after which a probe times out. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<u32>,
}

/// A probe that opens a TCP connection.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule(
    "!has(self.host) || self.host.matches('^[0-9.]*[.][0-9.]*$|^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*$')",
    "host must be an IP address: names are not resolved",
))]
#[serde(rename_all = "camelCase")]
pub struct TcpSocketProbe {
    /// Port, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// IP address to which the node connects: not one of the node itself, and not a loopback or
    /// link-local address. Defaults to the primary IPv4 address of the machine or, if there is none,
    /// its primary IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub host: Option<String>,
}

/// A probe of the heartbeat of the guest agent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatProbe {
    /// Minimum heartbeat status that counts as ready. Defaults to `green`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_status: Option<HeartbeatThreshold>,
}

/// Status of a heartbeat.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
pub enum HeartbeatThreshold {
    /// The guest agent missed one answer.
    Yellow,
    /// The guest agent answers.
    Green,
}

/// A value that the guest publishes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestInfoMatch {
    /// Key of the value.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Regular expression that the value must match. If empty or invalid, any value matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub value: Option<String>,
}

//! The machine's readiness probe.
//!
//! Invariant: one kind of probe at most.
//! Failure: a machine that is not on is not ready.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How readiness is found out.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule(
    "(has(self.tcpSocket) ? 1 : 0) + (has(self.guestHeartbeat) ? 1 : 0) + \
     (has(self.guestInfo) && self.guestInfo.size() > 0 ? 1 : 0) == 1",
    "a probe has exactly one of tcpSocket, guestHeartbeat and guestInfo",
))]
#[serde(rename_all = "camelCase")]
pub struct ReadinessProbe {
    /// A TCP connection that opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketProbe>,
    /// The guest agent's heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_heartbeat: Option<HeartbeatProbe>,
    /// Values that the guest publishes in its file `/run/vmlet/guestinfo`; all must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub guest_info: Vec<GuestInfoMatch>,
    /// Seconds between two probes; empty: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: Option<u32>,
    /// Seconds before a probe counts as failed; empty: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<u32>,
}

/// A TCP connection that opens.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpSocketProbe {
    /// Port, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Address; empty: the machine's primary IPv4, then IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub host: Option<String>,
}

/// The guest agent's heartbeat.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatProbe {
    /// The least that counts as ready; empty: green.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_status: Option<HeartbeatThreshold>,
}

/// Colour of a heartbeat.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
pub enum HeartbeatThreshold {
    /// One answer missed.
    Yellow,
    /// Answers.
    Green,
}

/// A value that the guest publishes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestInfoMatch {
    /// Its key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Regular expression that the value matches; empty or invalid: any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub value: Option<String>,
}

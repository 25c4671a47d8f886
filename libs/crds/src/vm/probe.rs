//! The machine's readiness probe.
//!
//! Invariant: one kind of probe at most.
//! Failure: a machine that is not on is not ready.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How readiness is found out.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessProbe {
    /// A TCP connection that opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketProbe>,
    /// The guest agent's heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_heartbeat: Option<HeartbeatProbe>,
    /// Values that the guest publishes; all must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_info: Vec<GuestInfoMatch>,
    /// Seconds between two probes; empty: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<u32>,
    /// Seconds before a probe counts as failed; empty: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// A TCP connection that opens.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpSocketProbe {
    /// Port, 1 to 65535.
    pub port: u16,
    /// Address; empty: the machine's primary IPv4, then IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    pub key: String,
    /// Regular expression; empty or invalid: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

//! TCP probes that the node of a machine makes: what a task sets, and what the guest facts report.
//!
//! Invariant: a result comes with the probe that it is of, so that it never counts for another one.
//! Failure: a result of a newer version is [`ProbeOutcome::Unknown`].

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::text::printable;

/// Longest address, in bytes.
const HOST: usize = 64;

/// A TCP probe that a node makes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProbe {
    /// Port, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// IP address. Defaults to the address of the machine on the network of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub host: Option<String>,
    /// Seconds between two probes.
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: u32,
    /// Seconds after which a probe times out.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
}

/// What a node reports of a probe.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GuestProbe {
    /// The probe.
    pub probe: NodeProbe,
    /// Its result.
    #[serde(default)]
    pub outcome: ProbeOutcome,
}

impl GuestProbe {
    /// Cuts what is too long.
    pub(crate) fn bounded(mut self) -> Self {
        self.probe.host = self.probe.host.map(|host| printable(&host, HOST));
        self
    }
}

/// The result of a probe.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The connection was accepted.
    Connected,
    /// The connection was not accepted.
    Refused,
    /// There was no answer in time.
    TimedOut,
    /// The machine has no address on the network of its pod.
    NoAddress,
    /// The address is one of the node, or one with a special meaning.
    NotAllowed,
    /// There is no result yet, or one of a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_a_newer_version_is_unknown_and_an_address_is_bounded() {
        let text = format!(
            r#"{{"probe":{{"port":22,"host":"{}","periodSeconds":10,"timeoutSeconds":1}},"outcome":"Slow"}}"#,
            "1".repeat(1000)
        );
        let read: GuestProbe = serde_json::from_str(&text).unwrap();
        assert_eq!(read.outcome, ProbeOutcome::Unknown);
        let host = read.bounded().probe.host;
        assert_eq!(host.map(|host| host.len()), Some(HOST));
    }
}

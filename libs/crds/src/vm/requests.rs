//! The queue of start and stop requests in a machine's status.
//!
//! Invariant: verbs append, the controller pops; only the first element is ever acted upon.
//! Failure: a second writer fails the `test` of its JSON patch and gets a conflict.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A start or stop request from a user.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// Action: `Start` or `Stop`.
    pub action: StateChangeAction,
    /// Stop: UID of the pod to stop. If the current pod has another UID, the request is already
    /// fulfilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Start: `paused: "true"` starts the machine with paused vCPUs. Stop: `gracePeriodSeconds` is
    /// the time for the guest to power off; 0 powers it off immediately.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4))]
    pub data: BTreeMap<String, String>,
}

/// Action of a request.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum StateChangeAction {
    /// Create an instance.
    Start,
    /// Stop the instance with the given UID.
    Stop,
}

//! The queue of start and stop requests in a machine's status.
//!
//! Invariant: verbs append, the controller pops; only the first element is ever acted upon.
//! Failure: a second writer loses the `test` of its JSON patch and is told so.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something a user asked for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// Start or Stop.
    pub action: StateChangeAction,
    /// Stop: UID of the pod to stop. Another UID means that it is done already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Start: `paused: "true"` starts with standing vCPUs. Stop: `gracePeriodSeconds` is the time that
    /// the guest has; 0 ends it at once.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4))]
    pub data: BTreeMap<String, String>,
}

/// What is asked for.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum StateChangeAction {
    /// Let an instance exist.
    Start,
    /// Let the instance with that UID end.
    Stop,
}

//! The conditions of the node's status about a secondary.
//!
//! Invariant: the types are of the secondary's own, such as `VmletRuntimeReady`: kubelet shows them
//! and decides nothing by them.
//! Failure: none.

use std::sync::PoisonError;

use cri_proto::v1::{RuntimeCondition, RuntimeStatus, StatusResponse};
use prost::Message;

use crate::backend::Failure;
use crate::proxy::Secondary;

/// What it reports about itself.
pub(super) fn reported_by(secondary: &Secondary, answer: &[u8]) -> RuntimeStatus {
    let reported = StatusResponse::decode(answer).unwrap_or_default();
    let reported = reported.status.unwrap_or_default().conditions;
    let name = title(secondary);
    let mut conditions: Vec<_> = (reported.into_iter())
        .map(|condition| RuntimeCondition {
            r#type: format!("{name}{}", condition.r#type),
            ..condition
        })
        .collect();
    conditions.extend(driver(secondary));
    RuntimeStatus { conditions }
}

/// What is reported about it while it is away.
pub(super) fn away(secondary: &Secondary, failure: &Failure, never: bool) -> RuntimeStatus {
    let reason = if never {
        "NeverConnected"
    } else {
        "Unavailable"
    };
    let ready = RuntimeCondition {
        r#type: format!("{}RuntimeReady", title(secondary)),
        status: false,
        reason: reason.into(),
        message: format!("runtime {}: {}", secondary.backend.name, failure.reason()),
    };
    let conditions = [Some(ready), driver(secondary)];
    RuntimeStatus {
        conditions: conditions.into_iter().flatten().collect(),
    }
}

/// Present when it would put its pods into other cgroups than kubelet expects.
fn driver(secondary: &Secondary) -> Option<RuntimeCondition> {
    let same = secondary.same_cgroup_driver.lock();
    let same = *same.unwrap_or_else(PoisonError::into_inner);
    (same == Some(false)).then(|| RuntimeCondition {
        r#type: format!("{}CgroupDriverMatches", title(secondary)),
        status: false,
        reason: "CgroupDriverDiffers".into(),
        message: "its cgroup driver is not the primary's, so the limits of its pods are wrong"
            .into(),
    })
}

/// `vm-let` becomes `VmLet`.
fn title(secondary: &Secondary) -> String {
    let words = secondary.backend.name.split('-');
    words
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters)
        })
        .collect()
}

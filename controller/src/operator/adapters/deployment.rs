//! The controller: a Deployment.
//!
//! Invariant: a rollout that is past its deadline is a fault and no longer progress.
//! Failure: a Deployment without conditions has none here either.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};

use super::{GRACE, conditions};
use crate::operator::component::{ComponentCondition, ComponentState};

/// The four conditions of a Deployment that has had fewer replicas than it should for `short_for`.
#[must_use]
pub fn deployment(object: &Deployment, short_for: Duration) -> ComponentState {
    let status = object.status.clone().unwrap_or_default();
    let found = status.conditions.unwrap_or_default();
    if found.is_empty() {
        return ComponentState::Nothing("its controller has not seen it yet".to_owned());
    }
    let condition = |kind: &str| find(&found, kind);
    let wanted = object.spec.replicas.unwrap_or(1);
    let updated = status.updated_replicas.unwrap_or_default();
    let available = status.available_replicas.unwrap_or_default();
    let unseen = status.observed_generation < object.metadata.generation;

    let down = condition("Available").filter(|c| is(c, "False"));
    let progress = condition("Progressing");
    let late = progress.filter(|c| c.reason.as_deref() == Some("ProgressDeadlineExceeded"));
    let moving =
        progress.filter(|c| is(c, "True") && c.reason.as_deref() != Some("NewReplicaSetAvailable"));
    let refused = condition("ReplicaFailure").filter(|c| is(c, "True"));
    let rollout = if unseen {
        Some("a change was not acted upon yet".to_owned())
    } else if updated < wanted {
        Some(format!(
            "{updated} of {wanted} replicas are of the new version"
        ))
    } else {
        moving.map(message_of)
    };
    let short = (available < wanted && short_for >= GRACE)
        .then(|| format!("{available} of {wanted} replicas serve"));
    let mut all = conditions(
        down.map(message_of),
        rollout.clone().filter(|_| late.is_none()),
        late.or(refused).map(message_of).or(short),
        rollout.or(late.map(message_of)),
    );
    if condition("Available").is_none() {
        all.available = None;
    } else if let Some(unknown) = condition("Available").filter(|c| is(c, "Unknown")) {
        all.available = Some(ComponentCondition::new(
            crds::conditions::Status::Unknown,
            message_of(unknown),
        ));
    }
    ComponentState::Found(all)
}

fn find<'a>(all: &'a [DeploymentCondition], kind: &str) -> Option<&'a DeploymentCondition> {
    all.iter().find(|c| c.type_.as_deref() == Some(kind))
}

fn is(condition: &DeploymentCondition, status: &str) -> bool {
    condition.status.as_deref() == Some(status)
}

fn message_of(condition: &DeploymentCondition) -> String {
    let reason = condition.reason.as_deref().unwrap_or_default();
    match condition.message.as_deref().unwrap_or_default() {
        "" => reason.to_owned(),
        message => message.to_owned(),
    }
}

//! The status of a set: its numbers, `Ready` and `ReplicaFailure`.
//!
//! | condition | status, reason | when |
//! | --- | --- | --- |
//! | `Ready` | True `Ready` | as many machines as desired are available |
//! | `Ready` | False `ReplicasNotAvailable` | fewer are: the message has the numbers |
//! | `Ready` | False `Paused` | the same, and the set is paused |
//! | `ReplicaFailure` | True | the reason and the API server's words; absent without a failure |
//!
//! Invariant: written where it differs, on the version of the set that was read; numbers alone are written
//! at most once in an interval.
//! Failure: a write that the API server refuses is repeated with the pass.

use std::time::Duration;

use crds::conditions::{self, READY, REPLICA_FAILURE, Status};
use crds::{VirtualMachineReplicaSet, VirtualMachineReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::observe::Seen;
use super::{Work, is_paused, revision};
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone};

/// Owner of the status fields.
const MANAGER: &str = "vmlet-controller";
/// Longest message, in bytes.
const LONGEST: usize = 1024;
/// Shortest time between two writes of numbers.
const INTERVAL: Duration = Duration::from_secs(1);

/// Status, reason and message of a condition.
struct Verdict(Status, &'static str, String);

/// The status from what was seen and done.
pub(super) fn draft(
    set: &VirtualMachineReplicaSet,
    seen: &Seen,
    work: &Work,
    revision: &str,
    now: &Time,
) -> VirtualMachineReplicaSetStatus {
    let living = || seen.own().filter(|(_, found)| !found.replica.is_deleting);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut status = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation;
    status.replicas = count(living().count());
    status.ready_replicas = count(living().filter(|(_, one)| one.replica.is_ready).count());
    status.available_replicas = count(living().filter(|(_, one)| one.replica.is_available).count());
    status.updated_replicas = count(living().filter(|(_, one)| one.replica.is_updated).count());
    status.observed_generation = generation;
    status.update_revision = Some(revision.to_owned());
    status.template_hash = Some(revision::revision(&set.spec));
    status.selector = Some(selector(set));
    let is_complete =
        status.updated_replicas == status.replicas && status.replicas == set.spec.replicas;
    if is_complete || status.current_revision.is_none() {
        status.current_revision = Some(revision.to_owned());
    }
    // Conditions show whole seconds.
    let now = Time(Timestamp::from_second(now.0.as_second()).unwrap_or(now.0));
    let wanted = set.spec.replicas;
    let available = status.available_replicas;
    let text = format!("{available} of {wanted} machines are available");
    let all = &mut status.conditions;
    let verdict = if available >= wanted {
        Verdict(Status::True, "", String::new())
    } else if is_paused(set) {
        let text = format!("{text}; the set is paused: no machine is created or deleted");
        Verdict(Status::False, "Paused", text)
    } else {
        Verdict(Status::False, "ReplicasNotAvailable", text)
    };
    conditions::set(
        all, READY, verdict.0, verdict.1, &verdict.2, generation, &now,
    );
    match &work.failure {
        Some((reason, message)) => {
            let end = message.floor_char_boundary(LONGEST);
            let text = &message[..end];
            conditions::set(
                all,
                REPLICA_FAILURE,
                Status::True,
                reason,
                text,
                generation,
                &now,
            );
        }
        None => {
            conditions::remove(all, REPLICA_FAILURE);
        }
    }
    status
}

/// The selector as text.
fn selector(set: &VirtualMachineReplicaSet) -> String {
    let labels = set.spec.selector.match_labels.iter();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.join(",")
}

/// Writes the status where it differs; numbers that follow another write closely wait. The time until
/// then, if they do.
pub(super) async fn write_in_turn(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    new: &VirtualMachineReplicaSetStatus,
) -> Outcome<Option<Duration>> {
    let old = set.status.as_ref();
    if old == Some(new) {
        return Ok(None);
    }
    let now = (ctx.clock)().0.as_millisecond();
    let rest = ctx
        .shared
        .set_reports
        .rest(&Key::from_object(set), INTERVAL, now);
    let can_wait = old.is_some_and(|old| headline(old) == headline(new));
    match rest.filter(|_| can_wait) {
        Some(rest) => Ok(Some(rest)),
        None => write(ctx, set, new).await.map(|()| None),
    }
}

/// What is more than a number.
fn headline(status: &VirtualMachineReplicaSetStatus) -> impl PartialEq + '_ {
    let of = |kind: &str| {
        let found = conditions::find(&status.conditions, kind);
        found.map(|found| (&found.status, &found.reason))
    };
    let revisions = (
        &status.current_revision,
        &status.update_revision,
        &status.template_hash,
    );
    (
        of(READY),
        of(REPLICA_FAILURE),
        revisions,
        status.observed_generation,
    )
}

async fn write(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    new: &VirtualMachineReplicaSetStatus,
) -> Outcome<()> {
    let namespace = set.namespace().unwrap_or_default();
    let name = set.name_any();
    let body = json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "VirtualMachineReplicaSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": set.uid(),
            "resourceVersion": set.metadata.resource_version,
        },
        "status": new,
    });
    let api = Api::<VirtualMachineReplicaSet>::namespaced(ctx.client.clone(), &namespace);
    let params = PatchParams::apply(MANAGER).force();
    match api.patch_status(&name, &params, &Patch::Apply(body)).await {
        Ok(_) => {
            let now = (ctx.clock)().0.as_millisecond();
            ctx.shared.set_reports.wrote(&Key::from_object(set), now);
            record_failure(ctx, set, new);
            Ok(())
        }
        // Deleted, or made again.
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("failed to write the status of replica set {namespace}/{name}");
            Err(PassError::Failed(error.context(text)))
        }
    }
}

/// Whether the status of before has this failure already.
pub(super) fn is_shown(set: &VirtualMachineReplicaSet, work: &Work) -> bool {
    let all = set.status.as_ref().map(|status| &status.conditions);
    let found = all.and_then(|all| conditions::find(all, REPLICA_FAILURE));
    let failure = work.failure.as_ref();
    found.is_some_and(|found| failure.is_some_and(|(reason, _)| found.reason == *reason))
}

/// A failure that the status before did not have.
fn record_failure(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    new: &VirtualMachineReplicaSetStatus,
) {
    let failure = |status: &VirtualMachineReplicaSetStatus| {
        let found = conditions::find(&status.conditions, REPLICA_FAILURE);
        found.map(|found| found.message.clone())
    };
    let before = set.status.as_ref().and_then(failure);
    if let Some(message) = failure(new).filter(|message| before.as_ref() != Some(message)) {
        ctx.events.warning(set, "ReplicaFailure", &message);
    }
}

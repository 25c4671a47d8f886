//! Creates and deletes pods.
//!
//! Invariant: a deletion names the pod's UID and leaves a machine at least one second, so that the
//! object outlives the domain; a pod of another owner is never changed.
//! Failure: what the API server reports, by name of the pod.

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use lifecycle::Pending;
use serde_json::json;

use super::shorten_grace;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_conflict, is_gone};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;

/// Creates a pod of the machine. One that is there already, and is the machine's, is fine.
pub(crate) async fn create(pass: &mut Pass<'_>, pod: &Pod) -> Outcome<Pod> {
    let api = pass.api::<Pod>();
    let name = pod.name_any();
    match api.create(&PostParams::default(), pod).await {
        Ok(made) => {
            pass.count_change();
            if pods::role(&made) == pods::INSTANCE {
                expect(pass, Pending::Create, made.uid());
            }
            Ok(made)
        }
        Err(error) if is_conflict(&error) => match api.get_opt(&name).await {
            Ok(Some(there)) if is_ours(pass, &there) => Ok(there),
            Ok(Some(there)) => {
                let why = foreign(&there);
                Err(Error::ForeignPod { name, why }.into())
            }
            // Gone between the two.
            Ok(None) => Err(again()),
            Err(source) => Err(Error::CreatePod { name, source }.into()),
        },
        Err(source) => Err(Error::CreatePod { name, source }.into()),
    }
}

fn is_ours(pass: &Pass<'_>, pod: &Pod) -> bool {
    pods::controller_uid(pod) == Some(pass.uid().as_str())
}

fn foreign(pod: &Pod) -> String {
    let owner = pod
        .owner_references()
        .iter()
        .find(|o| o.controller == Some(true));
    match owner {
        Some(owner) => format!("{} {} controls it", owner.kind, owner.name),
        None if pods::role(pod) != pods::INSTANCE => {
            format!("it has no label {}", names::POD_ROLE_LABEL)
        }
        None => "it is being deleted".to_owned(),
    }
}

/// Deletes a pod, giving its guest `seconds`; again when that is less than it was given before.
pub(crate) async fn delete(pass: &mut Pass<'_>, pod: &Pod, seconds: u32) -> Outcome<()> {
    let is_machine = pods::role(pod) == pods::INSTANCE;
    let seconds = seconds.max(u32::from(is_machine));
    let given = pod.metadata.deletion_grace_period_seconds;
    if pods::is_deleting(pod) && given.is_none_or(|given| given <= i64::from(seconds)) {
        return Ok(());
    }
    if pods::is_deleting(pod) && is_machine {
        // Before the API server has the shorter time: from then on no pass reaches this line again.
        shorten_grace::request(pass, pod, seconds).await?;
    }
    let params = DeleteParams::background()
        .grace_period(seconds)
        .preconditions(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        });
    let name = pod.name_any();
    match pass.api::<Pod>().delete(&name, &params).await {
        Ok(_) => {
            pass.count_change();
            if is_machine {
                expect(pass, Pending::Delete, pod.uid());
            }
            Ok(())
        }
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(()),
        Err(source) => Err(Error::DeletePod { name, source }.into()),
    }
}

/// Takes a scheduling gate off a pod; others stay.
pub(crate) async fn ungate(pass: &mut Pass<'_>, pod: &Pod, gate: &str) -> Outcome<()> {
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
    let left: Vec<_> = gates.into_iter().flatten().collect();
    let (ours, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|g| g.name == gate);
    if ours.is_empty() {
        return Ok(());
    }
    let change = Patch::Merge(json!({ "spec": { "schedulingGates": left } }));
    let name = pod.name_any();
    let api = pass.api::<Pod>();
    match api.patch(&name, &PatchParams::default(), &change).await {
        Ok(_) => {
            pass.count_change();
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(Error::PlacePod { name, source }.into()),
    }
}

fn expect(pass: &Pass<'_>, pending: Pending, uid: Option<String>) {
    let shared = &pass.ctx.shared;
    let now = pass.seconds();
    let uid = uid.unwrap_or_default();
    shared.expected.set(pass.key, pending, uid, now);
}

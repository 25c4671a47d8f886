//! A claim that has backups: whether it can be used, and the pod that has it mounted on a node while a task needs it.
//!
//! ```text
//! claim is there ─► pod on the node of the task ─► it runs ─► task ─► ended ─► pod deleted
//! ```
//!
//! Invariant: a claim is known by its UID once a node was requested to write to it: another claim of that name is another
//! place. Each backup, and each machine that is restored, has one such pod at most, which it owns, under a name that follows
//! from its owner: a controller that was killed finds it again. One that ends at once is not made again within a minute.
//! Failure: in words: what the API server, the scheduler or kubelet has reported of the pod.

mod pod;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};

use crate::context::{Context, Key};
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_ending, is_gone, is_refused};
use crate::reconcile::vm::error::{Error, text};
use crate::reconcile::vm::pods;

/// Age in seconds at which a pod that has ended is made again.
const SHORTEST: i64 = 60;

/// What a claim is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A pod can mount it.
    Usable(Usable),
    /// Not at present, and why.
    Waits(String),
    /// It can never have backups, and why.
    Unfit(String),
    /// The claim that the backup was begun in no longer exists, in words.
    Gone(String),
}

/// A claim that a pod can mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usable {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Pods on several nodes can have it at once.
    is_shared: bool,
}

/// Which pod is needed.
#[derive(Debug, Clone)]
pub(crate) struct Desired<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) claim: &'a Usable,
    pub(crate) node: &'a str,
    /// Who needs it.
    pub(crate) owner: OwnerReference,
}

/// Whether the node reaches the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mount {
    /// A task can use it.
    Ready,
    /// Not yet, and why.
    Waits(String),
}

/// A claim with this UID as nodes name it.
pub(crate) fn target(uid: &str) -> String {
    format!("{}{uid}", crds::names::CLAIM_TARGET)
}

/// Looks at a claim of the namespace. `recorded`: UID of the one that the backup was begun in, if it was.
pub(crate) fn look(ctx: &Context, namespace: &str, name: &str, recorded: Option<&str>) -> Claim {
    let key = Key::new(namespace, name);
    let found = ctx.stores.claims.get(&key.reference());
    let Some(claim) = found else {
        return match recorded {
            Some(_) => Claim::Gone(format!(
                "claim {name}, which the backup was begun in, no longer exists"
            )),
            None => Claim::Waits(format!("claim {name} does not exist in this namespace")),
        };
    };
    let uid = claim.uid().unwrap_or_default();
    if recorded.is_some_and(|recorded| recorded != uid) {
        return Claim::Gone(format!(
            "claim {name} is not the one that the backup was begun in: that one was deleted"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Claim::Waits(format!("claim {name} is being deleted"));
    }
    judge(name, uid, &claim)
}

fn judge(name: &str, uid: String, claim: &PersistentVolumeClaim) -> Claim {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Claim::Unfit(format!(
            "claim {name} has volumeMode Block, and backups are files: use one with volumeMode Filesystem"
        ));
    }
    let modes = spec.access_modes.unwrap_or_default();
    if !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany") {
        return Claim::Unfit(format!(
            "claim {name} is ReadOnlyMany: use one that can be written to"
        ));
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase == Some("Lost") {
        return Claim::Waits(format!("claim {name} has lost its volume"));
    }
    Claim::Usable(Usable {
        name: name.to_owned(),
        uid,
        is_shared: modes.iter().any(|mode| mode == "ReadWriteMany"),
    })
}

/// Makes the pod where there is none, and says how far it is. One that is on another node, that has ended, or that has
/// another claim makes way; one that has ended does so when it is [`SHORTEST`] old.
pub(crate) async fn mount(ctx: &Context, desired: &Desired<'_>) -> Outcome<Mount> {
    let wanted = pod::draft(desired)?;
    let name = wanted.name_any();
    let key = Key::new(desired.namespace, &name);
    let Some(found) = ctx.stores.pods.get(&key.reference()) else {
        return create(ctx, desired, &wanted).await;
    };
    let is_fit = !pods::is_deleting(&found) && is_as_wanted(desired, &found, &wanted);
    if is_fit && pods::is_final(&found) && is_new(ctx, &found) {
        return Ok(Mount::Waits(end(desired, &name, &found)));
    }
    if !is_fit || pods::is_over(&found) {
        delete(ctx, &found).await?;
        return Ok(Mount::Waits(format!("an earlier pod {name} ends first")));
    }
    if pods::runs(&found) {
        return Ok(Mount::Ready);
    }
    Ok(Mount::Waits(progress(desired, &name, &found)))
}

/// Deletes the pod of an owner, if there is one.
pub(crate) async fn unmount(ctx: &Context, namespace: &str, owner: &OwnerReference) -> Outcome<()> {
    let key = Key::new(namespace, pod::name(owner));
    match ctx.stores.pods.get(&key.reference()) {
        Some(found) if pods::controller_uid(&found) == Some(&owner.uid) => {
            delete(ctx, &found).await
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether owner, claim and node of a pod are those that are needed. A webhook may have changed the rest.
fn is_as_wanted(desired: &Desired<'_>, found: &Pod, wanted: &Pod) -> bool {
    let is_owned = pods::controller_uid(found) == pods::controller_uid(wanted);
    let claim = pods::annotation(found, crds::names::BACKUP_TARGET_CLAIM);
    let is_of_claim = claim == Some(&*desired.claim.uid);
    let is_of_node = match pods::node(found) {
        Some(node) => node == desired.node,
        None => pod::is_bound_to(found, desired.node),
    };
    is_owned && is_of_claim && is_of_node
}

/// Whether the next pod is not due. A difference of the clocks counts as age, too.
fn is_new(ctx: &Context, pod: &Pod) -> bool {
    let now = (ctx.clock)().0.as_second();
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map(|made| now - made.0.as_second());
    age.is_some_and(|age| age.abs() < SHORTEST)
}

async fn create(ctx: &Context, desired: &Desired<'_>, wanted: &Pod) -> Outcome<Mount> {
    let name = wanted.name_any();
    let api = Api::<Pod>::namespaced(ctx.client.clone(), desired.namespace);
    match api.create(&PostParams::default(), wanted).await {
        Ok(_) => {}
        // The store lags behind.
        Err(error) if is_conflict(&error) => {}
        Err(error) if is_ending(&error) => {}
        Err(source) if is_refused(&source) => {
            let why = text(&anyhow::Error::new(source));
            return Ok(Mount::Waits(format!(
                "failed to create pod {name}, which mounts the claim: {why}"
            )));
        }
        Err(source) => return Err(Error::CreatePod { name, source }.into()),
    }
    Ok(Mount::Waits(mounts(desired, &name)))
}

fn mounts(desired: &Desired<'_>, pod: &str) -> String {
    let Desired { claim, node, .. } = desired;
    format!("pod {pod} mounts claim {} on node {node}", claim.name)
}

/// How a pod has ended that is made again.
fn end(desired: &Desired<'_>, name: &str, pod: &Pod) -> String {
    let why = pods::end(pod).unwrap_or_else(|| pods::phase(pod).to_owned());
    format!(
        "pod {name}, which mounts the claim, ended on node {}: {why}; another one is made within a minute",
        desired.node
    )
}

/// What a pod waits for.
fn progress(desired: &Desired<'_>, name: &str, pod: &Pod) -> String {
    let Desired { claim, node, .. } = desired;
    let mut words = match (pods::unschedulable(pod), pods::waiting(pod)) {
        (Some(why), _) => {
            format!(
                "the scheduler does not place pod {name}, which mounts the claim, on node {node}: {why}"
            )
        }
        (None, Some((reason, why))) if !why.is_empty() => {
            format!(
                "pod {name}, which mounts the claim, does not start on node {node}: {reason}: {why}"
            )
        }
        (None, _) => mounts(desired, name),
    };
    if !claim.is_shared {
        let limit = format!(
            ". Claim {} is not ReadWriteMany: while a pod on another node has it, node {node} does not get it",
            claim.name
        );
        words.push_str(&limit);
    }
    words
}

async fn delete(ctx: &Context, pod: &Pod) -> Outcome<()> {
    if pods::is_deleting(pod) {
        return Ok(());
    }
    let only_this = DeleteParams::default().preconditions(Preconditions {
        uid: pod.uid(),
        resource_version: None,
    });
    let name = pod.name_any();
    let namespace = pod.namespace().unwrap_or_default();
    let api = Api::<Pod>::namespaced(ctx.client.clone(), &namespace);
    match api.delete(&name, &only_this).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(()),
        Err(source) => Err(Error::DeletePod { name, source }.into()),
    }
}
